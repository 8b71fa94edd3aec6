"""What an agent is told of the answers that its ticket was given, by a person or by a deadline."""

from collections.abc import Iterator

import pytest

from runner import reports
from runner.claim import Report
from runner.events import Name
from runner.reports import Told
from runner.store import claims, effects, questions, sessions, tickets
from runner.store.questions import Question
from tests.stores import HOME, SECOND, Place, claimed
from tickets.ticket import Cancelled, Held, Reason, Retried, State


@pytest.fixture
def place(database: str) -> Iterator[Place]:
    """Return an open database with one daemon and a claimed ticket."""
    yield from claimed(database)


def run(place: Place, session: str | None = None, *, spoke: bool = True) -> str:
    """Let a run begin, in a new session or the given one, and its model speak."""
    name = place.run("a", session)
    if spoke:
        (*_, last) = place.store.read(sessions.sessions_of, "a")
        place.store.transact(sessions.confirm_session, last.id, name)
    return name


def ask(place: Place, name: str, text: str) -> None:
    """Let a run ask, and a person answer when the ticket is held for it, or at once."""
    token = place.store.read(tickets.get, "a").ticket.token
    place.store.transact(questions.ask, "a", token, text, run=name)
    place.store.transact(tickets.apply, "a", Held(token, Reason.QUESTION))
    place.store.transact(questions.answer, "a", f"{text} Yes.", by="me")
    place.claim()


def told(found: list[Question]) -> list[str | None]:
    """Return the answers."""
    return [question.answer for question in found]


@pytest.mark.parametrize("jump_s", [-300, 0, 300])
def test_an_answer_is_new_until_the_model_spoke(place: Place, jump_s: int) -> None:
    """An answer is told to each run until one is heard, however the clock jumped since the question."""
    asking = run(place)
    place.clock.pass_s(jump_s)
    ask(place, asking, "Up?")
    assert told(place.store.read(questions.new_answers, "a")) == ["Up? Yes."]
    place.clock.pass_s(jump_s)
    run(place, "a-session-1", spoke=False)
    assert told(place.store.read(questions.new_answers, "a")) == ["Up? Yes."]
    place.clock.pass_s(jump_s)
    later = run(place, "a-session-1")
    assert place.store.read(questions.new_answers, "a") == []
    ask(place, later, "Down?")
    assert told(place.store.read(questions.new_answers, "a")) == ["Down? Yes."]
    assert told(place.store.read(questions.answered, "a")) == ["Up? Yes.", "Down? Yes."]


def test_what_an_earlier_session_was_told_is_new_to_the_next(place: Place) -> None:
    """A session whose model did not speak yet knows none of the answers that the one before it heard."""
    ask(place, run(place), "Up?")
    run(place, "a-session-1")
    assert place.store.read(questions.new_answers, "a") == []
    run(place, spoke=False)
    assert told(place.store.read(questions.new_answers, "a")) == ["Up? Yes."]
    run(place, "a-session-2")
    assert place.store.read(questions.new_answers, "a") == []


def test_an_open_question_is_no_answer(place: Place) -> None:
    """What nobody has answered is told to no session."""
    token = place.store.read(tickets.get, "a").ticket.token
    place.store.transact(questions.ask, "a", token, "Up?", run=run(place))
    assert place.store.read(questions.new_answers, "a") == place.store.read(questions.answered, "a") == []


def waits(place: Place, text: str, default: str | None, deadline_s: float | None) -> int | None:
    """Let the claimed ticket ask, and return the deadline."""
    token = place.store.read(tickets.get, "a").ticket.token
    asking = run(place)
    return place.store.transact(questions.ask, "a", token, text, run=asking, default=default, deadline_s=deadline_s)


def hold(place: Place) -> None:
    """Hold the ticket for its questions, in this home."""
    token = place.store.read(tickets.get, "a").ticket.token
    place.store.transact(claims.set_tree, "a", token, home=HOME, branch="ticket/a", base_sha="0" * 40)
    place.store.transact(tickets.apply, "a", Held(token, Reason.QUESTION))


def overdue(place: Place, home: str = HOME) -> list[str]:
    """Let a daemon look whether a deadline is over."""
    return place.store.transact(questions.answer_overdue, home)


def answers(place: Place) -> list[tuple[str | None, str | None]]:
    """Return each question's answer and who gave it."""
    return [(q.answer, q.answered_by) for q in place.store.read(questions.questions_of, "a")]


def test_a_deadline_that_passes_takes_the_default_once(place: Place) -> None:
    """At its deadline and not before, a question is answered with its default, once, and its ticket is ready."""
    deadline_us = waits(place, "Up?", "Yes.", 60)
    hold(place)
    assert deadline_us == place.store.read(questions.next_deadline_us, HOME) == place.clock.now_us + 60 * SECOND
    place.clock.pass_s(59)
    assert overdue(place) == []
    place.clock.pass_s(1)
    assert (overdue(place), overdue(place)) == (["a"], [])
    assert answers(place) == [("Yes.", "deadline")]
    assert place.store.read(tickets.get, "a").ticket.state is State.READY
    assert place.store.read(questions.next_deadline_us, HOME) is None
    *_, answered, ready = place.log("a")
    assert (answered.name, ready.name) == (Name.QUESTION_ANSWERED, Name.TICKET_ANSWERED)
    assert answered.payload == {"questions": 1, "by": "deadline"}
    (told_,) = place.store.read(questions.new_answers, "a")
    assert told_.is_by_default
    with pytest.raises(questions.NoQuestion):
        place.store.transact(questions.answer, "a", "No.", by="me")


@pytest.mark.parametrize(
    ("default", "deadline_s"), [(None, None), ("Yes.", None), (None, 60)], ids=["plain", "no deadline", "no default"]
)
def test_without_both_a_question_waits_for_a_person(
    place: Place, default: str | None, deadline_s: float | None
) -> None:
    """A question that lacks a default or a deadline is never answered by time."""
    assert waits(place, "Up?", default, deadline_s) is None
    hold(place)
    place.clock.pass_s(10**6)
    assert (overdue(place), place.store.read(questions.next_deadline_us, HOME)) == ([], None)


def test_a_person_who_is_earlier_wins(place: Place) -> None:
    """A person's answer stands when the deadline passes after it."""
    waits(place, "Up?", "Yes.", 60)
    hold(place)
    assert place.store.transact(questions.answer, "a", "No.", by="me").state is State.READY
    place.clock.pass_s(60)
    assert overdue(place) == []
    assert answers(place) == [("No.", "me")]


def test_a_ticket_goes_on_with_the_last_of_its_answers(place: Place) -> None:
    """Each question has its own deadline; one without keeps the ticket held, and a person answers what is left."""
    waits(place, "Up?", "Yes.", 60)
    waits(place, "Left?", None, None)
    waits(place, "Far?", "No.", 90)
    hold(place)
    place.clock.pass_s(60)
    assert overdue(place) == ["a"]
    assert place.store.read(tickets.get, "a").ticket.state is State.HELD
    assert place.store.transact(questions.answer, "a", "Right.", by="me").state is State.READY
    assert answers(place) == [("Yes.", "deadline"), ("Right.", "me"), ("Right.", "me")]


def test_asked_again_a_question_keeps_its_deadline(place: Place) -> None:
    """A run that repeats an open question, as after a crash, gets the deadline that it had."""
    first = waits(place, "Up?", "Yes.", 60)
    place.clock.pass_s(30)
    assert waits(place, "Up?", "No.", 60) == first
    assert len(place.store.read(questions.questions_of, "a")) == 1


def test_a_deadline_is_for_open_tickets_of_the_home(place: Place) -> None:
    """Another home's daemon leaves a question alone; of a cancelled ticket it is answered when that is taken up."""
    waits(place, "Up?", "Yes.", 60)
    hold(place)
    place.clock.pass_s(60)
    assert (overdue(place, "other:/home"), place.store.read(questions.next_deadline_us, "other:/home")) == ([], None)
    place.store.transact(tickets.apply, "a", Cancelled())
    assert (overdue(place), place.store.read(questions.next_deadline_us, HOME)) == ([], None)
    place.store.transact(tickets.apply, "a", Retried())
    assert overdue(place) == ["a"]


def test_an_answer_just_before_the_hold_is_not_lost(place: Place) -> None:
    """A hold for questions that were answered while the claim ended leaves its ticket ready, and tells nobody."""
    waits(place, "Up?", "Yes.", 1)
    token = place.store.read(tickets.get, "a").ticket.token
    place.store.transact(claims.set_tree, "a", token, home=HOME, branch="ticket/a", base_sha="0" * 40)
    place.clock.pass_s(1)
    assert overdue(place) == ["a"]
    report = Report(Held(token, Reason.QUESTION, "Up?"))
    saved = place.store.transact(reports.save, "a", lambda _: report, Told(frozenset(State)), chance=0)
    assert (saved.state, saved.reason) == (State.READY, None)
    assert place.store.read(effects.effects, ticket="a") == []


def test_a_deadline_that_passes_while_the_ticket_runs_is_told_to_its_next_run(place: Place) -> None:
    """A ticket that still runs stays running, and has no open question to be held for."""
    waits(place, "Up?", "Yes.", 1)
    token = place.store.read(tickets.get, "a").ticket.token
    place.store.transact(claims.set_tree, "a", token, home=HOME, branch="ticket/a", base_sha="0" * 40)
    place.clock.pass_s(1)
    assert overdue(place) == ["a"]
    assert place.store.read(tickets.get, "a").ticket.state is State.RUNNING
    assert place.store.read(questions.open_questions, "a") == []
    assert told(place.store.read(questions.new_answers, "a")) == ["Yes."]
