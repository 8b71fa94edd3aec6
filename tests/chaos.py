"""Daemons that share one store, and somebody who kills and freezes them at random moments.

`python -m tests.chaos` forks the daemons, each with a home of its own, and starts a new
one in the home of each that died. It ends when it has killed and frozen as often as it
was told and the daemons have then finished everything, and prints what it did. What a
daemon does is in `daemons_of_chaos.py`.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from threading import Event
from time import monotonic

import anyio
import psycopg  # noqa: F401  # imported once, before the daemons are forked

from tests.daemons_of_chaos import LEASE_S, Arena, serve

_PR_SET_PDEATHSIG = 1
_PACE_S = (0.04, 0.25)
"""Between two blows."""


@dataclass
class Done:
    """What was done to the daemons."""

    started: int = 0
    killed: int = 0
    frozen: int = 0
    crashed: int = 0
    """Ended by themselves, and should not have."""


@dataclass
class Driver:
    """Starts, kills, freezes and thaws."""

    arena: Arena
    slots: int
    kills: int
    freezes: int
    done: Done = field(default_factory=Done)
    blows: int = 0
    running: dict[int, int] = field(default_factory=dict)
    """The slot of each process."""
    thaws: dict[int, float] = field(default_factory=dict)
    """When each frozen process goes on."""

    def __post_init__(self) -> None:
        self.rng = Random(self.arena.seed)

    def drive(self) -> None:
        """Be cruel for a while, then let them finish."""
        for slot in range(self.slots):
            self._start(slot)
        while self.done.killed < self.kills or self.done.frozen < self.freezes:
            Event().wait(self.rng.uniform(*_PACE_S))
            self._look()
            self._strike()
        self.arena.closing.touch()
        while self.running:
            self._look()
            Event().wait(0.02)

    def end(self) -> None:
        """Leave nobody behind."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _start(self, slot: int) -> None:
        self.done.started += 1
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                anyio.run(serve, self.arena, slot, self.done.started)
                code = 0
            except BaseException:  # noqa: BLE001  whatever it is, this process is a copy and must not go on
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        self.running[pid] = slot

    def _look(self) -> None:
        """Take note of who died or stopped, whoever did it; thaw whose time has come."""
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                break
            if os.WIFSTOPPED(status):
                self.done.frozen += 1
                self.thaws[pid] = monotonic() + LEASE_S * self.rng.uniform(1.2, 2.5)
                continue
            slot = self.running.pop(pid)
            self.thaws.pop(pid, None)
            if os.WIFSIGNALED(status):
                self.done.killed += 1
                self._start(slot)
            elif status != 0:
                self.done.crashed += 1
        for pid, at in list(self.thaws.items()):
            if monotonic() >= at:
                del self.thaws[pid]
                os.kill(pid, signal.SIGCONT)

    def _strike(self) -> None:
        """Kill or freeze one that is at work, in proportion to what is still to be done.

        At most two blows for each effect, so that on a slow machine something is going on as well.
        """
        if 2 * len(self.arena.told("sent")) < self.blows:
            return
        up = sorted(self.running.keys() & set(map(int, self.arena.told("up"))))
        if not up:
            return
        pid = self.rng.choice(up)
        kills, freezes = self.kills - self.done.killed, self.freezes - self.done.frozen
        if self.rng.random() * (max(kills, 0) + max(freezes, 0)) < max(kills, 0):
            self.blows += 1
            os.kill(pid, signal.SIGKILL)
        elif freezes > 0 and pid not in self.thaws and len(self.thaws) < self.slots // 2:
            self.blows += 1
            os.kill(pid, signal.SIGSTOP)


def main() -> int:
    """Drive daemons over a store, as the arguments say."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("directory", type=Path)
    for name in ("seed", "slots", "kills", "freezes"):
        parser.add_argument(f"--{name}", type=int, required=True)
    told = parser.parse_args()
    driver = Driver(Arena(told.url, told.directory, told.seed), told.slots, told.kills, told.freezes)
    try:
        driver.drive()
    finally:
        driver.end()
    sys.stdout.write(json.dumps(asdict(driver.done)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
