"""A table of one's own, by the command line alone: train, evaluate, predict, export, open again."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from spen.models import find_model
from spen.tasks.multilabel.opened import LabelSetPredictor
from tests.cli.world import spen

SMALL = [
    *(
        f"--set={s}"
        for s in ("hidden=16", "network=4", "pretrain_rate=0.03", "pretrain_epochs=20", "epochs=2", "steps=2")
    ),
    "--device=cpu",
]
RUN = "runs/songs/labels/seed-0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, and a run that learned it."""
    place = tmp_path_factory.mktemp("songs")
    random = np.random.default_rng(0)
    lines = ["tempo,key,happy,calm"]
    for i in range(150):
        tempo, key = random.normal(120, 20), random.choice(["C", "D", "E"])
        lines.append(f"{tempo:.1f},{'' if i == 3 else key},{int(tempo > 120)},{int(key == 'C')}")
    (place / "songs.csv").write_text("\n".join(lines) + "\n")
    (place / "new.csv").write_text("key,tempo\nC,190\nE,40\n")
    (place / "elsewhere").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        answer = spen("train", "labels", "--data", "songs.csv", "--targets", "happy,calm", *SMALL)
    assert answer.status == 0, answer.err
    assert answer.out.startswith(f"{RUN}: best development example F1 ")
    assert "songs.csv: 1 missing values in the column 'key'" in answer.err
    return place


def test_the_whole_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder / "elsewhere")
    assert spen("export", f"../{RUN}", "kept").status == 0
    said = [json.loads(spen("evaluate", model, "--json").out) for model in (f"../{RUN}", "kept")]
    assert said[0]["f1"] == said[1]["f1"]
    assert said[0]["examples"] == 30
    assert said[0]["f1"]["micro"] > 80
    reached = json.loads((folder / RUN / "result.json").read_text())
    assert reached["test"] == said[0]["f1"]
    assert json.loads(spen("evaluate", "kept", "--split", "train", "--json").out)["examples"] == 108
    for model, out in ((f"../{RUN}", "a.csv"), ("kept", "folder/b.csv")):
        assert spen("predict", model, "../new.csv", "-o", out).out == f"{out}\n"
    text = Path("a.csv").read_text()
    assert text == Path("folder/b.csv").read_text() == spen("predict", "kept", "../new.csv").out
    rows = list(csv.DictReader(text.splitlines()))
    assert list(rows[0]) == ["happy", "calm", "happy probability", "calm probability"]
    assert [(row["happy"], row["calm"]) for row in rows] == [("1", "1"), ("0", "0")]
    assert float(rows[0]["happy probability"]) > said[0]["threshold"] > float(rows[1]["happy probability"])


def test_another_table_is_scored_as_a_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "more.csv").write_text("calm,happy,key,tempo\n1,1,C,190\n0,0,E,40\n")
    answer = spen("evaluate", RUN, "--data", "more.csv")
    assert answer.out.startswith(f"{RUN} on 2 examples of more.csv, threshold ")
    assert "example  F1  50.00" in answer.out  # the second row has no label, which counts as 0


def test_a_table_of_any_scale_becomes_an_onnx_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(folder)
    answer = spen("export", RUN, "songs.onnx")
    assert answer.status == 0, answer.err
    (y,) = onnxruntime.InferenceSession("songs.onnx").run(None, {"x": np.array([[190, 1, 0, 0]], np.float32)})
    (row,) = csv.DictReader(spen("predict", RUN, "new.csv").out.splitlines()[:2])
    assert y[0].tolist() == pytest.approx([float(row["happy probability"]), float(row["calm probability"])], abs=1e-5)


def test_the_onnx_file_says_how_to_use_it_as_the_page_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.chdir(folder)
    (folder / "new-songs.csv").write_text("key,tempo\nC,190\nE,40\n,\n")
    assert spen("export", RUN, "songs.onnx").status == 0
    about = onnxruntime.InferenceSession("songs.onnx").get_modelmeta().custom_metadata_map
    settings = json.loads((folder / RUN / "config.json").read_text())["settings"]
    assert json.loads(about["inputs"]) == ["tempo", "key=C", "key=D", "key=E"]
    assert json.loads(about["missing"]) == [settings["schema"]["inputs"]["tempo"], 0, 0, 0]
    assert json.loads(about["labels"]) == ["happy", "calm"]
    assert float(about["threshold"]) == settings["threshold"]
    page = Path(__file__).parents[3] / "docs" / "export.md"
    (code,) = (
        c for c in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) if "songs" in c
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout
    rows = csv.DictReader(spen("predict", RUN, "new-songs.csv").out.splitlines())
    assert shown.splitlines() == [str([name for name in ("happy", "calm") if row[name] == "1"]) for row in rows]


def test_a_table_that_has_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = spen("evaluate", RUN, "--json").out
    moved = Path("songs.csv").rename("elsewhere/moved.csv")
    answer = spen("evaluate", RUN)
    assert answer.status == 2
    assert "songs.csv, which runs/songs/labels/seed-0 was trained on, is not here: give --data with its" in answer.err
    after = spen("evaluate", RUN, "--data", str(moved), "--json").out
    assert json.loads(after)["f1"] == json.loads(before)["f1"], "its test rows, as before"
    moved.rename("songs.csv")


def test_a_table_that_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = Path("songs.csv").read_text()
    Path("songs.csv").write_text(before + "99.0,C,0,1\n")
    try:
        answer = spen("evaluate", RUN)
        assert answer.status == 2
        assert "songs.csv has changed since runs/songs/labels/seed-0 was trained, so its test rows are" in answer.err
        assert json.loads(spen("evaluate", RUN, "--data", "songs.csv", "--json").out)["examples"] == 151
    finally:
        Path("songs.csv").write_text(before)


def test_an_advised_command_quotes_a_name_with_a_blank(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    opened = LabelSetPredictor.open(find_model(RUN), "cpu")
    opened.recipe = replace(opened.recipe, data="my songs.csv")
    Path("my songs.csv").write_text(Path("songs.csv").read_text() + "99.0,C,0,1\n")
    with pytest.raises(ValueError, match="score all of its rows with --data 'my songs.csv', or train again"):
        opened.evaluate("test")


def test_a_table_from_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("new.csv").read_bytes()), encoding="utf-8"))
    assert spen("predict", RUN, "-").out == spen("predict", RUN, "new.csv").out != ""


def test_other_formats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    np.savez("mine.npz", x=np.eye(20, 4), y=np.eye(20, 2))
    assert spen("train", "labels", "--data", "mine.npz", *SMALL).status == 0
    np.savez("new.npz", x=np.eye(3, 4))
    assert spen("predict", "runs/mine/labels/seed-0", "new.npz", "new.npz", "-o", "answers").status == 0
    assert len(Path("answers/new.csv").read_text().splitlines()) == 4
    assert (
        spen("compare", "songs.csv", "--targets", "happy,calm", "--ways", "feedforward", "--updates", "1").status == 0
    )


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("labels learns from a table of yours: give --data FILE and --targets with its labels", "train labels"),
        ("songs.csv does not say which columns are labels: give --targets", "train labels --data songs.csv"),
        ("songs.csv has no column 'sad', which --targets", "train labels --data songs.csv --targets happy,sad"),
        ("--targets has 'calm' twice: name each target once", "train labels --data songs.csv --targets calm,calm"),
        ("the target 'tempo' has the values", "train labels --data songs.csv --targets tempo"),
        ("gone.csv: no such file or directory", "train labels --data gone.csv --targets happy"),
        ("--targets is an option of multilabel, not of denoising", "train dp-3 --targets happy"),
        ("songs.csv lacks the columns 'x0', 'x1', 'x2' and 1 more, which", "predict runs/mine/labels/seed-0 songs.csv"),
        (
            "new.csv would be overwritten by the answer for new.csv; give another -o",
            f"predict {RUN} new.csv -o new.csv",
        ),
    ],
)
def test_a_mistake_ends_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, arguments: str) -> None:
    monkeypatch.chdir(folder)
    answer = spen(*arguments.split())
    assert answer.status == 2, answer
    assert line in answer.err
    assert len(answer.err.strip().splitlines()) == 1
