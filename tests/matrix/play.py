"""Play one cell: start a daemon, let it be struck, start the next, until the ticket is done.

Acts as an operator does: starts the daemon again when it is gone, answers the question
when the ticket is held for it, and stops the daemon when nothing is left to do.
"""

import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Waiting

from runner.commands import Command, NotPossible, Verb
from runner.errors import RunnerError
from runner.events import Event
from runner.store import Rx, Store, effects, questions, runs, tickets
from runner.store.effects import OPEN, EffectRow
from runner.store.questions import NoQuestion, Question
from runner.store.runs import RunRow
from runner.store.tickets import Row
from tests.daemons import Daemon
from tests.matrix.daemon import strike
from tests.matrix.moments import Blow, Cell, Way
from tests.matrix.stage import ANSWER, TICKET, Stage
from tickets.ticket import Reason, State

LIMIT_S = 120.0
"""For a whole ticket with its blows."""
_LOOK_S = 0.05
_STRUCK = {-signal.SIGKILL, -signal.SIGTERM, 0}


@dataclass
class Start:
    """One start of a daemon."""

    at_us: int
    """When it was started."""
    ended_at_us: int = 0
    struck: bool = False
    before: list[Event] = field(default_factory=list)
    """The log when it started."""


@dataclass
class Played:
    """What there is to judge when the ticket is done."""

    cell: Cell
    stage: Stage
    starts: list[Start]
    left: list[str]
    """Processes that outlived the last daemon."""
    row: Row
    log: list[Event]
    """Of the ticket."""
    queue_log: list[Event]
    """Of the daemon and its queue."""
    runs: list[RunRow]
    effects: list[EffectRow]
    questions: list[Question]

    @property
    def blows(self) -> int:
        """How often a daemon was struck."""
        return sum(start.struck for start in self.starts)


class NeverDone(Exception):
    """The ticket did not come to its end, or a daemon ended that nobody had struck."""


def play(cell: Cell, root: Path) -> Played:
    """Play a cell on a stage in `root`, which has to be empty.

    Raises:
        NeverDone: See there; it holds what the daemons said.
    """
    with Stage.at(root) as stage:
        return _Player(cell, stage).play()


class _Player:
    """Plays one cell."""

    def __init__(self, cell: Cell, stage: Stage) -> None:
        self._cell, self._stage = cell, stage
        self._blows = list(cell.blows)
        self._starts: list[Start] = []
        self._deadline = time.monotonic() + LIMIT_S

    def play(self) -> Played:
        while True:
            blow = self._blows.pop(0) if self._blows else None
            daemon, start = self._start(blow)
            over = self._attend(daemon, start, blow)
            code = daemon.ends()
            start.ended_at_us = _now_us()
            start.struck = start.struck or (blow is not None and self._stage.was_struck)
            if code not in _STRUCK or (code and not start.struck):
                raise NeverDone(f"the daemon ended with {code}\n{self._said()}")
            if not start.struck:
                if over:
                    return self._collect()
                raise NeverDone(f"the daemon stopped by itself\n{self._said()}")

    def _start(self, blow: Blow | None) -> tuple[Daemon, Start]:
        if self._cell.fresh and self._starts:
            with suppress(NotPossible, RunnerError):
                self._stage.steer(Command(Verb.RETRY, TICKET, fresh=True))
        start = Start(_now_us(), before=self._stage.log(TICKET))
        self._starts.append(start)
        return self._stage.launch(blow), start

    def _attend(self, daemon: Daemon, start: Start, blow: Blow | None) -> bool:
        """Look after a daemon until it ends; return whether nothing was left to do."""
        falls_at = time.monotonic() + blow.after_s if blow is not None and blow.moment is None else None
        over = False
        while daemon.is_running():
            if time.monotonic() > self._deadline:
                raise NeverDone(f"not done within {LIMIT_S} s\n{self._said()}")
            if falls_at is not None and time.monotonic() >= falls_at:
                start.struck, falls_at = True, None
                strike(blow.way if blow else Way.DAEMON, daemon.pid, str(self._stage.home.path))
                continue
            if not over and self._look():
                over = True
                daemon.signal(signal.SIGTERM)
            wait_s = _LOOK_S if falls_at is None else max(min(falls_at - time.monotonic(), _LOOK_S), 0)
            Waiting().wait(wait_s)
        return over

    def _look(self) -> bool:
        """Answer what is asked; return whether the ticket is done and nothing is open."""
        seen = self._stage.reads(_seen)
        if seen is None:
            return False
        row, open_effects = seen
        if row.ticket.state is State.HELD and not open_effects:
            if row.ticket.reason is not Reason.QUESTION:
                raise NeverDone(f"held ({row.ticket.reason}): {row.ticket.note}\n{self._said()}")
            with suppress(NoQuestion, RunnerError):
                self._stage.steer(Command(Verb.ANSWER, TICKET, text=ANSWER))
        file = self._stage.config.queue_directory / "done" / f"{TICKET}.md"
        return row.ticket.state is State.DONE and not open_effects and file.exists()

    def _collect(self) -> Played:
        stage = self._stage
        left = [f"{each.name} {each.pid}" for each in stage.processes()]
        store = Store.open(stage.config.database_url, read_only=True)
        try:
            return Played(
                cell=self._cell,
                stage=stage,
                starts=self._starts,
                left=left,
                row=store.read(tickets.get, TICKET),
                log=stage.log(TICKET),
                queue_log=stage.log(""),
                runs=store.read(runs.runs_of, TICKET),
                effects=store.read(effects.effects, ticket=TICKET),
                questions=store.read(questions.questions_of, TICKET),
            )
        finally:
            store.close()

    def _said(self) -> str:
        logs = sorted(self._stage.root.glob("daemon-*.log"))
        calls = [(each.turn, each.complete, each.status) for each in self._stage.calls]
        return "\n".join([f"calls: {calls}", *(f"{path.name}:\n{path.read_text()[-6000:]}" for path in logs)])


def _seen(rx: Rx) -> tuple[Row, list[EffectRow]] | None:
    if TICKET not in tickets.states(rx):
        return None
    return tickets.get(rx, TICKET), effects.effects(rx, ticket=TICKET, states=OPEN)


def _now_us() -> int:
    return time.time_ns() // 1000
