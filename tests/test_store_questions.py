"""What an agent is told of the answers that its ticket was given."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.store import questions, sessions, sqlite_url, tickets
from runner.store.questions import Question
from tests.stores import Place
from tickets.ticket import Held, Reason


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Return an open database with one daemon and a claimed ticket."""
    place = Place(sqlite_url(tmp_path / "tickets.db"))
    place.take("a")
    place.claim()
    yield place
    place.store.close()


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
