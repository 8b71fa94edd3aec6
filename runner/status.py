"""What an operator asks, as frozen values; the same for the terminal and as JSON.

Reads the store, the lock and the names in the queue folder, so it works with the daemon
down, and needs neither the SDK nor git.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

from runner.admission import Pause, closed_by_pause
from runner.config import Config
from runner.days import day_start_us
from runner.home import Home
from runner.store import Rx, effects, log, overview, questions, queue, runs, sessions, tickets
from runner.store.effects import EffectRow
from runner.store.overview import Line, Sums
from runner.store.questions import Question
from runner.store.runs import RunRow
from runner.store.sessions import SessionRow
from runner.store.tickets import Row
from runner.why import Asked, Facts, Last, Owner, Queue, Why, closed, why
from tickets import folder
from tickets.source import Refused
from tickets.ticket import State

OPEN = frozenset({State.READY, State.RUNNING, State.HELD})
"""What `status` shows unless it is asked for more."""

_LAST_EVENTS = 20


@dataclass(frozen=True, slots=True)
class Around:
    """What is known before the database is asked."""

    home: str
    """As the database calls this queue's."""
    daemon: int | None
    """The pid of the daemon that holds the home, 0 when it cannot be told, None when there is none."""
    slots: int
    attempts: int
    cap_microusd: int
    """Of a ticket that does not name one."""
    zone: tzinfo
    """Of the days that a cap counts."""
    files: tuple[str, ...]
    """The ids of the files in the queue folder."""

    @classmethod
    def of(cls, config: Config) -> "Around":
        """Return what a configuration and its directories say."""
        home = Home.of(config)
        return cls(
            home.name,
            home.holder(),
            config.concurrency,
            config.limits.attempts,
            config.limits.ticket_microusd,
            config.zone,
            tuple(folder.names(config.queue_directory)),
        )


@dataclass(frozen=True, slots=True)
class Overview:
    """The queue at one moment."""

    now_us: int
    lines: list[Line]
    why: Mapping[str, Why]
    """Of each line, by its ticket."""
    waiting: list[str]
    """The ids of the files that nothing has taken in yet."""
    pause: Pause | None
    refused: list[Refused]
    spent_today_microusd: int
    reserved_microusd: int
    daemon: int | None
    """See `Around`."""


@dataclass(frozen=True, slots=True)
class Details:
    """Everything that is known of one ticket."""

    now_us: int
    row: Row
    why: Why
    spent_microusd: int
    cap_microusd: int
    sums: Sums
    account: str | None
    """What the agent last said that it did."""
    sessions: list[SessionRow]
    runs: list[RunRow]
    effects: list[EffectRow]
    questions: list[Question]
    events: list[log.Entry]


def look(rx: Rx, around: Around, *, states: Collection[State], since_us: int | None = None) -> Overview:
    """Return the queue: tickets in `states`, and those that changed at `since_us` or later."""
    spent, reserved = runs.day_money(rx, day_start_us(rx.now_us, around.zone))
    lines = overview.overview(rx, states=states, since_us=since_us)
    refused = queue.refusals(rx)
    return Overview(
        rx.now_us,
        lines,
        _why(rx, around, lines),
        _waiting(around, tickets.states(rx, around.files), refused),
        queue.paused(rx),
        refused,
        spent,
        reserved,
        around.daemon,
    )


def nothing(around: Around) -> Overview:
    """Return the queue of a configuration that nothing has run with yet."""
    now_us = round(datetime.now(UTC).timestamp() * 1_000_000)
    return Overview(now_us, [], {}, [*around.files], None, [], 0, 0, around.daemon)


def look_at(rx: Rx, ticket: str, around: Around) -> Details:
    """Return one ticket.

    Raises:
        UnknownTicket: There is none.
    """
    row = tickets.get(rx, ticket)
    line = overview.overview(rx, ids=[ticket])[0]
    return Details(
        rx.now_us,
        row,
        _why(rx, around, [line])[ticket],
        line.sums.cost_microusd,
        row.spec.budget_microusd or around.cap_microusd,
        line.sums,
        sessions.last_account(rx, ticket),
        sessions.sessions_of(rx, ticket),
        runs.runs_of(rx, ticket),
        effects.effects(rx, ticket=ticket),
        questions.questions_of(rx, ticket),
        log.latest(rx, ticket, limit=_LAST_EVENTS),
    )


def _waiting(around: Around, known: Collection[str], refused: Collection[Refused]) -> list[str]:
    """Return the files that have neither become a ticket nor been found wrong."""
    wrong = {refusal.where.partition(".md")[0] for refusal in refused}
    return [name for name in around.files if name not in known and name not in wrong]


def _why(rx: Rx, around: Around, lines: Collection[Line]) -> dict[str, Why]:
    """Return why each ticket is where it is, in as many queries for a thousand as for one."""
    due = {ticket: ahead for ahead, ticket in enumerate(tickets.line(rx, around.home))}
    asked = questions.oldest_open(rx)
    of_all = Queue(
        rx.now_us,
        around.home,
        has_daemon=around.daemon is not None,
        slots=around.slots,
        running=tickets.running(rx, around.home),
        attempts=around.attempts,
        shut=_shut(queue.paused(rx), rx.now_us),
    )
    return {
        line.ticket.id: why(_facts(line, due.get(line.ticket.id, 0), asked.get(line.ticket.id)), of_all)
        for line in lines
    }


def _facts(line: Line, ahead: int, question: Question | None) -> Facts:
    owner = None
    if line.owner_home is not None and line.owner_host is not None:
        owner = Owner(line.owner_home, line.owner_host, line.lease_until_us or 0)
    return Facts(
        line.ticket,
        branch=line.branch,
        home=line.home,
        owner=owner,
        asked_not_before_us=line.asked_not_before_us,
        ahead=ahead,
        effects=line.effects,
        question=None if question is None else Asked(question.text, question.asked_at_us),
        last=None if line.last_event is None else Last(line.last_event, line.last_payload, line.last_event_at_us or 0),
    )


def _shut(pause: Pause | None, now_us: int) -> Why | None:
    shut = closed_by_pause(pause, now_us=now_us)
    return None if shut is None else closed(shut.note, until_us=shut.until_us)
