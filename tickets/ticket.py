"""What a ticket is, and the facts that can happen to it.

Pure. Does not know which fact may follow which (moves.py), nor sessions, money,
stores or clocks.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

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


OPEN = frozenset({State.READY, State.RUNNING, State.HELD})
OVER = frozenset({State.DONE, State.CANCELLED})


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


OF_EFFECTS = frozenset({Reason.EFFECT, Reason.APPROVAL})
"""Held for effects: it is let go when none of them is open."""


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
