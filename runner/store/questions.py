"""What agents asked and people answered.

A question is saved behind the fence; its answer makes a ticket that waits for it ready.
"""

from dataclasses import dataclass

from sqlalchemy import RowMapping, func, select, update

from runner.errors import RunnerError
from runner.events import Name
from runner.store import schema, tickets
from runner.store.connection import Rx, Tx
from tickets.ticket import Answered, Reason, State, Ticket

_q = schema.question.c
_r = schema.run.c


@dataclass(frozen=True, slots=True)
class Question:
    """A question as stored."""

    id: int
    ticket: str
    text: str
    answer: str | None
    answered_by: str | None
    asked_at_us: int
    answered_at_us: int | None


class NoQuestion(RunnerError):
    """A ticket has no open question."""

    def __init__(self, ticket: str, state: State) -> None:
        super().__init__(ticket, state)
        self.ticket, self.state = ticket, state

    def __str__(self) -> str:
        return f"ticket {self.ticket} ({self.state}) has no open question: nothing was changed"


def ask(tx: Tx, ticket: str, token: int, text: str, *, run: str) -> None:
    """Save a question; the same one is saved once while it is open.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    tickets.require_claim(tx, ticket, token)
    if any(question.text == text for question in open_questions(tx, ticket)):
        return
    round_ = tickets.get(tx, ticket).ticket.round
    values = {"ticket": ticket, "round": round_, "text": text, "asked_at_us": tx.now_us, "run": run}
    question = tx.connection.execute(schema.question.insert().values(values).returning(_q.id)).scalar_one()
    tx.log(ticket, Name.QUESTION_ASKED, run=run, question=int(question))


def answer(tx: Tx, ticket: str, text: str, *, by: str) -> Ticket:
    """Answer all that a ticket has asked and return it: ready, or still running towards its hold.

    Raises:
        UnknownTicket: There is no such ticket.
        NoQuestion: It has no open question.
    """
    before = tickets.get(tx, ticket).ticket
    open_ = open_questions(tx, ticket)
    if not open_:
        raise NoQuestion(ticket, before.state)
    values = {"answer": text, "answered_by": by, "answered_at_us": tx.now_us}
    tx.connection.execute(update(schema.question).where(_q.id.in_([question.id for question in open_])).values(values))
    tx.log(ticket, Name.QUESTION_ANSWERED, questions=len(open_), by=by)
    if before.state is State.HELD and before.reason is Reason.QUESTION:
        return tickets.apply(tx, ticket, Answered())
    return before


def open_questions(rx: Rx, ticket: str) -> list[Question]:
    """Return what a ticket asked and nobody has answered, oldest first."""
    query = select(schema.question).where(_q.ticket == ticket, _q.answered_at_us.is_(None)).order_by(_q.id)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def answered(rx: Rx, ticket: str) -> list[Question]:
    """Return all that was answered, oldest first: what a new session has to be told."""
    return [question for question in questions_of(rx, ticket) if question.answer is not None]


def new_answers(rx: Rx, ticket: str) -> list[Question]:
    """Return what was answered since the agent was last heard in its latest session: what that has to be told.

    No run begins while a question is open, so each run is told what those before it had asked. Told it was once
    its model spoke; by the numbers of the runs, since clocks jump.
    """
    latest = select(_r.session).where(_r.ticket == ticket).order_by(_r.number.desc()).limit(1).scalar_subquery()
    heard = select(func.coalesce(func.max(_r.number), 0)).where(_r.session == latest, _r.confirmed)
    asked = select(_r.id).where(_r.ticket == ticket, _r.number >= heard.scalar_subquery())
    query = (
        select(schema.question)
        .where(_q.ticket == ticket, _q.answered_at_us.is_not(None), _q.run.in_(asked))
        .order_by(_q.id)
    )
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def questions_of(rx: Rx, ticket: str) -> list[Question]:
    """Return all that a ticket ever asked, oldest first."""
    query = select(schema.question).where(_q.ticket == ticket).order_by(_q.id)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def _row(found: RowMapping) -> Question:
    return Question(
        found["id"],
        found["ticket"],
        found["text"],
        found["answer"],
        found["answered_by"],
        found["asked_at_us"],
        found["answered_at_us"],
    )
