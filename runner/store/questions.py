"""What agents asked and people answered.

A question is saved behind the fence; its answer makes a ticket that waits for it ready. One with a default answer and
a deadline is answered with that when nobody else did by then; whoever is first is decided in the transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, RowMapping, and_, func, select, update

from runner.errors import RunnerError
from runner.events import Name
from runner.store import claims, schema, tickets
from runner.store.connection import Rx, Tx
from tickets.ticket import OPEN, Answered, Reason, State, Ticket

_q = schema.question.c
_r = schema.run.c
_t = schema.ticket.c
_US = 1_000_000

BY_DEADLINE = "deadline"
"""Who answered a question that nobody answered."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question as stored."""

    id: int
    ticket: str
    text: str
    answer: str | None
    answered_by: str | None
    default_answer: str | None
    """What holds if nobody answers by the deadline."""
    deadline_us: int | None
    """None: it waits for a person."""
    asked_at_us: int
    answered_at_us: int | None

    @property
    def is_by_default(self) -> bool:
        """Nobody answered in time."""
        return self.answered_by == BY_DEADLINE


class NoQuestion(RunnerError):
    """A ticket has no open question."""

    def __init__(self, ticket: str, state: State) -> None:
        super().__init__(ticket, state)
        self.ticket, self.state = ticket, state

    def __str__(self) -> str:
        return f"ticket {self.ticket} ({self.state}) has no open question: nothing was changed"


def ask(
    tx: Tx,
    ticket: str,
    token: int,
    text: str,
    *,
    run: str,
    default: str | None = None,
    deadline_s: float | None = None,
) -> int | None:
    """Save a question and return its deadline; the same one is saved once while it is open, with its first deadline.

    Args:
        tx: The transaction.
        ticket: Whose.
        token: Of the claim.
        text: The question.
        run: Which asks.
        default: The answer if there is none by the deadline.
        deadline_s: From now; means nothing without a default.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    claims.require(tx, ticket, token)
    for question in open_questions(tx, ticket):
        if question.text == text:
            return question.deadline_us
    deadline_us = None if default is None or deadline_s is None else tx.now_us + round(deadline_s * _US)
    values = {
        "ticket": ticket,
        "round": tickets.get(tx, ticket).ticket.round,
        "text": text,
        "default_answer": default,
        "deadline_us": deadline_us,
        "asked_at_us": tx.now_us,
        "run": run,
    }
    saved = tx.connection.execute(schema.question.insert().values(values).returning(_q.id)).scalar_one()
    tx.log(ticket, Name.QUESTION_ASKED, run=run, question=int(saved), deadline_us=deadline_us)
    return deadline_us


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
    return _answer(tx, before, {question.id: text for question in open_}, by=by)


def answer_overdue(tx: Tx, home: str) -> list[str]:
    """Answer with its default each question whose deadline is over, of tickets of `home`; return those tickets."""
    query = select(schema.question).where(_waits_for_time(home), _q.deadline_us <= tx.now_us).order_by(_q.id)
    overdue: dict[str, dict[int, str]] = {}
    for question in map(_row, tx.connection.execute(query).mappings()):
        overdue.setdefault(question.ticket, {})[question.id] = question.default_answer or ""
    for ticket, answers in overdue.items():
        _answer(tx, tickets.get(tx, ticket).ticket, answers, by=BY_DEADLINE)
    return [*overdue]


def next_deadline_us(rx: Rx, home: str) -> int | None:
    """Return when `answer_overdue` has something to do next, which may be past."""
    first = rx.connection.execute(select(func.min(_q.deadline_us)).where(_waits_for_time(home))).scalar_one()
    return None if first is None else int(first)


def _answer(tx: Tx, before: Ticket, answers: Mapping[int, str], *, by: str) -> Ticket:
    """Save answers; a ticket that is held for its questions goes on with the last of them."""
    for question, text in answers.items():
        values = {"answer": text, "answered_by": by, "answered_at_us": tx.now_us}
        tx.connection.execute(update(schema.question).where(_q.id == question).values(values))
    tx.log(before.id, Name.QUESTION_ANSWERED, questions=len(answers), by=by)
    if before.state is State.HELD and before.reason is Reason.QUESTION and not open_questions(tx, before.id):
        return tickets.apply(tx, before.id, Answered())
    return before


def _waits_for_time(home: str) -> ColumnElement[bool]:
    """Return what is true of an open question with a deadline, of a ticket of `home` that is not over."""
    of_home = select(_t.id).where(_t.home == home, _t.state.in_(OPEN))
    return and_(_q.answered_at_us.is_(None), _q.deadline_us.is_not(None), _q.ticket.in_(of_home))


def open_questions(rx: Rx, ticket: str) -> list[Question]:
    """Return what a ticket asked and nobody has answered, oldest first."""
    query = select(schema.question).where(_q.ticket == ticket, _q.answered_at_us.is_(None)).order_by(_q.id)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def open_by_ticket(rx: Rx) -> dict[str, list[Question]]:
    """Return what nobody has answered, oldest first, of every ticket that asked."""
    query = select(schema.question).where(_q.answered_at_us.is_(None)).order_by(_q.id)
    found: dict[str, list[Question]] = {}
    for question in map(_row, rx.connection.execute(query).mappings()):
        found.setdefault(question.ticket, []).append(question)
    return found


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
        found["default_answer"],
        found["deadline_us"],
        found["asked_at_us"],
        found["answered_at_us"],
    )
