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

from runner.commands import Command, Verb
from runner.errors import RunnerError
from runner.events import Event
from runner.store import Rx, effects, log, questions, runs, tickets
from runner.store.effects import OPEN, EffectRow
from runner.store.questions import Question
from runner.store.runs import RunRow
from runner.store.tickets import Row
from tests.daemons import Daemon
from tests.matrix.daemon import strike
from tests.matrix.moments import Blow, Cell, Inside
from tests.matrix.stage import Stage
from tests.matrix.stories import STORIES, TICKET, Seen, Story
from tickets.ticket import Reason, State

LIMIT_S = 240.0
"""For a whole ticket with its blows."""
_LOOK_S = 0.05
_WAITS_FOR_THE_OPERATOR = {Reason.QUESTION, Reason.OPERATOR, Reason.APPROVAL, Reason.EFFECT}
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


class _Falls:
    """When a blow falls that comes from here and not from the daemon itself."""

    def __init__(self, blow: Blow, stage: Stage) -> None:
        self.blow, self._stage = blow, stage
        self._at = time.monotonic() + blow.after_s if blow.moment is None else None
        asked = blow.moment is not None and blow.moment.name is Inside.MODEL_ASKED
        self._calls = len(stage.calls) + blow.moment.ordinal if asked and blow.moment is not None else None

    @property
    def waits(self) -> bool:
        """Whether `within` takes time."""
        return self._at is not None or self._calls is not None

    def within(self, wait_s: float) -> bool:
        """Return whether it falls within some seconds, having waited for it."""
        if self._calls is not None:
            with suppress(TimeoutError):
                self._stage.server.wait_for(self._calls, wait_s)
                return True
        if self._at is not None:
            left_s = self._at - time.monotonic()
            Waiting().wait(max(min(left_s, wait_s), 0))
            return left_s <= wait_s
        return False


class NeverDone(Exception):
    """The ticket did not come to its end, or a daemon ended that nobody had struck."""


def play(cell: Cell, root: Path) -> Played:
    """Play a cell on a stage in `root`, which has to be empty.

    Raises:
        NeverDone: See there; it holds what the daemons said.
    """
    with Stage.of(root, story_of(cell)) as stage:
        return _Player(cell, stage).play()


def story_of(cell: Cell) -> Story:
    """Return the story of a cell."""
    return next(story for story in STORIES if story.name == cell.story)


class _Player:
    """Plays one cell."""

    def __init__(self, cell: Cell, stage: Stage) -> None:
        self._cell, self._stage, self._story = cell, stage, story_of(cell)
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
        if self._starts and self._cell.fresh:
            self._steer(Command(Verb.RETRY, TICKET, fresh=True))
        if len(self._starts) == 1 and self._cell.loses:
            self._stage.transcript().unlink()
        seen = self._stage.reads(_see)
        start = Start(_now_us(), before=[] if seen is None else list(seen.log))
        self._starts.append(start)
        return self._stage.launch(blow), start

    def _attend(self, daemon: Daemon, start: Start, blow: Blow | None) -> bool:
        """Look after a daemon until it ends; return whether nothing was left to do."""
        falls = None if blow is None else _Falls(blow, self._stage)
        over = False
        while daemon.is_running():
            if time.monotonic() > self._deadline:
                raise NeverDone(f"not done within {LIMIT_S} s\n{self._said()}")
            if falls is not None and falls.within(_LOOK_S):
                start.struck = True
                strike(falls.blow.way, daemon.pid, str(self._stage.home.path))
                falls = None
            elif falls is None or not falls.waits:
                Waiting().wait(_LOOK_S)
            if not over and self._look() and self._stage.is_listening:
                over = True
                daemon.signal(signal.SIGTERM)
        return over

    def _look(self) -> bool:
        """Do what the operator does; return whether the story is at its end and nothing is open."""
        seen = self._stage.reads(_see)
        if seen is None:
            return False
        state = seen.row.ticket.state
        if (command := self._story.operator(seen)) is not None:
            self._steer(command)
        elif state is State.HELD and not seen.open_effects and seen.row.ticket.reason not in _WAITS_FOR_THE_OPERATOR:
            raise NeverDone(f"held ({seen.row.ticket.reason}): {seen.row.ticket.note}\n{self._said()}")
        if seen.row.ticket.waits:
            raise NeverDone(f"put back: {seen.row.ticket.note}\n{self._said()}")
        file = self._stage.config.queue_directory / state / f"{TICKET}.md"
        return state is self._story.ends and not seen.open_effects and file.exists()

    def _steer(self, command: Command) -> None:
        """Give a command; what it was about may have changed since, or the daemon may die of it."""
        with suppress(RunnerError):
            self._stage.steer(command)

    def _collect(self) -> Played:
        stage = self._stage
        left = [f"{each.name} {each.pid}" for each in stage.processes()]
        seen = stage.reads(_see)
        rows = stage.reads(lambda rx: (runs.runs_of(rx, TICKET), questions.questions_of(rx, TICKET)))
        assert seen is not None
        assert rows is not None
        return Played(
            cell=self._cell,
            stage=stage,
            starts=self._starts,
            left=left,
            row=seen.row,
            log=list(seen.log),
            queue_log=list(seen.queue_log),
            runs=rows[0],
            effects=stage.reads(lambda rx: effects.effects(rx, ticket=TICKET)) or [],
            questions=rows[1],
        )

    def _said(self) -> str:
        logs = sorted(self._stage.root.glob("daemon-*.log"))
        calls = [(each.turn, each.complete, each.status) for each in self._stage.calls]
        return "\n".join([f"calls: {calls}", *(f"{path.name}:\n{path.read_text()[-6000:]}" for path in logs)])


def _see(rx: Rx) -> Seen | None:
    if TICKET not in tickets.states(rx):
        return None
    return Seen(
        row=tickets.get(rx, TICKET),
        open_effects=effects.effects(rx, ticket=TICKET, states=OPEN),
        log=[entry.event for entry in log.events(rx, ticket=TICKET)],
        queue_log=[entry.event for entry in log.events(rx, ticket="")],
    )


def _now_us() -> int:
    return time.time_ns() // 1000
