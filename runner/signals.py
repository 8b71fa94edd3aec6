"""What the daemon does when it is told to stop: drain, then interrupt, then leave at once.

First TERM, INT or HUP: no new ticket, running ones go on for a while; second, or QUIT:
interrupt them now; third: exit 70 and let the next start pick up. USR1 shows stacks.
"""

import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import anyio
from anyio.abc import TaskStatus

from runner import log
from runner.errors import Exit

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
_INTERRUPT, _LEAVE = 2, 3


@dataclass(frozen=True, slots=True)
class Ladder:
    """The steps of a stop."""

    drain: Callable[[], None]
    interrupt: Callable[[], None]
    running: Callable[[], Sequence[str]]
    """The tickets that are worked on."""
    drain_s: float
    """Between the first step and the second, if nobody asks for it before."""
    is_last: bool = False
    """The process ends then, and heeds no signal any more: its exit code is to say how the daemon ended."""

    async def obey(self, *, task_status: TaskStatus[None]) -> None:
        """Wait for signals until cancelled; started once none can be missed."""
        try:
            with anyio.open_signal_receiver(*_SIGNALS) as signals:
                task_status.started()
                await self._climb(signals)
        finally:
            for number in _SIGNALS if self.is_last else ():
                signal.signal(number, signal.SIG_IGN)

    async def _climb(self, signals: AsyncIterator[signal.Signals]) -> None:
        steps = 0
        async with anyio.create_task_group() as timer:
            async for number in signals:
                if number is signal.SIGUSR1:
                    _show_stacks()
                    continue
                steps = max(steps + 1, _INTERRUPT if number is signal.SIGQUIT else 1)
                self._say(number, steps)
                self.drain()
                if steps >= _LEAVE:
                    os._exit(Exit.FORCED)
                elif steps == _INTERRUPT:
                    self.interrupt()
                else:
                    timer.start_soon(self._interrupt_later)

    def _say(self, number: signal.Signals, step: int) -> None:
        first = {"drain_s": self.drain_s, "again": "interrupts them now"}
        what = first if step < _INTERRUPT else {"again": "leaves at once"}
        log.warn("daemon.stopping", signal=number.name, step=step, running=[*self.running()], **what)

    async def _interrupt_later(self) -> None:
        await anyio.sleep(self.drain_s)
        self.interrupt()


def _show_stacks() -> None:
    for thread, frame in sys._current_frames().items():  # noqa: SLF001  the documented way to see all threads
        sys.stderr.write(f"thread {thread}\n{''.join(traceback.format_stack(frame))}\n")
