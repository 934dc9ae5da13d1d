"""spen predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from spen.cli.catalogue import complete_model
from spen.cli.options import Json, OnDevice, check_device, describe_model
from spen.cli.terminal import answer, counted, examples, working
from spen.tasks.denoising.kinds import Holes

Style = Literal["props", "json", "pretty"]
EXAMPLES = examples(
    "spen predict dp-3 noisy.png -o clean.png",
    "spen predict dp-3 depth.png -o filled.png --peak 4000",
    "spen predict runs/rooms/dp-3/seed-0 frames/ -o clean/",
    "spen predict srl-ewt sentences.conllu -o roles.props",
    "spen predict runs/builtin/spen/seed-0 sentences.conllu --format pretty",
)


def predict(
    model: Annotated[
        str,
        typer.Argument(
            help="A run folder, or a model shipped with the package (dp-3, srl-ewt).", autocompletion=complete_model
        ),
    ],
    inputs: Annotated[list[Path], typer.Argument(help="Images or folders of images; for roles, one CoNLL-U file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file for one input, else a folder; roles may do without.")
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(help="Images: the value that counts as 1 (255 for 8 bits, 4000 mm for 16, 1 for floats)."),
    ] = None,
    holes: Annotated[
        Holes | None,
        typer.Option(help="Images: zeros are no readings; never; or in 16-bit and float images alone (auto)."),
    ] = None,
    style: Annotated[Style | None, typer.Option("--format", help="Roles: how they are written (props).")] = None,
    device: OnDevice = "cpu",
    as_json: Json = False,
) -> None:
    """Denoise images (bit depth and units are kept, holes are filled), or label the roles of parsed sentences."""
    task = describe_model(model).get("task")
    if task not in ("denoising", "srl"):
        raise ValueError(f"{model} is a run of {task}; images and sentences are what can be predicted from files")
    missing = [path for path in inputs if not path.exists()]
    if missing:
        raise ValueError(f"{missing[0]} does not exist")
    check_device(device)
    if out is None and (task == "denoising" or as_json):
        raise ValueError("give --out, a file or a folder: where is the answer to go?")
    if task == "srl":
        written = _roles(model, inputs, out, peak, holes, style or "props", device)
    else:
        assert out is not None
        written = _images(model, inputs, out, peak, holes or "auto", style, device)
    if as_json:
        answer({"model": model, "written": written})
    else:
        for path in written:
            typer.echo(str(path))


def _images(
    model: str, inputs: list[Path], out: Path, peak: float | None, holes: Holes, style: str | None, device: str
) -> list[Path]:
    if style is not None:
        raise ValueError("--format is for roles; an image is written in the format that its file is named after")
    with working("loading"):
        from spen.tasks.denoising.images import list_images
        from spen.tasks.denoising.predict import denoise_files, load_model

        denoise = load_model(model, device)
    total = sum(len(list_images(path)) if path.is_dir() else 1 for path in inputs)
    return list(counted(denoise_files(denoise, inputs, out, peak, holes), total, "images"))


def _roles(
    model: str,
    inputs: list[Path],
    out: Path | None,
    peak: float | None,
    holes: Holes | None,
    style: Style,
    device: str,
) -> list[Path]:
    if peak is not None or holes is not None:
        raise ValueError(f"--{'holes' if peak is None else 'peak'} is for images; sentences have none")
    if len(inputs) != 1:
        raise ValueError(f"roles are labelled one CoNLL-U file at a time, not {len(inputs)}")
    with working("labelling"):
        from spen.tasks.srl.conllu import read_conllu
        from spen.tasks.srl.predict import Labeller, render
        from spen.tasks.srl.sentences import write_text

        labeller = Labeller.open(model, device=device)
        sentences = read_conllu(inputs[0]).sentences
        if not sentences:
            raise ValueError(f"{inputs[0]} holds no sentence; CoNLL-U has a line for each word")
        text = render(sentences, labeller(sentences), style)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write_text(out, text)
    predicates = sum(len(s.propositions) for s in sentences)
    typer.echo(f"{len(sentences)} sentences, {predicates} predicates", err=True)
    return [] if out is None else [out]
