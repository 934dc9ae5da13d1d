"""Options and arguments that several commands share, and the options that tasks add to a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from spen import tasks
from spen.cli.catalogue import complete_model
from spen.cli.terminal import working

if TYPE_CHECKING:
    from spen.models import SavedModel
    from spen.tasks.task import Opened, Option, Task

Split = Literal["train", "dev", "test"]
Device = Literal["auto", "cpu", "cuda"]

Model = Annotated[
    str,
    typer.Argument(help="A model of the package, a run folder or an exported folder.", autocompletion=complete_model),
]
Build = Annotated[
    str,
    typer.Option(metavar="MODULE:FUNCTION", help="For a run folder of your own model: your function that builds it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnDevice = Annotated[Device, typer.Option(help="Device to run on; auto takes the GPU if there is one.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="Stop at the end of an epoch after this many seconds, with exit status 3; the same command resumes.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change an option of the recipe.")
]

OUT_OF_TIME = 3
"""The exit status after --seconds: the same command resumes."""


def with_task_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that tasks declare for a command; the command gets the given ones as ``options``."""
    return with_options((option, ", ".join(tasks)) for option, tasks in _declared(command).values())


def with_options(declared: Iterable[tuple[Option, str]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options, each with its owner for the help; of two with one name the first. Given ones are in ``options``."""
    named = {option.name: (option, whose) for option, whose in reversed(list(declared))}

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        own = [p.replace(annotation=hints[n]) for n, p in parameters.items() if n != "options"]
        added = [_parameter(option, f"{whose}: {option.help}") for option, whose in reversed(named.values())]

        @wraps(function)
        def run(**given: Any) -> None:
            extra = {name: given.pop(name) for name in named}
            function(**given, options={name: value for name, value in extra.items() if value is not None})

        run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return decorate


def open_for(
    command: str,
    model: str,
    options: dict[str, Any] | None = None,
    *,
    device: str = "cpu",
    build: str = "",
    data: str = "",
) -> tuple[SavedModel, Opened]:
    """The model of a name or a folder; options that its task does not have for the command are refused.

    ``build`` opens a model that no task has built; ``data`` is a file of examples for it.
    """
    from spen.models import SavedModel, find_model

    saved = SavedModel(model, Path(model), "", {}) if build else find_model(model)
    task = tasks.find(saved.task) if saved.task else None
    check_options(command, task, options or {})
    with working("loading"):  # torch is imported after the checks that do not need it
        from spen.tasks.options import resolve_device

        if task is not None:
            return saved, task.open(saved, resolve_device(device))
        from spen.tasks.own import OwnModel

        return saved, OwnModel(model, build, resolve_device(device), data)


def check_options(command: str, task: Task | None, options: dict[str, Any]) -> None:
    """Refuse options of other tasks; a model of the user's own has no task."""
    own = {option.name for option in task.options.get(command, ())} if task is not None else set()
    for name in options:
        if name not in own:
            option, owners = _declared(command)[name]
            whose = task.name if task is not None else "a model of your own"
            raise ValueError(f"{option.spelled} is an option of {' and '.join(owners)}, not of {whose}")


def _declared(command: str) -> dict[str, tuple[Option, list[str]]]:
    """Options by name, with the tasks that have them."""
    found: dict[str, tuple[Option, list[str]]] = {}
    for task in tasks.every().values():
        for option in task.options.get(command, ()):
            if option.name in found and found[option.name][0].type != option.type:
                raise ValueError(f"{option.spelled} of {task.name} has another type than that of another task")
            found.setdefault(option.name, (option, []))[1].append(task.name)
    return found


def _parameter(option: Option, text: str) -> inspect.Parameter:
    """An option of a task as a parameter for typer; None if it is not given."""
    plain = isinstance(option.type, type) or getattr(option.type, "__origin__", None) is Literal
    metavar = None if plain else "TEXT"
    parser = None if plain else option.type
    details = typer.Option(option.spelled, help=text, parser=parser, metavar=metavar, min=option.least)
    kind: Any = Annotated[(option.type if plain else str) | None, details]  # type: ignore[valid-type]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def task_examples(command: str) -> list[str]:
    """The examples of all tasks for the help of a command."""
    return [example for task in tasks.every().values() for example in task.examples.get(command, ())]
