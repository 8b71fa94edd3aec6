"""Play a night: the model with its storms, the daemon that is killed and started again, and an operator who is awake.

The operator answers questions, approves what waits for it, lets the queue go on when the
key is accepted again, and starts the daemon whenever it is gone. All else has to come
right by itself.
"""

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event as Waiting
from typing import ClassVar

from runner.admission import Pause
from runner.commands import Command, Verb
from runner.errors import RunnerError
from runner.events import Event
from runner.offline import Served
from runner.store import Rx, effects, log, questions, queue, runs, sessions, tickets
from runner.store.effects import OPEN, EffectRow
from runner.store.questions import Question
from runner.store.runs import RunRow
from runner.store.sessions import SessionRow
from runner.store.tickets import Row
from tests.daemons import Daemon
from tests.matrix.daemon import strike
from tests.night.plans import ANSWER, Plan
from tests.night.schedule import DAY_MICROUSD, EVENING_MICROUSD, Night, Storm, settings
from tests.watched import Watched
from tickets.ticket import Reason, State

LIMIT_S = 540.0
"""For a whole night, on a machine that does other things too."""
_LOOK_S = 0.05
_LOOKS_A_ROUND = 4
"""The model is looked at this often for each look at the tickets."""


class Subscribed(Watched):
    """A site whose account is a subscription: only of one does Claude Code tell when a limit ends."""

    credential: ClassVar[dict[str, str]] = {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-offline"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A ticket, and what waits for the operator."""

    row: Row
    open_effects: Sequence[EffectRow]


@dataclass(frozen=True, slots=True)
class Life:
    """All that is known of a ticket in the morning."""

    plan: Plan
    row: Row
    log: Sequence[Event]
    runs: Sequence[RunRow]
    sessions: Sequence[SessionRow]
    effects: Sequence[EffectRow]
    questions: Sequence[Question]
    calls: Sequence[Served]
    """Of the model, by its sessions."""


@dataclass(frozen=True, slots=True)
class Morning:
    """What there is to judge."""

    night: Night
    site: Watched
    lives: Sequence[Life]
    queue_log: Sequence[Event]
    left: Sequence[str]
    """Processes that outlived the last daemon."""
    calls: Sequence[Served]
    evening_microusd: int
    """What the model had given when the operator raised the day's cap."""
    starts: int
    """Of a daemon."""


class NeverMorning(Exception):
    """The night did not end, or a daemon ended that nobody had struck."""


@contextmanager
def play(night: Night, root: Path) -> Iterator[Morning]:
    """Play a night in `root`, which has to be empty, and give its morning while all is still there.

    Raises:
        NeverMorning: See there; it holds what the last daemon said.
    """
    with Subscribed.over(root, night.script, settings(EVENING_MICROUSD)) as site:
        (site.root / "world").touch()
        yield _Player(night, site).play()


class _Player:
    """Plays one night."""

    def __init__(self, night: Night, site: Watched) -> None:
        self._night, self._site = night, site
        self._storms, self._blows = list(night.storms), list(night.blows)
        self._storm: Storm | None = None
        self._since = self._starts = 0
        """The requests that came before the storm."""
        self._evening: int | None = None
        self._deadline = time.monotonic() + LIMIT_S

    def play(self) -> Morning:
        self._add(self._night.early)
        while True:
            daemon = self._site.start()
            self._starts += 1
            over = self._attend(daemon)
            code = daemon.ends()
            if over:
                if code:
                    raise NeverMorning(f"the daemon ended with {code}\n{daemon.said()}")
                if self._evening is not None:
                    return self._collect(self._evening)
                self._evening = sum(call.cost_microusd for call in self._site.calls if call.complete)
                self._site.configure(**settings(DAY_MICROUSD))
                self._add(self._night.late)

    def _add(self, plans: Sequence[Plan]) -> None:
        for plan in plans:
            self._site.add(plan.id, plan.text, **plan.front)

    def _attend(self, daemon: Daemon) -> bool:
        """Look after a daemon until it ends; return whether nothing was left to do, as long as the day's cap stays."""
        while True:
            for _ in range(_LOOKS_A_ROUND):
                Waiting().wait(_LOOK_S)
                if self._meets_its_blow(daemon):
                    return False
                self._weather()
            if not daemon.is_running():
                raise NeverMorning(f"the daemon ended with {daemon.ends()}\n{daemon.said()}")
            if time.monotonic() > self._deadline:
                raise NeverMorning(f"not done within {LIMIT_S} s: {self._states()}\n{daemon.said()[-6000:]}")
            if self._site.is_listening and self._operate():
                daemon.signal(signal.SIGTERM)
                return True

    @property
    def _complete(self) -> int:
        return sum(call.complete for call in self._site.calls)

    def _meets_its_blow(self, daemon: Daemon) -> bool:
        """Strike the daemon when it is time, and say whether it was."""
        if not self._blows or self._complete < self._blows[0].at or not self._site.is_listening:
            return False
        blow = self._blows.pop(0)
        Waiting().wait(blow.delay_s)
        strike(blow.way, daemon.pid, str(self._site.home.path))
        return True

    def _weather(self) -> None:
        """Begin and end storms."""
        if self._storm is not None and self._storm.requests is not None:
            if len(self._site.calls) - self._since >= self._storm.requests:
                self._clears_up()
        elif self._storm is None and self._storms and self._complete >= self._storms[0].at:
            self._storm, self._since = self._storms.pop(0), len(self._site.calls)
            self._site.server.script = self._storm.script(int(time.time()))

    def _clears_up(self) -> None:
        self._storm = None
        self._site.server.script = self._night.script

    def _operate(self) -> bool:
        """Do what the operator does; return whether nothing is left to do, for anybody."""
        looked = self._site.reads(_look)
        if looked is None:
            return False
        seen, pause = looked
        if pause is not None and pause.until_us is None:
            self._clears_up()
            self._steer(Command(Verb.RESUME))
        for each in seen:
            for command in _sees_to(each):
                self._steer(command)
        if self._evening is None:
            return len(seen) == len(self._night.early) and all(each.row.ticket.not_before_us for each in seen)
        return len(seen) == len(self._night.plans) and all(map(self._is_over, seen))

    def _is_over(self, seen: Seen) -> bool:
        """Whether a ticket is where it stays: nothing to do for the daemon, and its file moved."""
        ticket = seen.row.ticket
        if ticket.state not in {State.DONE, State.HELD} or any(_is_due(row) for row in seen.open_effects):
            return False
        if ticket.reason in {Reason.QUESTION, Reason.APPROVAL}:
            return False
        return (self._site.config.queue_directory / ticket.state / f"{ticket.id}.md").exists()

    def _steer(self, command: Command) -> None:
        """Give a command; what it was about may have changed since, or the daemon may have died."""
        with suppress(RunnerError):
            self._site.steer(command)

    def _states(self) -> list[str]:
        seen, _ = self._site.reads(_look) or ((), None)
        return [f"{each.row.ticket.id}: {each.row.ticket.state} {each.row.ticket.reason or ''}" for each in seen]

    def _collect(self, evening_microusd: int) -> Morning:
        site = self._site
        lives = [site.reads(partial(_life, plan=plan, calls=site.calls)) for plan in self._night.plans]
        queue_log = site.reads(lambda rx: [entry.event for entry in log.events(rx, ticket="")])
        return Morning(
            night=self._night,
            site=site,
            lives=[life for life in lives if life is not None],
            queue_log=queue_log or [],
            left=[f"{each.name} {each.pid}" for each in site.processes()],
            calls=site.calls,
            evening_microusd=evening_microusd,
            starts=self._starts,
        )


def _look(rx: Rx) -> tuple[list[Seen], Pause | None]:
    open_effects = effects.effects(rx, states=OPEN)
    rows = tickets.all_rows(rx)
    seen = [Seen(row, [each for each in open_effects if each.ticket == row.ticket.id]) for row in rows]
    return seen, queue.paused(rx)


def _is_due(row: EffectRow) -> bool:
    return not row.is_unknown and not row.waits_for_approval


def _sees_to(seen: Seen) -> Iterator[Command]:
    """Yield what the operator does about a ticket."""
    ticket = seen.row.ticket
    if ticket.reason is Reason.QUESTION:
        yield Command(Verb.ANSWER, ticket.id, text=ANSWER)
    if ticket.reason is Reason.APPROVAL:
        yield from (Command(Verb.APPROVE, key=row.key) for row in seen.open_effects if row.waits_for_approval)


def _life(rx: Rx, plan: Plan, calls: Sequence[Served]) -> Life:
    ours = sessions.sessions_of(rx, plan.id)
    ids = {session.id for session in ours}
    return Life(
        plan=plan,
        row=tickets.get(rx, plan.id),
        log=[entry.event for entry in log.events(rx, ticket=plan.id)],
        runs=runs.runs_of(rx, plan.id),
        sessions=ours,
        effects=effects.effects(rx, ticket=plan.id),
        questions=questions.questions_of(rx, plan.id),
        calls=[call for call in calls if call.session_id in ids],
    )
