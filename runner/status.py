"""What an operator asks, as frozen values; the same for the terminal and as JSON.

Reads the store and nothing else, so it works with the daemon down, and needs
neither the SDK nor git.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from types import MappingProxyType

from runner.days import day_start_us
from runner.store import Rx, effects, log, overview, questions, queue, runs, sessions, tickets
from runner.store.effects import EffectRow
from runner.store.overview import Line, Sums
from runner.store.questions import Question
from runner.store.queue import Pause
from runner.store.runs import RunRow
from runner.store.sessions import SessionRow
from runner.store.tickets import Row
from tickets.source import Refused
from tickets.ticket import Reason, State, Ticket

OPEN = frozenset({State.READY, State.RUNNING, State.HELD})
"""What `status` shows unless it is asked for more."""

_LAST_EVENTS = 20
_DECIDED = frozenset({Reason.EFFECT, Reason.APPROVAL})
_UNDECIDED = frozenset({"unknown", "approval"})
_UNDER_WAY = frozenset({"wanted", "claimed"})


@dataclass(frozen=True, slots=True)
class Overview:
    """The queue at one moment."""

    now_us: int
    lines: list[Line]
    pause: Pause | None
    refused: list[Refused]
    spent_today_microusd: int
    reserved_microusd: int
    daemon: int | None = None
    """The pid of the daemon that holds the home, 0 when it cannot be told, None when there is none."""


@dataclass(frozen=True, slots=True)
class Details:
    """Everything that is known of one ticket."""

    now_us: int
    row: Row
    why: str
    spent_microusd: int
    sums: Sums
    account: str | None
    """What the agent last said that it did."""
    sessions: list[SessionRow]
    runs: list[RunRow]
    effects: list[EffectRow]
    questions: list[Question]
    events: list[log.Entry]


def look(rx: Rx, *, zone: tzinfo, states: Collection[State], since_us: int | None = None) -> Overview:
    """Return the queue: tickets in `states`, and those that changed at `since_us` or later; days are of `zone`."""
    spent, reserved = runs.day_money(rx, day_start_us(rx.now_us, zone))
    return Overview(
        rx.now_us,
        overview.overview(rx, states=states, since_us=since_us),
        queue.paused(rx),
        queue.refusals(rx),
        spent,
        reserved,
    )


def nothing() -> Overview:
    """Return the queue of a configuration that nothing has run with yet."""
    return Overview(round(datetime.now(UTC).timestamp() * 1_000_000), [], None, [], 0, 0)


def look_at(rx: Rx, ticket: str) -> Details:
    """Return one ticket.

    Raises:
        UnknownTicket: There is none.
    """
    row = tickets.get(rx, ticket)
    sums = overview.overview(rx, ids=[ticket])[0].sums
    return Details(
        rx.now_us,
        row,
        why(row.ticket, now_us=rx.now_us, pause=queue.paused(rx)),
        sums.cost_microusd,
        sums,
        sessions.last_account(rx, ticket),
        sessions.sessions_of(rx, ticket),
        runs.runs_of(rx, ticket),
        effects.effects(rx, ticket=ticket),
        questions.questions_of(rx, ticket),
        log.latest(rx, ticket, limit=_LAST_EVENTS),
    )


def why(
    ticket: Ticket,
    *,
    now_us: int,
    pause: Pause | None,
    effects: Mapping[str, int] = MappingProxyType({}),
    is_alone: bool = False,
) -> str:
    """Return why a ticket is where it is and what would move it; "" where the state says it all.

    Args:
        ticket: The ticket.
        now_us: The time.
        pause: The queue's.
        effects: How many of its effects are in which state.
        is_alone: No daemon runs.
    """
    match ticket.state:
        case State.HELD if (
            ticket.reason in _DECIDED and not effects.keys() & _UNDECIDED and effects.keys() & _UNDER_WAY
        ):
            return f"{ticket.reason}: decided; it goes on when that is done"
        case State.HELD:
            return f"{ticket.reason}: {ticket.note}" if ticket.note else str(ticket.reason)
        case State.RUNNING if ticket.stop is not None:
            return f"asked to stop ({ticket.stop})"
        case State.RUNNING if is_alone:
            return "interrupted: it goes on at the next start"
        case State.READY if pause is not None:
            return "the queue is paused"
        case State.READY if ticket.not_before_us > now_us:
            until = f"waits until {clock(ticket.not_before_us)}"
            return f"{until}: {ticket.note}" if ticket.note else until
        case State.READY:
            return ticket.note
        case _:
            return ""


def clock(at_us: int) -> str:
    """Return a time as it is shown: to the second, UTC."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
