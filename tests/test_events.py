"""What the log says: every fact comes back from it, and it tells progress and a finished conversation."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner.events import (
    FACTS,
    ROUTINE,
    WORK_AGAIN,
    Event,
    Name,
    fact_name,
    fact_payload,
    finished_conversation,
    fold_log,
    progressed,
    to_fact,
)
from tests.lives import KINDS, facts, lives
from tickets.ticket import Cause, Fact, Held, Parked, PutBack, Reason, Retried, Stop, StopRequested, Taken, Ticket


def saved(fact: Fact, seq: int = 1) -> Event:
    """Return the event of `fact` as it is read back from a store that keeps payloads as JSON."""
    return Event(fact_name(fact), "t", seq, at_us=0, payload=json.loads(json.dumps(fact_payload(fact))))


def test_every_fact_has_its_event() -> None:
    """Each kind of fact is saved under one name of its own."""
    assert set(FACTS.values()) == set(KINDS)
    assert len(FACTS) == len(KINDS)


def test_facts_are_the_ticket_events() -> None:
    """The events that a ticket is folded from are those that are named after the ticket."""
    assert {name for name in Name if name.startswith("ticket.")} == set(FACTS)


def test_names_are_a_noun_and_what_happened() -> None:
    """Every name reads `noun.past_participle`."""
    assert [name for name in Name if not re.fullmatch(r"[a-z]+\.[a-z_]+", name)] == []


@given(facts(st.integers(0, 9)))
@example(PutBack(3, Cause.ALLOWANCE, 5, "the day's money is spent"))
@example(Held(1, Reason.QUESTION, "which?"))
@example(Parked(Reason.EFFECT))
@example(StopRequested(Stop.RETRY, fresh=True))
def test_fact_comes_back_from_the_log(fact: Fact) -> None:
    """A fact that was saved and read is the same fact, of the same types."""
    back = to_fact(saved(fact))
    assert back == fact
    assert repr(back) == repr(fact)


@given(facts(st.integers(0, 9)))
def test_payload_is_plain_values(fact: Fact) -> None:
    """A payload holds strings, whole numbers and truth values, and no type of ours."""
    assert {type(value) for value in fact_payload(fact).values()} <= {str, int, bool}


@given(facts(st.integers(0, 9)))
def test_unknown_keys_are_left_out(fact: Fact) -> None:
    """A payload with a key that this version does not know still gives its fact."""
    event = saved(fact)
    assert to_fact(replace(event, payload={**event.payload, "since": "later"}, version=2)) == fact


@pytest.mark.parametrize("name", [name for name in Name if name not in FACTS])
def test_other_events_are_no_facts(name: Name) -> None:
    """An event that is not a ticket's own says nothing of its state."""
    assert to_fact(Event(name, "t", 1, at_us=0, payload={"token": 1})) is None


@given(lives(), st.lists(st.sampled_from([name for name in Name if name not in FACTS])))
def test_ticket_is_folded_out_of_its_log(life: tuple[list[Fact], Ticket], others: list[Name]) -> None:
    """The log of a life, whatever else stands in it, folds into the ticket."""
    past, ticket = life
    log = [saved(fact, seq) for seq, fact in enumerate(past, 1)]
    for at, name in enumerate(others):
        log.insert(at * 2, Event(name, "t", 0, at_us=0))
    assert fold_log("t", log) == ticket


def test_empty_log_is_a_new_ticket() -> None:
    """A ticket without events is as it was taken in."""
    assert fold_log("t", []) == Ticket("t") == fold_log("t", [saved(Taken())])


@given(st.lists(st.sampled_from(Name)))
def test_progress_is_anything_but_routine(names: list[Name]) -> None:
    """A claim got anywhere if it wrote one event, at whatever place, that is not written by every claim."""
    assert progressed(names) == bool(set(names) - ROUTINE)


@pytest.mark.parametrize(
    "name",
    [Name.SESSION_CONFIRMED, Name.TOOL_STARTED, Name.WORKTREE_MADE, Name.AGENT_FINISHED, Name.BRANCH_PUSHED],
)
def test_what_is_new_is_progress(name: Name) -> None:
    """The agent's first word, a tool, a new worktree, the end of the work and a push are progress."""
    assert progressed([Name.TICKET_CLAIMED, Name.PROCESSES_REAPED, name])


def test_start_that_reached_nothing_is_no_progress() -> None:
    """A claim that reaped, found its worktree and started a CLI that said nothing got nowhere."""
    assert not progressed(
        [
            Name.TICKET_CLAIMED,
            Name.PROCESSES_REAPED,
            Name.WORKTREE_REUSED,
            Name.SESSION_OPENED,
            Name.RUN_STARTED,
            Name.AGENT_STARTED,
            Name.AGENT_RETRIED,
            Name.RUN_ENDED,
            Name.TICKET_STOP_REQUESTED,
        ]
    )
    assert not progressed([])


@pytest.mark.parametrize(
    ("names", "finished"),
    [
        ([], False),
        ([Name.RUN_STARTED], False),
        ([Name.RUN_STARTED, Name.AGENT_FINISHED], True),
        ([Name.AGENT_FINISHED, Name.TICKET_ORPHANED, Name.TICKET_CLAIMED, Name.PROCESSES_REAPED], True),
        ([Name.AGENT_FINISHED, Name.CHECK_STARTED, Name.CHECK_FAILED], True),
        ([Name.AGENT_FINISHED, Name.CHECK_FAILED, Name.RUN_STARTED], False),
        ([Name.AGENT_FINISHED, Name.CHECK_FAILED, Name.RUN_STARTED, Name.AGENT_FINISHED], True),
        ([Name.AGENT_FINISHED, Name.TICKET_HELD, Name.TICKET_RELEASED], True),
        ([Name.AGENT_FINISHED, Name.TICKET_HELD, Name.TICKET_RETRIED], False),
        ([Name.AGENT_FINISHED, Name.TICKET_HELD, Name.TICKET_ANSWERED], False),
        ([Name.WORKTREE_MADE, Name.RUN_STARTED, Name.AGENT_FINISHED, Name.WORKTREE_REUSED], True),
        ([Name.AGENT_FINISHED, Name.TICKET_CLAIMED, Name.WORKTREE_MADE], False),
    ],
)
def test_finished_conversation_is_not_paid_again(names: list[Name], *, finished: bool) -> None:
    """A finish lasts over deaths and releases, until a run, a retry, an answer or a lost worktree undoes it."""
    assert finished_conversation(names) is finished


@given(st.lists(st.sampled_from(Name)), st.lists(st.sampled_from(sorted(set(Name) - WORK_AGAIN))))
def test_finish_counts_until_work_goes_on(before: list[Name], after: list[Name]) -> None:
    """Whatever came before, the last word between a finish and more work decides."""
    assert finished_conversation([*before, Name.AGENT_FINISHED, *after])
    assert not finished_conversation([*before, Name.AGENT_FINISHED, fact_name(Retried())])
