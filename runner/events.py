"""Names, payloads and versions of what happens.

An event is a fact saved: values with units in their keys, never prompt text or secrets. What
commands and agents print is in it only as the note of a ticket that is held or waits, redacted
and bounded. A ticket's own facts (tickets/ticket.py) are the events that
`FACTS` names, so that a ticket can be folded out of its log.

Pure. Knows tickets; does not know who writes or reads the log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum

from tickets.moves import fold
from tickets.ticket import (
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
    Stop,
    Stopped,
    StopRequested,
    Taken,
    Ticket,
)

VERSION = 1
"""Of the payloads as this version writes them."""

Value = str | int | float | bool | None | list[str]


class Name(StrEnum):
    """Everything that the log can hold."""

    DAEMON_STARTED = "daemon.started"
    DAEMON_STOPPED = "daemon.stopped"
    QUEUE_PAUSED = "queue.paused"
    QUEUE_PROBED = "queue.probed"
    QUEUE_RESUMED = "queue.resumed"
    FILE_REFUSED = "file.refused"

    TICKET_TAKEN = "ticket.taken"
    TICKET_CLAIMED = "ticket.claimed"
    TICKET_ORPHANED = "ticket.orphaned"
    TICKET_PUT_BACK = "ticket.put_back"
    TICKET_HELD = "ticket.held"
    TICKET_FINISHED = "ticket.finished"
    TICKET_FRESH_USED = "ticket.fresh_used"
    TICKET_STOP_REQUESTED = "ticket.stop_requested"
    TICKET_STOPPED = "ticket.stopped"
    TICKET_CANCELLED = "ticket.cancelled"
    TICKET_PARKED = "ticket.parked"
    TICKET_RELEASED = "ticket.released"
    TICKET_RETRIED = "ticket.retried"
    TICKET_ANSWERED = "ticket.answered"
    TICKET_SETTLED = "ticket.settled"

    BUDGET_SET = "budget.set"
    BUDGET_WARNED = "budget.warned"
    PROCESSES_REAPED = "processes.reaped"
    WORKTREE_MADE = "worktree.made"
    WORKTREE_REUSED = "worktree.reused"
    WORKTREE_FILLED = "worktree.filled"
    WORKTREE_REMOVED = "worktree.removed"
    WORKTREE_KEPT = "worktree.kept"
    TRANSCRIPTS_REMOVED = "transcripts.removed"
    MESSAGES_REMOVED = "messages.removed"
    SETUP_STARTED = "setup.started"
    SETUP_PASSED = "setup.passed"
    SETUP_FAILED = "setup.failed"
    SETUP_ENDED = "setup.ended"
    SESSION_OPENED = "session.opened"
    SESSION_CONFIRMED = "session.confirmed"
    SESSION_CLOSED = "session.closed"
    SESSION_OUTDATED = "session.outdated"
    RUN_STARTED = "run.started"
    RUN_ENDED = "run.ended"
    AGENT_STARTED = "agent.started"
    AGENT_STALLED = "agent.stalled"
    AGENT_LOOPED = "agent.looped"
    AGENT_RETRIED = "agent.retried"
    AGENT_LIMITED = "agent.limited"
    AGENT_FINISHED = "agent.finished"
    TOOL_STARTED = "tool.started"
    TOOL_ENDED = "tool.ended"
    CHECK_STARTED = "check.started"
    CHECK_PASSED = "check.passed"
    CHECK_FAILED = "check.failed"
    BASE_MERGED = "base.merged"
    BASE_CONFLICTED = "base.conflicted"
    BRANCH_COMMITTED = "branch.committed"
    BRANCH_PUSHED = "branch.pushed"

    EFFECT_WANTED = "effect.wanted"
    EFFECT_APPROVED = "effect.approved"
    EFFECT_CLAIMED = "effect.claimed"
    EFFECT_DONE = "effect.done"
    EFFECT_FAILED = "effect.failed"
    EFFECT_UNKNOWN = "effect.unknown"
    EFFECT_ABANDONED = "effect.abandoned"
    EFFECT_REPEATED = "effect.repeated"
    QUESTION_ASKED = "question.asked"
    QUESTION_ANSWERED = "question.answered"


@dataclass(frozen=True, slots=True)
class Event:
    """A fact as saved.

    `ticket` is "" for what concerns the daemon or its queue; `seq` counts from 1
    without a gap for each ticket.
    """

    name: Name
    ticket: str
    seq: int
    at_us: int
    run: str | None = None
    payload: Mapping[str, Value] = field(default_factory=dict)
    version: int = VERSION


FACTS: Mapping[Name, type[Fact]] = {
    Name.TICKET_TAKEN: Taken,
    Name.TICKET_CLAIMED: Claimed,
    Name.TICKET_ORPHANED: Orphaned,
    Name.TICKET_PUT_BACK: PutBack,
    Name.TICKET_HELD: Held,
    Name.TICKET_FINISHED: Finished,
    Name.TICKET_FRESH_USED: FreshUsed,
    Name.TICKET_STOP_REQUESTED: StopRequested,
    Name.TICKET_STOPPED: Stopped,
    Name.TICKET_CANCELLED: Cancelled,
    Name.TICKET_PARKED: Parked,
    Name.TICKET_RELEASED: Released,
    Name.TICKET_RETRIED: Retried,
    Name.TICKET_ANSWERED: Answered,
    Name.TICKET_SETTLED: Settled,
}
"""The events that a ticket is folded from."""

_NAMES = {fact: name for name, fact in FACTS.items()}
_ENUMS = {"cause": Cause, "reason": Reason, "stop": Stop}

ROUTINE = frozenset(
    {
        Name.TICKET_CLAIMED,
        Name.TICKET_ORPHANED,
        Name.TICKET_STOP_REQUESTED,
        Name.TICKET_FRESH_USED,
        Name.PROCESSES_REAPED,
        Name.WORKTREE_REUSED,
        Name.SESSION_OPENED,
        Name.SESSION_CLOSED,
        Name.SESSION_OUTDATED,
        Name.RUN_STARTED,
        Name.RUN_ENDED,
        Name.AGENT_STARTED,
        Name.AGENT_RETRIED,
        Name.AGENT_LIMITED,
        Name.SETUP_STARTED,
        Name.SETUP_PASSED,
        Name.SETUP_FAILED,
        Name.CHECK_STARTED,
        Name.CHECK_PASSED,
        Name.CHECK_FAILED,
        Name.BUDGET_WARNED,
        Name.BASE_CONFLICTED,
    }
)
"""What every claim writes, however soon its daemon dies; anything else is progress."""

WORK_AGAIN = frozenset({Name.RUN_STARTED, Name.TICKET_RETRIED, Name.TICKET_ANSWERED, Name.WORKTREE_MADE})
"""After one of these a finished conversation goes on. A worktree that had to be made again
may lack what was not committed. A failed check alone is not one of them: the check is
free, so a claim that died after it runs the check again."""


def fact_name(fact: Fact) -> Name:
    """Return the event that saves `fact`."""
    return _NAMES[type(fact)]


def fact_payload(fact: Fact) -> dict[str, Value]:
    """Return what the event of `fact` holds."""
    return {key: str(value) if isinstance(value, StrEnum) else value for key, value in asdict(fact).items()}


def to_fact(event: Event) -> Fact | None:
    """Return the fact that `event` saved, or None when it is not one of a ticket's own.

    Keys that this version does not know are left out, so that it folds what a later one wrote.
    """
    kind = FACTS.get(event.name)
    if kind is None:
        return None
    known = {f.name for f in fields(kind)}
    return kind(**{k: _ENUMS[k](v) if k in _ENUMS else v for k, v in event.payload.items() if k in known})  # type: ignore[arg-type]  # a payload is what fact_payload wrote


def fold_log(ticket_id: str, log: Iterable[Event]) -> Ticket:
    """Return the ticket that its log, oldest first, makes."""
    return fold(ticket_id, (fact for event in log if (fact := to_fact(event)) is not None))


def progressed(names: Iterable[Name]) -> bool:
    """Return whether a claim that wrote `names` got anywhere."""
    return any(name not in ROUTINE for name in names)


def finished_conversation(names: Iterable[Name]) -> bool:
    """Return whether the agent has finished this round, given the round's events, oldest first."""
    finished = False
    for name in names:
        if name is Name.AGENT_FINISHED:
            finished = True
        elif name in WORK_AGAIN:
            finished = False
    return finished
