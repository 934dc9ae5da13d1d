"""The command line, one file for each command. This module imports nothing that is slow to import."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any, NoReturn

MISTAKE, FAILURE, INTERRUPTED = 2, 1, 130


class Interrupted(Exception):
    """Ctrl-C, with a sentence that says how to resume."""


def main() -> None:
    """Run `spen`.

    A user's mistake ends in one line that says what to do and exit status 2, Ctrl-C in one line and 130, an unexpected
    error in one line and 1. `--debug`, anywhere on the command line, shows the traceback instead.
    """
    debug = "--debug" in sys.argv[1:]
    if debug:
        sys.argv.remove("--debug")
    warnings.showwarning = _show_warning
    try:
        from spen.cli.app import app

        # Not standalone: errors come here, so that all of them end in one line of the same form.
        status = app(prog_name="spen", standalone_mode=False)
    except BaseException as error:
        if debug and not isinstance(error, SystemExit):
            raise
        _end(error)
    if status == INTERRUPTED:
        _say("interrupted", INTERRUPTED)
    raise SystemExit(status if isinstance(status, int) else 0)


_default = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """As Python does, except for the warnings of training: these are lines below that of their epoch."""
    if category.__module__ != "spen.training.health":
        _default(message, category, *where, **more)


def _end(error: BaseException) -> NoReturn:
    """Print one line for an exception and exit with its status."""
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, Interrupted | KeyboardInterrupt):
        _say(str(error) or "interrupted", INTERRUPTED)
    if isinstance(error, BrokenPipeError):  # `spen list | head`: the reader has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(FAILURE)
    if hasattr(error, "format_message"):  # an option or an argument that the parser refuses
        _refused(error, error.format_message())
    if isinstance(error, FileExistsError | NotADirectoryError) and (file := _file_of(error.filename)):
        _say(f"{file} is a file, and a folder is needed: give another name", MISTAKE)
    if isinstance(error, OSError) and error.filename is not None and error.strerror:  # not "[Errno 2] …"
        _say(f"{error.filename}: {error.strerror.lower()}", MISTAKE)
    ours = type(error).__module__.startswith("spen.")
    if ours or isinstance(error, (ValueError, OSError, ImportError)):
        _say(str(error), MISTAKE)
    _say(f"{type(error).__name__}: {error}; the same command with --debug shows where", FAILURE)


def _file_of(path: Any) -> str:
    """The part of a path that is a file; empty if there is none."""
    while path and not os.path.lexists(path):
        path = os.path.dirname(path)
    return "" if not path or os.path.isdir(path) else str(path)


def _refused(error: BaseException, message: str) -> NoReturn:
    """The parser's message, and where the right options are listed."""
    if not message:  # no arguments at all: the help has been printed
        raise SystemExit(MISTAKE)
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "spen"
    message = message.replace("Value error, ", "").rstrip(". \n")
    _say(f"{message[0].lower()}{message[1:]}; see `{command} --help`", MISTAKE)


def _say(text: str, status: int) -> NoReturn:
    print(f"spen: {' '.join(text.split())}", file=sys.stderr)
    raise SystemExit(status)
