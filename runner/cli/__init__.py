"""The command line: parse, build the parts, call one function, return its exit code.

Imports inside the commands, so that one that only reads needs neither the SDK nor git.
"""

import os
import signal
import sys
from io import TextIOWrapper
from typing import NoReturn

import typer

from runner.cli import begin, look, steer, upkeep
from runner.cli.common import app
from runner.errors import ConfigError, Exit, RunnerError

__all__ = ["app", "begin", "look", "main", "steer", "upkeep"]

_MISUSED = 2
"""What the parser leaves with when it cannot make sense of the words."""


def main() -> None:
    """Run the command line and exit."""
    _open_what_is_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 still gets its table
    try:
        try:
            app()
        finally:
            typer.echo(nl=False)  # and so flush, while a failure can still be told
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # typer and rich make an exit of it
            _end_as_its_reader_did()
        sys.exit(Exit.USAGE if left.code == _MISUSED else left.code)
    except BrokenPipeError:
        _end_as_its_reader_did()
    except (RunnerError, ExceptionGroup, PermissionError) as error:
        foreseen = _foreseen(error)
        if foreseen is None:
            raise
        sys.stderr.write(f"ticket-runner: {foreseen}\n")
        sys.exit(foreseen.exit_code)


def _open_what_is_closed() -> None:
    """Give standard streams that whoever started us has closed: else the next files we open would be they."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  standard error
        os.set_inheritable(number, True)  # noqa: FBT003  it has no other name
    os.close(number)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115  as Python opens them
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _end_as_its_reader_did() -> NoReturn:
    """End as any program does in whose pipe nobody reads any more: in silence, by the signal that Python ignores."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.raise_signal(signal.SIGPIPE)
    raise AssertionError  # it is not blocked


def _foreseen(error: Exception) -> RunnerError | None:
    """Return what a daemon's task groups have wrapped, if that is one thing that we foresee."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, PermissionError):
        return ConfigError(f"{error.filename}: permission denied: run this as the user who owns the state directory")
    return error if isinstance(error, RunnerError) else None
