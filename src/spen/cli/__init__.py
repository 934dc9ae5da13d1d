"""The command line: one file a command. Importing this imports nothing heavy."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `spen`. A user's mistake ends in one line and exit status 2; --debug shows the traceback."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    from spen.cli.app import app

    try:
        app()
    except KeyboardInterrupt:
        print("spen: interrupted; give the same command again to go on where it stopped", file=sys.stderr)
        raise SystemExit(130) from None
    except (ValueError, OSError, ImportError) as error:
        if debug:
            raise
        print(f"spen: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
