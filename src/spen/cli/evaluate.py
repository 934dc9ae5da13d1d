"""spen evaluate."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from spen.cli.catalogue import complete_data, complete_model
from spen.cli.options import Json, OnDevice, Split, check_device, describe_model, open_roles
from spen.cli.terminal import Watched, answer, counting, examples, working

EXAMPLES = examples(
    "spen evaluate dp-3 --every 10",
    "spen evaluate runs/rooms/dp-3/seed-0 --split dev --json",
    "spen evaluate runs/builtin/spen/seed-0",
    "spen evaluate runs/bibtex/bibtex-end-to-end/seed-0",
)


def evaluate(
    model: Annotated[
        str,
        typer.Argument(help="A run folder, or a model shipped with the package (dp-3).", autocompletion=complete_model),
    ],
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    every: Annotated[int, typer.Option(min=1, help="Denoising: score every n-th frame only.")] = 1,
    data: Annotated[
        str, typer.Option(help="Another data set than the one it was trained on.", autocompletion=complete_data)
    ] = "",
    device: OnDevice = "cpu",
    as_json: Json = False,
) -> None:
    """The task's metrics of a run, or of a shipped model, on a split."""
    recipe = describe_model(model)
    task = recipe.get("task")
    if every > 1 and task != "denoising":
        raise ValueError(f"--every is for frames; a run of {task} is scored whole")
    if task == "denoising":
        result, lines = _denoising(model, recipe, split, every, data, device)
    elif task == "srl":
        result, lines = _roles(model, split, data, device)
    elif task == "multilabel":
        if device != "cpu":
            raise ValueError("label sets are scored on the CPU; leave --device out")
        result, lines = _label_sets(model, split, data)
    else:
        raise ValueError(f"{model} is a run of the task {task!r}, which this version of spen does not know")
    if as_json:
        answer({"model": model, "task": task, "split": split, **result})
    else:
        typer.echo("\n".join(lines))


def _denoising(
    model: str, recipe: dict[str, Any], split: str, every: int, data: str, device: str
) -> tuple[dict[str, Any], list[str]]:
    from spen.tasks.denoising.recipes import find_regime

    regime = find_regime(data or recipe.get("data", "rooms"))
    check_device(device)
    with working("loading"):
        from spen.tasks.denoising.experiment import evaluate as score  # torch comes after the user's mistakes
        from spen.tasks.denoising.experiment import open_splits
        from spen.tasks.denoising.predict import load_model

        frames = getattr(open_splits(regime, quick=recipe.get("quick", False)), split)
        denoise = load_model(model, device)
    with counting("frames", -(-len(frames) // every)) as done:
        result = score(denoise, Watched(frames, done), every=every)
    lines = [
        f"{model} on {int(result['frames'])} {split} frames of {regime.name}",
        f"  PSNR          {result['psnr']:8.2f} dB",
        f"  on surfaces   {result['surface_psnr']:8.2f} dB",
        f"  in holes      {result['hole_rmse_mm']:8.0f} mm RMSE",
        f"  a frame takes {result['seconds_per_frame']:8.3f} s",
    ]
    return {"data": regime.name, **result}, lines


def _roles(model: str, split: str, data: str, device: str) -> tuple[dict[str, Any], list[str]]:
    check_device(device)
    with working("reading sentences and labelling them"):
        from dataclasses import replace

        from spen.tasks.srl.encoding import encode
        from spen.tasks.srl.evaluate import evaluate as score
        from spen.tasks.srl.predict import Labeller

        labeller = Labeller.open(model, device=device)
        name, splits, _ = open_roles(data or labeller.data.name.partition("-")[0])
        sentences = splits[split]
        encoded = {split: encode(sentences, labeller.data.rules, labeller.data.space)}
        prepared = replace(labeller.data, encoded=encoded, splits={split: sentences})
        result = score(
            labeller.model,
            prepared,
            split,
            decoders=("argmax", "greedy", "ad3"),
            feedforward=labeller.feedforward,
        )
    lines = [f"{model} on {len(sentences)} {split} sentences of {name}, {result.predicates} predicates"]
    for decoder, label in (("argmax", "argmax"), ("greedy", "+ H"), ("ad3", "+ AD³")):
        p, r, f1 = (part[decoder] for part in (result.precision, result.recall, result.f1))
        lines.append(f"  {label:8s} F1 {f1:6.2f}   precision {p:6.2f}   recall {r:6.2f}")
    lines.append(f"  {result.violations} constraints violated before rounding")
    return {"data": name, "sentences": len(sentences), **result.as_dict()}, lines


def _label_sets(model: str, split: str, data: str) -> tuple[dict[str, Any], list[str]]:
    if split == "train":
        raise ValueError("label sets are scored on dev or test: the threshold is tuned on dev")
    with working("reading the data and predicting"):
        from spen.tasks.multilabel.data import load
        from spen.tasks.multilabel.train import evaluate as score
        from spen.tasks.multilabel.train import load_run

        recipe, trained, splits = load_run(model, load(data) if data else None)
        result = score(recipe, trained, splits)
    reached = (result.dev if split == "dev" else result.test)._asdict()
    count = len(getattr(splits, split))
    lines = [f"{model} on {count} {split} examples of {data or recipe.data}, threshold {result.threshold:.2f}"]
    lines += [f"  {name:8s} F1 {value:6.2f}" for name, value in reached.items()]
    return {"data": data or recipe.data, "examples": count, "threshold": result.threshold, "f1": reached}, lines
