"""What a ticket is and every legal move that it can make.

A ticket is what its facts fold into: `advance` is the only place where a state
changes, and the store calls it inside the transaction that saves the result with
the fact. A claim's token is the fence: what a claim reports is refused once a
later claim has begun.

Pure. Does not know sessions, money, stores or clocks.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

IDLE_CRASHES_TO_HOLD = 3
"""Claims in a row that ended in the daemon's death with nothing new in the log."""

NEVER_US = 253_370_764_800_000_000
"""A time that does not come (the year 9999, which can still be shown): only a person lets the ticket go on."""

ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class State(StrEnum):
    """Where a ticket is; everything finer is read from its log."""

    READY = "ready"
    RUNNING = "running"
    HELD = "held"
    DONE = "done"
    CANCELLED = "cancelled"


class Reason(StrEnum):
    """Why a held ticket waits for a person."""

    QUESTION = "question"
    EFFECT = "effect"
    APPROVAL = "approval"
    BUDGET = "budget"
    ATTEMPTS = "attempts"
    SESSION = "session"
    LOOP = "loop"
    WORKTREE = "worktree"
    CHECKS = "checks"
    DELIVERY = "delivery"
    NO_CHANGE = "no_change"
    OPERATOR = "operator"


class Stop(StrEnum):
    """What a person asked of a running ticket; done when its processes are gone.

    It outlives a claim that ends otherwise: the next claim does it, before anything else.
    """

    CANCEL = "cancel"
    HOLD = "hold"
    RETRY = "retry"


class Cause(StrEnum):
    """Why a running ticket went back to the queue."""

    WEATHER = "weather"
    """The world's fault: no attempt, the wait doubles."""
    ATTEMPT = "attempt"
    """The ticket's fault: counts towards the attempts that it has."""
    START = "start"
    """The run never reached the model: no attempt."""
    ALLOWANCE = "allowance"
    """The day's money is spent or reserved: no attempt."""
    DRAIN = "drain"
    """The daemon stops: no attempt, ready at once."""


class Expects(StrEnum):
    """What a ticket's work must leave behind."""

    CHANGE = "change"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Spec:
    """A ticket as its source wrote it; the text is sent to the agent verbatim."""

    id: str
    text: str
    title: str = ""
    priority: int = 0
    budget_microusd: int | None = None
    base: str | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    verify: tuple[str, ...] | None = None
    expects: Expects = Expects.CHANGE
    not_before_us: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """The part of a ticket that its facts decide."""

    id: str
    state: State = State.READY
    reason: Reason | None = None
    note: str = ""
    """For a person: why it is held or waits."""
    round: int = 1
    token: int = 0
    attempts: int = 0
    waits: int = 0
    """Ends in a row that were not the ticket's fault; each doubles the next wait."""
    crashes: int = 0
    not_before_us: int = 0
    stop: Stop | None = None
    fresh: bool = False
    """The next run opens a new session."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A source's ticket was accepted."""

    not_before_us: int = 0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A daemon took the ticket; `token` is one more than ever before."""

    token: int


@dataclass(frozen=True, slots=True)
class Orphaned:
    """The claim's daemon died. `progressed`: the claim had added something to the log."""

    token: int
    progressed: bool


@dataclass(frozen=True, slots=True)
class PutBack:
    """The claim ended and the ticket may be claimed again from `not_before_us` on."""

    token: int
    cause: Cause
    not_before_us: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The claim ended and a person has to decide."""

    token: int
    reason: Reason
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The work is delivered."""

    token: int


@dataclass(frozen=True, slots=True)
class FreshUsed:
    """The new session that a person asked for was opened."""

    token: int


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A person asked a running ticket to stop; the claim reports `Stopped`."""

    stop: Stop
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """The claim ended as a person asked; no process of it is left."""

    token: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A person gave up a ticket that was not running."""


@dataclass(frozen=True, slots=True)
class Parked:
    """A person took a ready ticket out of the queue, or something outside a claim needs one."""

    reason: Reason = Reason.OPERATOR
    note: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """A person lets a ticket go on from where it stood; finished work is not done again."""


@dataclass(frozen=True, slots=True)
class Retried:
    """A person wants the agent to work again, in a new session if `fresh`."""

    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """The question that a ticket was held for has an answer."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing is open any more of the effects that a ticket was held for."""


Fact = (
    Taken
    | Claimed
    | Orphaned
    | PutBack
    | Held
    | Finished
    | FreshUsed
    | StopRequested
    | Stopped
    | Cancelled
    | Parked
    | Released
    | Retried
    | Answered
    | Settled
)


class IllegalMove(Exception):
    """A ticket's state, or its fence, does not allow a fact."""

    def __init__(self, ticket: str, state: State, fact: Fact) -> None:
        super().__init__(ticket, state, fact)
        self.ticket, self.state, self.fact = ticket, state, fact

    def __str__(self) -> str:
        return f"ticket {self.ticket} is {self.state}: {self.fact} is not possible"


SETTLED_ELSEWHERE = frozenset({Reason.QUESTION, Reason.EFFECT, Reason.APPROVAL})
"""Held for something that has its own command; letting the ticket go would not answer it."""


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


def canonical_id(ticket_id: str) -> str:
    """Return what two ids share that would meet in one directory or ref.

    Claude Code keeps a worktree's transcripts under its path with every
    non-alphanumeric turned into `-`, and some file systems ignore case.
    """
    return re.sub(r"[^a-z0-9]", "-", ticket_id.lower())


def id_problem(ticket_id: str) -> str | None:
    """Return why `ticket_id` cannot be used as a directory, a ref and a file name, or None."""
    if not ticket_id:
        return "the id is empty"
    if not ID_PATTERN.fullmatch(ticket_id):
        return "an id is 1 to 64 of A-Z a-z 0-9 . _ - and starts with a letter or digit"
    if ".." in ticket_id or ticket_id.endswith((".", ".lock")):
        return "an id has no '..' and does not end in '.' or '.lock' (git refuses such a branch)"
    return None


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
        case Settled() if ticket.reason in {Reason.EFFECT, Reason.APPROVAL}:
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
