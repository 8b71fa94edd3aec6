"""The program that becomes the Claude CLI, or the shell of a command.

Run as `python -I -S launcher.py ARGUMENTS` by a child of the daemon. It cuts what
the daemon would hand down (signals, process group, environment), ties its life to
the daemon's, and execs: same pid, same stdio, same exit code. Its one invariant:
what it execs has exactly the environment that it was told, and dies with the daemon
unless it was told not to.

Knows the one variable that tells it what to do. It runs before each CLI, so it is
standard library only and is never imported.
"""

import ctypes
import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypedDict

VARIABLE = "TICKET_RUNNER_LAUNCH"
PR_SET_PDEATHSIG = 1  # linux/prctl.h
OOM_SCORE_ADJ = "500"  # a command of an agent that eats the memory dies before the daemon does
FAILED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127  # as with env(1), timeout(1) and the like


class Launch(TypedDict):
    """What children.py says, as JSON."""

    program: str
    parent: int
    death_signal: int
    new_session: bool
    pid_variable: str
    environment: dict[str, str]
    inherit: list[str]


def main() -> NoReturn:
    """Become the program, or end with 125, 126 or 127 and a line that says why."""
    text = os.environ.get(VARIABLE)
    if text is None:
        fail(FAILED, f"{VARIABLE} is not set: this program is started by ticket-runner only")
    launch: Launch = json.loads(text)
    restore_signals()
    die_with_parent(launch["parent"], launch["death_signal"])
    with suppress(PermissionError):  # it leads a group already
        os.setsid() if launch["new_session"] else os.setpgid(0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ)
    environment = {name: os.environ[name] for name in launch["inherit"] if name in os.environ}
    environment |= launch["environment"]
    environment[launch["pid_variable"]] = f"{os.getpid()} {launch['parent']}"
    become(launch["program"], environment)


def restore_signals() -> None:
    """Give every signal its default; Python ignores SIGPIPE, and what is ignored stays so across exec."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def die_with_parent(parent: int, death_signal: int) -> None:
    """Ask for `death_signal` (0: none) at the parent's end, and end now if that end has been already."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        fail(FAILED, f"prctl(PR_SET_PDEATHSIG): {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        fail(FAILED, f"the parent is {os.getppid()} and not {parent}: the daemon is gone")


def become(program: str, environment: dict[str, str]) -> NoReturn:
    """Exec `program` with our own arguments."""
    try:
        os.execve(program, [program, *sys.argv[1:]], environment)  # noqa: S606  it is what we are for
    except FileNotFoundError:
        fail(NOT_FOUND, f"{program} does not exist, or what its first line names does not")
    except OSError as error:
        fail(NOT_EXECUTABLE, f"{program} cannot be run: {error.strerror}")


def say(line: str) -> None:
    """Write a line to stderr."""
    print(f"ticket-runner launcher: {line}", file=sys.stderr, flush=True)  # noqa: T201  stderr is all that it has


def fail(code: int, line: str) -> NoReturn:
    """Say why and end."""
    say(line)
    sys.exit(code)


if __name__ == "__main__":
    main()
