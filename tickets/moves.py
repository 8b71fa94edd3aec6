"""Every legal move of a ticket.

A ticket is what its facts fold into: `advance` is the only place where a state
changes, and the store calls it inside the transaction that saves the result with
the fact. A claim's token is the fence: what a claim reports is refused once a
later claim has begun.

Pure. Does not know sessions, money, stores or clocks.
"""

from collections.abc import Iterable
from dataclasses import replace

from tickets.ticket import (
    OF_EFFECTS,
    Answered,
    Cancelled,
    Cause,
    Claimed,
    Fact,
    Finished,
    FreshUsed,
    Held,
    Orphaned,
    Parked,
    PutBack,
    Reason,
    Released,
    Retried,
    Settled,
    State,
    Stop,
    Stopped,
    StopRequested,
    Taken,
    Ticket,
)

IDLE_CRASHES_TO_HOLD = 3
"""Claims in a row that ended in the daemon's death with nothing new in the log."""

SETTLED_ELSEWHERE = OF_EFFECTS | {Reason.QUESTION}
"""Held for something that has its own command; letting the ticket go would not answer it."""


class IllegalMove(Exception):
    """A ticket's state, or its fence, does not allow a fact."""

    def __init__(self, ticket: str, state: State, fact: Fact) -> None:
        super().__init__(ticket, state, fact)
        self.ticket, self.state, self.fact = ticket, state, fact

    def __str__(self) -> str:
        return f"ticket {self.ticket} is {self.state}: {self.fact} is not possible"


def advance(ticket: Ticket, fact: Fact) -> Ticket:
    """Return `ticket` after `fact`.

    Raises:
        IllegalMove: The state does not allow `fact`, or a claim other than
            the present one reports it.
    """
    match ticket.state:
        case State.RUNNING:
            after = _while_running(ticket, fact)
        case State.READY:
            after = _while_ready(ticket, fact)
        case State.HELD:
            after = _while_held(ticket, fact)
        case _:
            after = _once_over(ticket, fact)
    if after is None:
        raise IllegalMove(ticket.id, ticket.state, fact)
    return after


def fold(ticket_id: str, facts: Iterable[Fact]) -> Ticket:
    """Return the ticket that `facts`, oldest first, make.

    Raises:
        IllegalMove: The facts are not a life that a ticket can have.
    """
    ticket = Ticket(ticket_id)
    for fact in facts:
        ticket = advance(ticket, fact)
    return ticket


def _while_ready(ticket: Ticket, fact: Fact) -> Ticket | None:
    match fact:
        case Taken() if ticket.token == 0:
            return replace(ticket, not_before_us=fact.not_before_us)
        case Claimed(token) if token == ticket.token + 1:
            return replace(ticket, state=State.RUNNING, token=token, not_before_us=0, note="")
        case Released() if ticket.stop is None:
            return replace(ticket, not_before_us=0, note="", waits=0)
        case Retried(fresh):
            return _ready(ticket, fresh=fresh or ticket.fresh)
        case Cancelled():
            return replace(ticket, state=State.CANCELLED, note="", stop=None)
        case Parked(reason, note):
            return replace(ticket, state=State.HELD, reason=reason, note=note, stop=None)
        case _:
            return None


def _while_held(ticket: Ticket, fact: Fact) -> Ticket | None:
    match fact:
        case Released() if ticket.reason not in SETTLED_ELSEWHERE:
            return _ready(ticket, fresh=ticket.fresh)
        case Retried(fresh) if ticket.reason not in SETTLED_ELSEWHERE:
            return _ready(ticket, fresh=fresh or ticket.fresh)
        case Answered() if ticket.reason is Reason.QUESTION:
            return _ready(ticket, fresh=ticket.fresh)
        case Settled() if ticket.reason in OF_EFFECTS:
            return _ready(ticket, fresh=ticket.fresh)
        case Cancelled():
            return replace(ticket, state=State.CANCELLED, reason=None, note="")
        case _:
            return None


def _once_over(ticket: Ticket, fact: Fact) -> Ticket | None:
    if ticket.state is State.CANCELLED and isinstance(fact, Retried):
        return _ready(ticket, fresh=fact.fresh or ticket.fresh)
    return None


def _while_running(ticket: Ticket, fact: Fact) -> Ticket | None:
    if isinstance(fact, StopRequested):
        return replace(ticket, stop=fact.stop, fresh=ticket.fresh or fact.fresh)
    if isinstance(fact, Orphaned | PutBack | Held | Finished | FreshUsed | Stopped) and fact.token == ticket.token:
        return _reported(ticket, fact)
    return None


def _reported(ticket: Ticket, fact: Orphaned | PutBack | Held | Finished | FreshUsed | Stopped) -> Ticket:
    idle = replace(ticket, crashes=0, stop=None)
    match fact:
        case Orphaned():
            return _after_a_death(ticket, progressed=fact.progressed)
        case PutBack(_, cause, not_before_us, note):
            return replace(
                idle,
                state=State.READY,
                not_before_us=0 if ticket.stop else not_before_us,
                note=note,
                stop=ticket.stop,
                attempts=ticket.attempts + (cause is Cause.ATTEMPT),
                waits=ticket.waits + 1 if cause in {Cause.WEATHER, Cause.START} else 0,
            )
        case Held() if ticket.stop is Stop.CANCEL:
            return _after_a_stop(idle, ticket.stop)
        case Held(_, reason, note):
            return replace(idle, state=State.HELD, reason=reason, note=note)
        case Finished():
            return replace(idle, state=State.DONE, waits=0)
        case FreshUsed():
            return replace(ticket, fresh=False)
        case _:
            return _after_a_stop(idle, ticket.stop)


def _after_a_stop(idle: Ticket, stop: Stop | None) -> Ticket:
    if stop is Stop.CANCEL:
        return replace(idle, state=State.CANCELLED)
    if stop is Stop.HOLD:
        return replace(idle, state=State.HELD, reason=Reason.OPERATOR)
    return _ready(idle, fresh=idle.fresh)


def _after_a_death(ticket: Ticket, *, progressed: bool) -> Ticket:
    crashes = 0 if progressed else ticket.crashes + 1
    if crashes < IDLE_CRASHES_TO_HOLD:
        return replace(ticket, state=State.READY, crashes=crashes, not_before_us=0)
    note = f"{crashes} claims in a row ended in the daemon's death with nothing new in the log"
    return replace(ticket, state=State.HELD, reason=Reason.ATTEMPTS, crashes=crashes, stop=None, note=note)


def _ready(ticket: Ticket, *, fresh: bool) -> Ticket:
    return replace(
        ticket,
        state=State.READY,
        reason=None,
        note="",
        attempts=0,
        waits=0,
        crashes=0,
        not_before_us=0,
        stop=None,
        fresh=fresh,
    )
