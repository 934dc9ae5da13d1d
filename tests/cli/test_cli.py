"""The command line: help, examples, mistakes in one line, and speed of the light commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from spen.tasks.srl.conll2005 import write_props
from spen.tasks.srl.grammar import make_corpus

COMMANDS = [
    "list",
    "train",
    "evaluate",
    "predict",
    "reproduce",
    "score",
    "compare",
    "data list",
    "data fetch",
    "data make",
]


def spen(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'spen'; from spen.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, cwd=cwd, check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = spen(*command.split(), "--help")
    assert result.returncode == 0
    assert f"spen {command}" in re.sub(r"\s+", " ", result.stdout)


def test_list_names_every_recipe() -> None:
    result = spen("list")
    assert result.returncode == 0
    assert re.search(r"dp-3\s+40\.40\s+deep prior, 3 steps", result.stdout)
    assert re.search(r"spen\s+80\.70", result.stdout)
    entries = json.loads(spen("list", "--json").stdout)
    assert {"foe-20+", "dp-ssvm", "spen-best"} <= {e["name"] for e in entries}


def test_light_commands_import_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['spen', 'list']\n"
        "from spen.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('torch', 'numpy', 'scipy', 'matplotlib', 'pytorch_lightning') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("[]")


def test_light_commands_answer_at_once() -> None:
    """Half a second on a quiet machine; the best of several tries, since test machines are not quiet."""
    for command in (["list"], ["--help"]):
        times = []
        for _ in range(5):
            began = time.perf_counter()
            spen(*command)
            times.append(time.perf_counter() - began)
        assert min(times) < 1.0, command


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["train", "dp-4"], "spen: there is no denoising recipe 'dp-4'; there are bm3d"),
        (["train", "dp-3", "--data", "moon"], "spen: there is no denoising data set 'moon'"),
        (["train", "dp-3", "--set", "steps"], "spen: --set takes KEY=VALUE, not 'steps'"),
        (["train", "dp-3", "--set", "stops=3"], "spen: recipe dp-3 has no option 'stops'"),
        (["evaluate", "nowhere"], "spen: 'nowhere' is neither a run folder nor a model of the package (dp-3)"),
        (["evaluate", "."], "spen: . is not a run: it has no run.json"),
        (["evaluate", "nowhere", "--split", "all"], "spen: --split is train, dev or test, not 'all'"),
        (["predict", "dp-9", "x.png", "-o", "y.png"], "spen: 'dp-9' is neither a run folder nor a model"),
        (["reproduce", "table9"], "spen: there is no table 'table9' to reproduce; there are table1 and table2"),
        (["data", "fetch", "mnist"], "spen: there is no data set 'mnist' to fetch"),
        (["data", "make", "mnist", "--source", ".", "--out", "."], "spen: there is no data set 'mnist' to make"),
        (["data", "make", "conll2005", "--source", ".", "--out", "."], "spen: conll2005 has no words of its own"),
        (["data", "make", "ewt", "--source", ".", "--out", "."], "spen: . does not hold the two archives of EWT"),
    ],
    ids=lambda a: " ".join(a) if isinstance(a, list) else "",
)
def test_mistakes_end_in_one_line_and_status_2(arguments: list[str], line: str, tmp_path: Path) -> None:
    result = spen(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(line), result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_bad_images_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not an image")
    result = spen("predict", "dp-3", "text.png", "-o", "clean.png", cwd=tmp_path)
    assert result.returncode == 2
    assert "text.png" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = spen("--debug", "evaluate", "nowhere", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", spen("--version").stdout)


def test_score_prints_the_official_table(tmp_path: Path) -> None:
    corpus = make_corpus(5, seed=1)
    write_props(tmp_path / "gold.props", corpus)
    result = spen("score", "gold.props", "gold.props", cwd=tmp_path)
    assert result.returncode == 0
    assert re.search(r"Overall\s+\d+\s+0\s+0\s+100\.00\s+100\.00\s+100\.00", result.stdout)


def test_predict_writes_what_it_says(tmp_path: Path) -> None:
    Image.fromarray(np.full((20, 30), 2000, np.uint16)).save(tmp_path / "noisy.png")
    result = spen("predict", "dp-3", "noisy.png", "-o", "clean.png", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "clean.png"
    assert Image.open(tmp_path / "clean.png").size == (30, 20)


def test_train_and_evaluate_from_the_command_line(tmp_path: Path) -> None:
    options = [
        f"--set={k}={v}"
        for k, v in {"batches": 2, "per_epoch": 2, "batch_size": 1, "width": 4, "crop": "24x32"}.items()
    ]
    result = spen("reproduce", "table1", "--quick", "--rows", "tv", "--json", "--out", "t", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    whole = json.loads(result.stdout)
    assert (tmp_path / whole["report"]).exists()
    result = spen("train", "foe-3", "--out", "run", "--accelerator", "cpu", *options, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "best development PSNR" in result.stdout
    scores = json.loads(spen("evaluate", "run", "--every", "50", "--json", cwd=tmp_path).stdout)
    assert scores["frames"] == 2
    assert scores["data"] == "rooms"
    shipped = json.loads(spen("evaluate", "dp-3", "--split", "dev", "--every", "20", "--json", cwd=tmp_path).stdout)
    assert shipped["psnr"] > scores["psnr"]


def test_roles_are_reproduced_and_predicted_from_the_command_line(tmp_path: Path) -> None:
    result = spen("reproduce", "table2", "--quick", "--rows", "local", "--out", "t2", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "t2" / "report.html").exists()
    (run,) = {path.parent for path in (tmp_path / "t2" / "runs").rglob("srl.json")}
    text = "\n".join(
        [
            "1\tAnn\tAnn\tPROPN\tNNP\t_\t2\tnsubj\t_\t_",
            "2\tsold\tsell\tVERB\tVBD\t_\t0\troot\t_\t_",
            "3\tthe\tthe\tDET\tDT\t_\t4\tdet\t_\t_",
            "4\tboat\tboat\tNOUN\tNN\t_\t2\tobj\t_\t_",
        ]
    )
    (tmp_path / "in.conllu").write_text(text + "\n\n", encoding="utf-8")
    for style, expected in (("props", "(V*)"), ("json", '"predicates"'), ("pretty", "sold")):
        result = spen("predict", str(run), "in.conllu", "-o", f"out.{style}", "--format", style, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert expected in (tmp_path / f"out.{style}").read_text(encoding="utf-8")
    result = spen("predict", str(run), "in.conllu", "in.conllu", "-o", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("spen: roles are labelled one CoNLL-U file at a time, not 2")
