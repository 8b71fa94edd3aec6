"""A daemon that strikes itself at a moment: `runner.daemon.serve`, told of events as any log is.

What no event marks is seen from outside of the code: a comment's file by the audit
events of the interpreter, a deploy by the signal of its own command.
"""

import argparse
import ctypes
import os
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType

from runner import daemon, log, processes
from runner.config import Config
from runner.events import Event
from runner.home import Home
from tests.matrix.moments import Inside, Moment, Way

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def strike(way: Way, pid: int, home: str) -> None:
    """End a daemon in one of the ways; processes are found by their cookie and ended by their pid."""
    if way is Way.TREE:
        for found in processes.find(home):
            if found.pid != pid and processes.is_alive(found.pid, found.start):
                with suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGKILL)
    os.kill(pid, signal.SIGTERM if way is Way.TERM else signal.SIGKILL)


class Striker:
    """Counts what happens, and strikes once."""

    def __init__(self, moment: Moment, way: Way, home: Home, struck: Path) -> None:
        self._moment, self._way, self._home, self._struck = moment, way, home, struck
        self._comments = home.queue / "comments"
        self._counts: Counter[str] = Counter()

    def on_event(self, event: Event) -> None:
        """Be told of an event after its commit."""
        log.show(event)
        self._happens(None)
        self._happens(event.name)

    def on_audit(self, event: str, arguments: tuple[object, ...]) -> None:
        """Be told what the interpreter does: a directory of comments is opened to save that a comment is in it."""
        if event != "open" or not isinstance(arguments[0], str) or Path(arguments[0]).parent != self._comments:
            return
        if isinstance(arguments[2], int) and arguments[2] & os.O_TMPFILE != os.O_TMPFILE:  # which begins to write it
            self._happens(Inside.COMMENT_WRITTEN)

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """Be told by the command of a deploy, which knows when it tells."""
        self._counts["signals"] += 1
        self._strike()

    def _happens(self, name: object) -> None:
        self._counts[str(name)] += 1
        if self._moment.name == name and self._counts[str(name)] == self._moment.ordinal:
            self._strike()

    def _strike(self) -> None:
        self._struck.touch()
        strike(self._way, os.getpid(), str(self._home.path))


def main() -> int:
    """Serve until struck or told to stop."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nobody is left to tell it to stop
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--moment", type=Moment.parse)
    parser.add_argument("--way", type=Way, default=Way.DAEMON)
    parser.add_argument("--struck", type=Path)
    told = parser.parse_args()
    config = Config.load(told.config)
    if told.moment is None:
        return daemon.serve(config, once=False)
    striker = Striker(told.moment, told.way, Home.of(config), told.struck)
    sys.addaudithook(striker.on_audit)
    signal.signal(signal.SIGUSR2, striker.on_signal)
    return daemon.serve(config, once=False, on_event=striker.on_event)


if __name__ == "__main__":
    sys.exit(main())
