"""What an operator may do to a ticket or to the queue, and in which state.

The same for the command line and the control socket: `perform` runs inside one
transaction of whoever may write. A running ticket is never changed under its
claim: it is asked to stop, and the claim reports when nothing of it is left.
"""

from dataclasses import dataclass
from enum import StrEnum

from runner.errors import RunnerError, UsageError
from runner.store import Tx, decisions, effects, questions, queue, runs, tickets
from runner.store.effects import EffectState
from runner.why import next_step
from tickets.moves import SETTLED_ELSEWHERE
from tickets.ticket import Cancelled, Fact, Parked, Released, Retried, State, Stop, StopRequested, Ticket


class Verb(StrEnum):
    """Everything that steers."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    RETRY = "retry"
    PAUSE = "pause"
    RESUME = "resume"
    ANSWER = "answer"
    APPROVE = "approve"
    SETTLE = "settle"
    CLEAN = "clean"


class NotPossible(RunnerError):
    """The ticket's state does not allow the command."""

    def __init__(self, verb: str, ticket: str, because: str) -> None:
        super().__init__(verb, ticket, because)
        self.verb, self.ticket, self.because = verb, ticket, because

    def __str__(self) -> str:
        return f"cannot {self.verb} ticket {self.ticket}: {self.because}"


@dataclass(frozen=True, slots=True)
class Command:
    """One steering command."""

    verb: Verb
    ticket: str = ""
    fresh: bool = False
    key: str = ""
    """Of the effect that APPROVE and SETTLE are about."""
    decision: str = ""
    """Of SETTLE: `done`, `retry` or `abandon`."""
    text: str = ""
    """An answer, or what became of an effect that a person saw done."""
    budget_microusd: int = 0
    """With RELEASE: the ticket's new cap; 0 leaves it as it is."""
    by: str = "operator"


def move(command: Command, ticket: Ticket) -> Fact:
    """Return the fact that `command` makes of `ticket`: the table of docs/commands.md.

    Raises:
        NotPossible: The state does not allow it; the message says what does.
    """
    match command.verb, ticket.state:
        case Verb.CANCEL, State.READY | State.HELD:
            return Cancelled()
        case Verb.CANCEL, State.RUNNING:
            return StopRequested(Stop.CANCEL)
        case Verb.HOLD, State.READY:
            return Parked()
        case Verb.HOLD, State.RUNNING:
            return StopRequested(Stop.HOLD)
        case Verb.RELEASE, State.READY if ticket.stop is None:
            return Released()
        case Verb.RETRY, State.RUNNING:
            return StopRequested(Stop.RETRY, fresh=command.fresh)
        case Verb.RETRY, State.READY | State.CANCELLED:
            return Retried(fresh=command.fresh)
        case Verb.RELEASE | Verb.RETRY, State.HELD:
            if ticket.reason in SETTLED_ELSEWHERE:
                raise NotPossible(command.verb, ticket.id, f"it is held ({ticket.reason}): {next_step(ticket)}")
            return Released() if command.verb is Verb.RELEASE else Retried(fresh=command.fresh)
        case _:
            raise NotPossible(command.verb, ticket.id, _why_not(command.verb, ticket))


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a command."""

    text: str
    stop: bool = False
    """The ticket is running: its claim has to be told."""
    ticket: str = ""
    """Which ticket it was about, where the command did not name it."""


def perform(tx: Tx, command: Command) -> Reply:
    """Carry out `command` in one transaction.

    Raises:
        UnknownTicket: There is no such ticket.
        NotPossible: Its state does not allow it.
    """
    if command.verb is Verb.PAUSE:
        queue.pause(tx, reason="operator", note="", by=command.by)
        return Reply("the queue is paused: running tickets go on, no other starts")
    if command.verb is Verb.RESUME:
        was_paused = queue.resume(tx, by=command.by)
        return Reply("the queue goes on" if was_paused else "the queue is not paused")
    if command.verb is Verb.CLEAN:
        return Reply("the daemon is not through yet: `events` says what it removes")
    if command.verb is Verb.ANSWER:
        answered = questions.answer(tx, command.ticket, command.text, by=command.by)
        return Reply(f"{answered.id} has its answer and is {answered.state}")
    if command.verb is Verb.APPROVE:
        approved = decisions.approve(tx, command.key, by=command.by)
        return Reply(f"{approved.key} is approved", ticket=approved.ticket)
    if command.verb is Verb.SETTLE:
        return _settle(tx, command)
    before = tickets.get(tx, command.ticket).ticket
    fact = move(command, before)
    spent = runs.spent(tx, before.id)
    if 0 < command.budget_microusd <= spent:
        raise NotPossible(command.verb, before.id, f"it has spent ${spent / 1e6:.2f} already: give it more than that")
    after = tickets.apply(tx, command.ticket, fact)
    if command.budget_microusd > 0:
        tickets.set_budget(tx, after.id, command.budget_microusd, by=command.by)
    goes_on = _goes_on(tx, after.id) if command.verb is Verb.CANCEL else ""
    if after.state is State.RUNNING:
        return Reply(f"{after.id} is running: asked to stop ({command.verb}){goes_on}", stop=True)
    return Reply(f"{after.id} is {after.state}{goes_on}")


def _goes_on(tx: Tx, ticket: str) -> str:
    """Return what to say of the effects that a ticket's end does not stop."""
    open_ = effects.open_effects(tx, ticket)
    under_way = [row.key for row in open_ if row.state is EffectState.CLAIMED and not row.is_unknown]
    wanted = [row.key for row in open_ if row.state is EffectState.WANTED and not row.waits_for_approval]
    said = [f"{key} is under way and goes on" for key in under_way]
    said += [f"{key} is still done, unless you `settle {key} --abandon`" for key in wanted]
    return "".join(f"\neffect {each}" for each in said)


_DECISIONS = {
    "done": EffectState.DONE,
    "retry": EffectState.WANTED,
    "abandon": EffectState.ABANDONED,
}


def _settle(tx: Tx, command: Command) -> Reply:
    state = _DECISIONS.get(command.decision)
    if state is None:
        raise UsageError(f"settle {command.key}: say --done TEXT, --retry or --abandon")
    row = decisions.settle(tx, command.key, state, command.text or None, by=command.by)
    ticket = tickets.get(tx, row.ticket).ticket
    return Reply(f"{row.key} is {row.state}; ticket {ticket.id} is {ticket.state}", ticket=ticket.id)


def _why_not(verb: Verb, ticket: Ticket) -> str:
    if ticket.state is State.DONE:
        return "it is done; put the next piece of work into a new ticket"
    if verb is Verb.RELEASE and ticket.state is State.CANCELLED:
        return "it is cancelled; `retry` takes it up again"
    if verb is Verb.RELEASE and ticket.stop is not None:
        return f"it was asked to stop ({ticket.stop}); `retry` takes that back"
    if verb is Verb.RELEASE:
        return f"it is {ticket.state} and waits for nobody"
    return f"it is {ticket.state} already"
