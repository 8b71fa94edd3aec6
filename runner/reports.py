"""Save how a claim ended, and in the same transaction what the outside is to be told of it.

Whoever performs wanted effects finds them there, in every state of the ticket and
after every crash.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runner.claim import Report
from runner.effects import wish_of
from runner.events import Value
from runner.outcome import WAITS, Waits
from runner.store import Tx, claims, effects, log, questions, queue, sessions, tickets
from runner.store.effects import NOTIFY, REPORT
from runner.why import next_step
from tickets.moves import SETTLED_ELSEWHERE
from tickets.ticket import Answered, Finished, Held, Reason, Retried, State, Stop, Stopped, Ticket


@dataclass(frozen=True, slots=True)
class Told:
    """What is wanted with the end of a claim."""

    notify_on: frozenset[State]
    """The states of which a person is notified."""
    waits: Waits = WAITS
    """How long the queue pauses for the weather."""


def save(tx: Tx, ticket_id: str, reported: Callable[[int], Report], told: Told, *, chance: float) -> Ticket:
    """Save the fact that ends a claim, given the time, with what follows at once from it; return the ticket.

    Args:
        tx: The transaction.
        ticket_id: The ticket.
        reported: How its claim ended, given the time.
        told: What is wanted with it.
        chance: From 0 up to 1, at random, for a wait.

    Raises:
        IllegalMove: The claim is not the ticket's any more.
    """
    report, row = reported(tx.now_us), tickets.get(tx, ticket_id)
    after = tickets.apply(tx, ticket_id, report.fact)
    if (
        row.ticket.stop is Stop.RETRY
        and isinstance(report.fact, Stopped | Held)
        and after.reason not in SETTLED_ELSEWHERE
    ):
        after = tickets.apply(tx, ticket_id, Retried(fresh=row.ticket.fresh))
    if (halt := report.halt) is not None and halt.is_weather:
        queue.wait_for_weather(
            tx, note=halt.note, reset_at_us=halt.reset_at_us, by=ticket_id, chance=chance, waits=told.waits
        )
    elif halt is not None:
        queue.pause(tx, reason="ticket", note=halt.note, by=ticket_id)
    if after.reason is Reason.QUESTION and not questions.open_questions(tx, ticket_id):
        return tickets.apply(tx, ticket_id, Answered())  # by a person or a deadline, since the claim looked
    if isinstance(report.fact, Finished | Held) and after.state in {State.DONE, State.HELD}:
        _tell(tx, row, after, told)
    return after


def give_up(tx: Tx, row: tickets.Row, told: Told) -> Ticket:
    """End the claim of a daemon that died, in the transaction of `claims.orphans`; tell when that holds its ticket."""
    after = claims.orphan(tx, row.ticket.id, row.ticket.token)
    if after.state is State.HELD:
        _tell(tx, row, after, told)
    return after


def _tell(tx: Tx, row: tickets.Row, after: Ticket, told: Told) -> None:
    body = _account(tx, row, after)
    _want(tx, row, REPORT, {"body": body})
    if after.state in told.notify_on:
        reason = str(after.reason or "")
        _want(tx, row, NOTIFY, {"ticket": after.id, "state": str(after.state), "reason": reason, "text": body})


def _want(tx: Tx, row: tickets.Row, kind: str, payload: dict[str, Value]) -> None:
    """Want one effect of ours per claim; a claim ends once, so its token is in the key and no agent can use it."""
    effects.want(tx, wish_of(row, f"{kind}.{row.ticket.token}", kind, payload), limit=None)


def _account(tx: Tx, row: tickets.Row, after: Ticket) -> str:
    """Return what a person is told: the reason of a hold, or what the agent says that it did."""
    if after.state is State.HELD:
        return f"Held ({after.reason}).\n\n{after.note}".strip() + f"\n\nNext: {next_step(after)}"
    said = sessions.last_account(tx, row.ticket.id) or ""
    where = f" on {row.branch}" if log.delivered(tx, row.ticket.id) else ": nothing had to change"
    return f"Done{where}.\n\n{said}".strip()
