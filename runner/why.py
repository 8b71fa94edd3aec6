"""Why a ticket is not running, and what would make it run.

One answer for the table, for `show` and for `explain`, from facts alone; whoever
asks has looked them up.

Pure. Knows tickets and the names of events; does not know the store or a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from runner.admission import HOURS, MACHINE, WEATHER, Closed
from runner.events import Name, Value
from tickets.moves import IDLE_CRASHES_TO_HOLD
from tickets.ticket import NEVER_US, OF_EFFECTS, Cause, Reason, State, Ticket

_SUMMARY_CHARS = 60
_UNDECIDED = frozenset({"unknown", "approval"})
_UNDER_WAY = frozenset({"wanted", "claimed"})
_NEXT: Mapping[Reason, str] = {
    Reason.QUESTION: "`ticket-runner answer {id} TEXT`",
    Reason.EFFECT: "`ticket-runner effects {id}`, then `settle KEY`",
    Reason.APPROVAL: "`ticket-runner effects {id}`, then `approve KEY`, or `settle KEY --abandon`",
    Reason.BUDGET: "`ticket-runner release {id} --budget-usd N`",
    Reason.ATTEMPTS: "`ticket-runner retry {id}`",
    Reason.SESSION: "`ticket-runner retry {id} --fresh`",
    Reason.LOOP: "mend what it runs into and `ticket-runner release {id}`, or `retry {id} --fresh`",
    Reason.WORKTREE: "mend it, then `ticket-runner release {id}`",
    Reason.CHECKS: "`ticket-runner retry {id}`, or mend it and `release`",
    Reason.DELIVERY: "mend it, then `ticket-runner release {id}`",
    Reason.NO_CHANGE: "`ticket-runner retry {id}`, or `cancel`",
    Reason.OPERATOR: "`ticket-runner release {id}`",
}
_START = "`ticket-runner start`"
_DOLLARS = "limits.ticket_usd"
_DAEMON = f"a daemon: {_START}"


@dataclass(frozen=True, slots=True)
class Why:
    """Why a ticket is where it is."""

    sentence: str
    """The first line says it; what a hold is about may have more. "" when the state says it all."""
    then: str = ""
    """What makes it run; "" when nothing has to, or nothing can."""
    until_us: int | None = None
    """When that happens by itself; None when it does not, or nobody knows when."""
    needs: str = ""
    """What that takes in any case; "" when it takes nothing."""

    @property
    def next(self) -> str:
        """What makes it run, and when that comes by itself, as it is read."""
        if self.until_us is None:
            return "; ".join(part for part in (self.then, self.needs) if part)
        sooner = f", or sooner with {self.then}" if self.then else ""
        needs = f"; that takes {self.needs}" if self.needs else ""
        return f"at {clock(self.until_us)}{sooner}{needs}"


@dataclass(frozen=True, slots=True)
class Asked:
    """The questions of a ticket that have no answer."""

    since_us: int
    """Of the first one."""
    until_us: int | None = None
    """When the last of them is answered with its default; None when one waits for a person."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who claimed a running ticket."""

    home: str
    host: str
    lease_until_us: int


@dataclass(frozen=True, slots=True)
class Last:
    """The last that was logged of a ticket."""

    name: Name
    payload: Mapping[str, Value]
    at_us: int


@dataclass(frozen=True, slots=True)
class Queue:
    """What concerns every ticket of a queue."""

    now_us: int
    home: str
    """Of this queue's daemon."""
    has_daemon: bool
    slots: int
    """How many tickets run at once."""
    running: int
    attempts: int
    """How many failures of its own hold a ticket."""
    shut: Closed | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one ticket."""

    ticket: Ticket
    branch: str | None = None
    """That the repository has its work on, when it is done."""
    home: str | None = None
    """That has its worktree."""
    owner: Owner | None = None
    asked_not_before_us: int = 0
    """By the ticket itself."""
    ahead: int = 0
    """Tickets that are due and go first."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """How many of them are in which state; "unknown" and "approval" wait for a person."""
    asked: Asked | None = None
    last: Last | None = None


def why(facts: Facts, queue: Queue) -> Why:
    """Return why a ticket is where it is and what would move it on."""
    ticket = facts.ticket
    match ticket.state:
        case State.HELD:
            return _held(facts, queue)
        case State.RUNNING:
            return _running(facts, queue)
        case State.READY:
            found = _ready(facts, queue)
            if queue.has_daemon or _is_elsewhere(facts, queue):
                return found
            if found.until_us is not None or found.needs:
                return replace(found, needs=f"{found.needs}; {_DAEMON}" if found.needs else _DAEMON)
            return replace(found, then=f"{found.then}, and {_START}" if found.then else _START)
        case State.DONE:
            return Why(f"its work is on {facts.branch}" if facts.branch else "nothing had to change")
        case _:
            return Why("given up", f"`ticket-runner retry {ticket.id}`")


def next_step(ticket: Ticket) -> str:
    """Return what lets a held ticket go on; "" for any other."""
    cap = ticket.note.partition(":")[0]  # a note of a cap begins with the key that raises it
    if ticket.reason is Reason.BUDGET and cap.startswith("limits.") and cap != _DOLLARS:
        return f"raise {cap}, restart and `ticket-runner release {ticket.id}`"
    return "" if ticket.reason is None else _NEXT[ticket.reason].format(id=ticket.id)


def closed(shut: Closed) -> Why:
    """Return why the queue starts no ticket."""
    note = f": {first}" if (first := shut.note.partition("\n")[0]) else ""
    until = "" if shut.until_us is None else f" until {clock(shut.until_us)}"
    if shut.reason in {HOURS, MACHINE}:
        needs = "that room, or a lower floor and a restart" if shut.reason == MACHINE else ""
        return Why(f"no ticket starts{until}{note}", until_us=shut.until_us, needs=needs)
    if shut.reason == WEATHER:
        tries = ", when one ticket tries" if until else ""
        return Why(
            f"the queue waits for the weather{until}{tries}{note}",
            "`ticket-runner resume`",
            shut.until_us,
        )
    return Why(f"the queue is paused{note}", "`ticket-runner resume`")


def in_the_folder(*, has_daemon: bool) -> Why:
    """Return why a file that lies in the queue folder is no ticket yet."""
    if has_daemon:
        return Why("waits in the folder", "it is taken in when it has not changed for a second")
    return Why("waits in the folder: nothing has taken it in", _START)


def not_taken(problem: str) -> Why:
    """Return why a file cannot become a ticket."""
    return Why(f"not taken: {problem}", "mend the file: it is looked at again when it changes")


def clock(at_us: int) -> str:
    """Return a time as it is shown: to the second, UTC."""
    return datetime.fromtimestamp(at_us / 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lasted(us: int) -> str:
    """Return a length of time as it is shown: in its largest whole unit."""
    seconds = max(us // 1_000_000, 0)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _held(facts: Facts, queue: Queue) -> Why:
    ticket, asked, until_us = facts.ticket, facts.asked, None
    if ticket.reason in OF_EFFECTS and not facts.effects.keys() & _UNDECIDED and facts.effects.keys() & _UNDER_WAY:
        decided = Why(f"{ticket.reason}: decided; it goes on when that is done")
        return decided if queue.has_daemon else replace(decided, then=_START)
    because = str(ticket.reason)
    if ticket.reason is Reason.QUESTION and asked is not None:
        because += f", asked {lasted(queue.now_us - asked.since_us)} ago"
        until_us = asked.until_us
    if ticket.reason is Reason.ATTEMPTS and ticket.crashes < IDLE_CRASHES_TO_HOLD:
        because += f", {ticket.attempts + 1} failed"
    note = ticket.note.rstrip()
    return Why(f"{because}: {note}" if note else because, next_step(ticket), until_us)


def _running(facts: Facts, queue: Queue) -> Why:
    ticket, owner = facts.ticket, facts.owner
    if owner is not None and owner.home != queue.home:
        sentence = f"claimed by the daemon of {owner.home} on {owner.host}"
        if owner.lease_until_us >= queue.now_us:
            return Why(sentence)
        then = (
            "a daemon of this database puts it back" if facts.home is None else "that daemon takes it up at its start"
        )
        return Why(f"{sentence}, silent since {clock(owner.lease_until_us)}", then)
    if ticket.stop is not None and not queue.has_daemon:
        return Why(f"asked to stop ({ticket.stop}): it does when a daemon starts", _START)
    if ticket.stop is not None:
        return Why(f"asked to stop ({ticket.stop})", "it does when its processes are gone")
    if not queue.has_daemon:
        return Why("interrupted: it goes on at the next start", _START)
    return Why("works" if facts.last is None else _doing(facts.last, queue.now_us))


def _doing(last: Last, now_us: int) -> str:
    """Return what a running ticket does, by the last thing that was logged of it."""
    said, since = last.payload, f"for {lasted(now_us - last.at_us)}"
    match last.name:
        case Name.TOOL_STARTED:
            summary = next(iter(str(said.get("summary") or "").splitlines()), "")[:_SUMMARY_CHARS]
            return f"in {said.get('tool')} {since}: {summary}" if summary else f"in {said.get('tool')} {since}"
        case Name.CHECK_STARTED:
            return f"checks {since}: {said.get('command')}"
        case Name.SETUP_STARTED:
            return f"sets up {since}: {said.get('command')}"
        case Name.AGENT_RETRIED:
            cause = said.get("status") or said.get("error") or "no answer"
            return f"asks the API again {since}: {cause}, try {said.get('attempt')}"
        case Name.EFFECT_WANTED | Name.EFFECT_CLAIMED:
            return f"waits for an effect {since}: {said.get('key')}"
        case Name.RUN_STARTED:
            return f"starts Claude Code {since}"
        case Name.AGENT_FINISHED | Name.CHECK_PASSED | Name.BRANCH_COMMITTED | Name.BRANCH_PUSHED:
            return f"delivers {since}"
        case Name.AGENT_STARTED | Name.AGENT_LIMITED | Name.SESSION_CONFIRMED | Name.TOOL_ENDED:
            return f"the model thinks {since}"
        case (
            Name.TICKET_CLAIMED
            | Name.PROCESSES_REAPED
            | Name.WORKTREE_MADE
            | Name.WORKTREE_REUSED
            | Name.SETUP_PASSED
            | Name.SETUP_ENDED
            | Name.SESSION_OPENED
        ):
            return f"gets ready {since}"
        case _:
            return f"works: {last.name} {lasted(now_us - last.at_us)} ago"


def _ready(facts: Facts, queue: Queue) -> Why:
    """Return what keeps a ticket from being claimed longest."""
    ticket, own, shut = facts.ticket, _own_wait(facts, queue), None if queue.shut is None else closed(queue.shut)
    if _is_elsewhere(facts, queue):
        return Why(f"its worktree is in {facts.home}: only the daemon of that home works on it")
    if shut is not None and (own is None or _ends_us(shut, queue) >= (own.until_us or 0)):
        return shut
    if own is not None:
        return own
    if ticket.stop is not None:
        return Why(f"asked to stop ({ticket.stop}): its next claim does that first")
    first = f"{facts.ahead} before it" if facts.ahead else "it is next"
    if queue.running >= queue.slots:
        return Why(
            f"no slot is free ({queue.running} of {queue.slots} taken); {first}", "one of the running tickets ends"
        )
    return Why(f"due: {first}" if queue.has_daemon else f"no daemon runs; {first}")


def _ends_us(shut: Why, queue: Queue) -> int:
    """Return when the queue starts tickets again, for all that is known: while one tries, that is now."""
    tries = queue.shut is not None and queue.shut.reason == WEATHER
    return shut.until_us or (queue.now_us if tries else NEVER_US)


def _own_wait(facts: Facts, queue: Queue) -> Why | None:
    """Return why this ticket alone has to wait, or None."""
    ticket, last = facts.ticket, facts.last
    if ticket.not_before_us <= queue.now_us:
        return None
    if ticket.token == 0 or ticket.not_before_us == facts.asked_not_before_us:
        because = "as it asks (not_before)"
    elif ticket.waits:
        because = f"wait {ticket.waits} in a row: {ticket.note}"
    elif last is not None and last.payload.get("cause") == Cause.ATTEMPT:
        because = f"try {ticket.attempts} of {queue.attempts} failed: {ticket.note}"
    else:
        because = ticket.note
    until_us, is_for_money = ticket.not_before_us, last is not None and last.payload.get("cause") == Cause.ALLOWANCE
    if until_us >= NEVER_US:
        return Why(f"waits for a person: {because}", "a restart with a higher cap")
    sentence = f"waits until {clock(until_us)}"
    then = "" if is_for_money else f"`ticket-runner release {ticket.id}`"
    return Why(f"{sentence}: {because}" if because else sentence, then, until_us)


def _is_elsewhere(facts: Facts, queue: Queue) -> bool:
    return facts.home not in {None, queue.home}
