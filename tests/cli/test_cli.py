"""The command line as a process: how fast it answers, what a terminal sees, Ctrl-C, completion, tracebacks."""

from __future__ import annotations

import io
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

import pytest

from spen.cli import main
from tests.cli import world

CODE = "import sys; sys.argv[0] = 'spen'; from spen.cli import main; main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", CODE, *arguments]


def spen(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**world.environment(), **variables}
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=300, cwd=cwd, env=environment, check=False
    )


# ── warnings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_warnings_of_training_are_shown_as_lines_alone() -> None:
    code = (
        "import warnings, spen.cli, spen.cli.app\n"
        "from spen.training import InertEnergyWarning\n"
        "def app(**_):\n"
        "    warnings.warn('a term is inert', InertEnergyWarning)\n"
        "    warnings.warn('something else')\n"
        "spen.cli.app.app = app\n"
        "spen.cli.main()\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "inert" not in answer.stderr
    assert "UserWarning: something else" in answer.stderr


# ── quick answers ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_names_every_recipe() -> None:
    answer = world.spen("list")
    assert answer.status == 0
    assert re.search(r"dp-3\s+40\.40\s+deep prior, 3 steps", answer.out)
    assert re.search(r"spen\s+80\.70", answer.out)
    assert re.search(r"bibtex-deep-value\s+44\.70\s+bibtex: deep value network", answer.out)


def test_light_commands_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from spen.cli import main\n"
        "for line in ('list', '--help', 'train --help', 'view --help', 'data list'):\n"
        "    sys.argv = ['spen', *line.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        "    heavy = 'torch numpy scipy matplotlib pytorch_lightning gradio sklearn spen.viewer'.split()\n"
        "    print('imported by', line, [m for m in heavy if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [line for line in result.stdout.splitlines() if line.startswith("imported by ")]
    assert len(found) == 5
    assert all(line.endswith("[]") for line in found), found


def test_light_commands_answer_at_once() -> None:
    """Half a second, of processor time: what a quiet machine takes, whatever else this one does meanwhile."""

    def seconds(argument: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        spen(argument)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    for argument in ("list", "--help"):
        assert any(seconds(argument) < 0.5 for _ in range(3)), argument


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", world.spen("--version").out)


def test_no_arguments_print_the_help() -> None:
    for arguments in ((), ("data",)):
        answer = world.spen(*arguments)
        assert answer.status == 2
        assert "Usage: spen" in answer.out + answer.err
        assert "spen: " not in answer.err


# ── mistakes, as a process ends ───────────────────────────────────────────────────────────────────────────────────────


def test_a_mistake_is_one_line_and_debug_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = world.spen("evaluate", "nowhere")
    assert answer.status == 2
    assert answer.err.count("\n") == 1
    with pytest.raises(ValueError, match="'nowhere' is neither a run folder"):
        world.spen("--debug", "evaluate", "nowhere")
    result = spen("evaluate", "nowhere", "--debug", cwd=tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_the_unexpected_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from spen.tasks.srl import score

    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(score, "score_files", broken)
    answer = world.spen("score", "a", "b")
    assert answer.status == 1
    assert answer.err == "spen: KeyError: 'a bug'; the same command with --debug shows where\n"


def test_a_reader_who_has_had_enough_is_no_mistake() -> None:
    pipe = subprocess.Popen(command("list", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert pipe.stdout is not None
    assert pipe.stderr is not None
    pipe.stdout.close()
    assert "Traceback" not in pipe.stderr.read()
    pipe.stderr.close()
    assert pipe.wait(timeout=60) in (0, 1)


# ── terminals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def terminal() -> Iterator[tuple[int, list[bytes]]]:
    """The end of a terminal that a program writes to, and what has arrived at the other end."""
    ours, theirs = pty.openpty()
    seen: list[bytes] = []

    def listen() -> None:
        with suppress(OSError):  # the other end is closed
            while chunk := os.read(ours, 4096):
                seen.append(chunk)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield theirs, seen
    finally:
        os.close(theirs)
        listener.join()
        os.close(ours)


def test_a_terminal_sees_progress_and_a_pipe_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.build(tmp_path)
    world.shrink(monkeypatch, tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    arguments = ("predict", "dp-3", "frames", "-o", "clean")
    with terminal() as (end, seen), open(os.dup(end), "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        out = io.StringIO()
        monkeypatch.setattr(sys, "argv", ["spen", *arguments])
        with redirect_stdout(out), pytest.raises(SystemExit) as ended:
            main()
        monkeypatch.undo()
    text = b"".join(seen).decode()
    assert ended.value.code == 0
    assert out.getvalue() == "clean/a.png\nclean/b.png\n"
    assert "\x1b[" in text
    assert re.search(r"images.*2/2", text)
    world.shrink(monkeypatch, tmp_path)
    assert world.spen(*arguments) == world.Answer(0, out.getvalue(), "")


def test_colours_are_for_terminals() -> None:
    result = spen("train", "--help")
    assert "Usage" in result.stdout
    assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" in spen("--help", FORCE_COLOR="1").stdout


# ── Ctrl-C ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hears_ctrl_c() -> Iterator[None]:
    """A shell's job in the background is deaf to Ctrl-C, and so is every process that it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_leaves_a_run_that_the_same_command_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, where training shows a bar; interrupted within a stage, then the same command is given again."""
    world.build(tmp_path)
    changes = ("epochs=40", "pretrain_epochs=1", "hidden=8", "network=8", "batch_size=4")
    arguments = ["train", "bibtex-end-to-end", "--out", "run", *(f"--set={change}" for change in changes)]
    environment = {**world.environment(), "SPEN_DATA": "data", "TERM": "xterm-256color"}
    metrics = tmp_path / "run" / "metrics.jsonl"
    with terminal() as (end, seen):
        process = subprocess.Popen(
            command(*arguments), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=end, text=True
        )
        last = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count("\n") >= 4):
            assert process.poll() is None, seen
            assert time.monotonic() < last
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    screen = b"".join(seen).decode()
    assert process.returncode == 130
    assert out == "", "the bar is on stderr"
    assert "Epoch 0/39" in screen
    (line,) = [line.strip() for line in screen.splitlines() if "spen: " in line]
    assert "spen: interrupted; run keeps what is done: `spen train bibtex-end-to-end --out run --set=epochs=40" in line
    assert line.endswith("--set=batch_size=4` goes on from there")
    assert 4 <= metrics.read_text().count("\n") < 41
    world.shrink(monkeypatch, tmp_path)
    answer = world.spen(*arguments)
    assert answer.status == 0, answer.err
    assert answer.out.startswith("run: best development example F1 ")
    assert metrics.read_text().count("\n") == 41, "one line an epoch: none is done twice, none is left out"


def test_out_of_time_is_status_3_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.build(tmp_path)
    world.shrink(monkeypatch, tmp_path)
    options = [*world.SMALLER["spen train bibtex-"].split(), "--set", "epochs=500"]
    answer = world.spen("train", "bibtex-end-to-end", "--out", "run", "--seconds", "1", *options)
    assert answer.status == 3
    assert answer.out == "time is up; the same command goes on with run\n"
    assert (tmp_path / "run" / "run.json").is_file()


# ── completion ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("spen ev", {"evaluate"}),
        ("spen train dp", {"dp-20", "dp-3", "dp-ssvm", "dp-icnn", "dp-icnn+"}),
        ("spen train srl/", {"srl/spen-best"}),
        ("spen evaluate dp", {"dp-3"}),
        ("spen evaluate dp-3 --split ", {"train", "dev", "test"}),
        ("spen train dp-3 --data r", {"rooms", "rooms-any", "reuters", "redkitchen", "redkitchen-half"}),
        ("spen data make ", {"7scenes", "ewt", "conll2005"}),
    ],
)
def test_the_shell_completes(line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_SPEN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(line.count(" ")))
    answer = world.spen()
    assert set(answer.out.split()) == expected, answer.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_shown_and_installed(shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "SHELL": f"/bin/{shell}"}
    for name, value in {**home, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}.items():
        monkeypatch.setenv(name, value)
    shown = world.spen("--show-completion", shell)
    assert shown.status == 0, shown.err
    assert "_SPEN_COMPLETE" in shown.out
    installed = world.spen("--install-completion", shell)
    assert installed.status == 0, installed.err
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "_SPEN_COMPLETE" in path.read_text()]
    assert written
