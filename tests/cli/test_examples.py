"""Every command's help, and every example in it, run as printed but small."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer

from spen.cli.app import app
from tests.cli import world
from tests.cli.world import SMALLER, Answer, smaller, spen


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups included."""
    command = typer.main.get_command(app) if command is None else command
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def printed_help(path: tuple[str, ...]) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "200"
    try:
        out = io.StringIO()
        with redirect_stdout(out):
            typer.main.get_command(app).main([*path, "--help"], prog_name="spen", standalone_mode=False)
        return out.getvalue()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


COMMANDS = list(commands())
HELP = {path: printed_help(path) for path in COMMANDS}
EXAMPLES = [
    line.strip()
    for path in COMMANDS
    for line in HELP[path].partition("Examples")[2].splitlines()
    if line.strip().startswith("spen ")
]
# Runs are made by the examples of `train`, which later examples use.
ORDERED = sorted(dict.fromkeys(EXAMPLES), key=lambda e: (not e.startswith("spen train"), EXAMPLES.index(e)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("world")
    world.build(place)
    with pytest.MonkeyPatch.context() as patch:
        world.shrink(patch, place)
        yield place


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Answer]:
    """All examples, in order, once."""
    return {example: spen(*smaller(example)) for example in ORDERED}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_a_purpose_and_examples(path: tuple[str, ...]) -> None:
    text = HELP[path]
    assert f"Usage: spen {' '.join(path)}".strip() in text
    if path != ("data",):  # a group; its commands have the examples
        mine = [e for e in EXAMPLES if e.split()[1 : len(path) + 1] == list(path)]
        assert len(mine) >= 2, "a command's help shows at least two examples of it"
    assert "\x1b" not in text


@pytest.mark.parametrize("example", ORDERED)
def test_every_example_runs(answers: dict[str, Answer], example: str) -> None:
    answer = answers[example]
    assert answer.status == 0, answer.err
    assert answer.out.strip()
    if "--json" in example:
        json.loads(answer.out)


def test_what_makes_examples_smaller_is_used() -> None:
    unused = [start for start in SMALLER if not any(e.startswith(start) for e in ORDERED)]
    assert unused == []


def test_what_the_examples_leave_behind(answers: dict[str, Answer], folder: Path) -> None:
    """The files that the examples name were written, where they say."""
    assert answers
    for name in ("clean.png", "filled.png", "clean/a.png", "clean/b.png", "roles.props", "runs/five/model.safetensors"):
        assert (folder / name).is_file(), name
    (pretty,) = [a.out for example, a in answers.items() if "--format pretty" in example]
    assert "[V sold]" in pretty
    report = answers["spen reproduce table1 --quick"].out.partition("report: ")[2].strip()
    assert (folder / report).is_file()
    assert (folder / "runs/table2-quick/builtin/report.html").is_file()
    assert (folder / "prepared/test").is_dir()
    assert (folder / "cache/spen/srl/ewt/ewt-srl.dev.tsv.gz").is_file()
    assert (folder / "conll05st-release/train/words/train.02.words").is_file()


def test_answers_for_programs(answers: dict[str, Answer]) -> None:
    """--json: the keys that a program would read."""

    def read(example: str) -> Any:
        return json.loads(answers[example].out)

    table = read("spen reproduce table1 --data simulated --rows dp-3,foe-3 --seeds 1")
    assert table["raw"]["psnr"] > 20
    assert [row["recipe"] for row in table["table"]] == ["tv"]
    listed = read("spen list --json")
    assert {m["name"]: m["task"] for m in listed["models"]}["dp-3"] == "denoising"
    recipes = listed["recipes"]
    assert {r["task"] for r in recipes} == {"denoising", "srl", "multilabel", "reasoning"}
    assert {"foe-20+", "dp-ssvm", "bibtex-deep-value", "structured"} <= {r["name"] for r in recipes}
    trained = read("spen train bibtex-end-to-end --json")
    assert trained["finished"] is True
    assert trained["run"] == "runs/bibtex/bibtex-end-to-end/seed-0"
    assert 0 <= trained["dev"] <= 100
    scored = read("spen evaluate runs/rooms/dp-3/seed-0 --split dev --json")
    assert scored["frames"] == 1
    assert scored["data"] == "rooms"
    roles = read("spen score gold.props.gz pred.props --json")
    assert roles["overall"]["f1"] == 100
    assert roles["labels"]["V"]["missed"] == 0
    sets = {d["name"]: d for d in read("spen data list --json")}
    assert sets["rooms"]["built_in"] is True
    assert sets["delicious"]["place"] is None
    assert sets["ewt"]["licence"] == "CC BY-SA 4.0"
    assert sets["redkitchen"]["place"].endswith("data/denoising/redkitchen")
    attempts = read("spen compare mine.npz --ways feedforward,end-to-end --updates 200 --json")
    assert [a["way"] for a in attempts] == ["feedforward", "end-to-end"]


def test_the_other_answers_for_programs(answers: dict[str, Answer]) -> None:
    """--json of commands whose examples do not show it; the runs are there, so nothing is trained."""
    assert answers
    table = json.loads(spen(*smaller("spen reproduce table2 --quick --rows local,spen"), "--json").out)
    assert {row["row"] for row in table["rows"]} >= {"local", "spen"}
    roles = json.loads(spen("evaluate", "runs/builtin/spen/seed-0", "--split", "dev", "--json").out)
    assert set(roles["f1"]) == {"argmax", "greedy", "ad3"}
    sets = json.loads(spen("evaluate", "runs/bibtex/bibtex-end-to-end/seed-0", "--split", "dev", "--json").out)
    assert set(sets["f1"]) == {"example", "micro", "macro"}
    written = json.loads(spen("predict", "dp-3", "frames", "-o", "again", "--json").out)
    assert written["written"] == ["again/a.png", "again/b.png"]
    made = json.loads(spen("data", "make", "ewt", "--json").out)
    assert made["sizes"]["train"] == 4
