"""What a ticket may do: every move in every state, the fence, the counters and the ids."""

import pickle
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.lives import KINDS, any_tickets, claimed, facts, lives, with_token
from tickets.moves import IDLE_CRASHES_TO_HOLD, SETTLED_ELSEWHERE, IllegalMove, advance, fold
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
    State,
    Stop,
    Stopped,
    StopRequested,
    Taken,
    Ticket,
    canonical_id,
    id_problem,
)

RUNNING = Ticket("t", State.RUNNING, token=1)
TICKETS = (
    Ticket("t", token=1),
    RUNNING,
    Ticket("t", State.HELD, Reason.OPERATOR, token=1),
    Ticket("t", State.DONE, token=1),
    Ticket("t", State.CANCELLED, token=1),
)
FACTS: tuple[Fact, ...] = (
    Taken(),
    Claimed(2),
    Orphaned(1, progressed=True),
    PutBack(1, Cause.WEATHER),
    Held(1, Reason.CHECKS),
    Finished(1),
    FreshUsed(1),
    StopRequested(Stop.HOLD),
    Stopped(1),
    Cancelled(),
    Parked(),
    Released(),
    Retried(),
    Answered(),
    Settled(),
)
MOVES: dict[tuple[State, type[Fact]], State] = {
    (State.READY, Claimed): State.RUNNING,
    (State.READY, Cancelled): State.CANCELLED,
    (State.READY, Parked): State.HELD,
    (State.READY, Released): State.READY,
    (State.READY, Retried): State.READY,
    (State.RUNNING, Orphaned): State.READY,
    (State.RUNNING, PutBack): State.READY,
    (State.RUNNING, Held): State.HELD,
    (State.RUNNING, Finished): State.DONE,
    (State.RUNNING, FreshUsed): State.RUNNING,
    (State.RUNNING, StopRequested): State.RUNNING,
    (State.RUNNING, Stopped): State.READY,
    (State.HELD, Released): State.READY,
    (State.HELD, Retried): State.READY,
    (State.HELD, Cancelled): State.CANCELLED,
    (State.CANCELLED, Retried): State.READY,
}
REPORTS: tuple[type[Fact], ...] = (Orphaned, PutBack, Held, Finished, FreshUsed, Stopped)


@pytest.mark.parametrize("ticket", TICKETS, ids=lambda ticket: ticket.state)
@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_table_of_moves(ticket: Ticket, fact: Fact) -> None:
    """Each fact moves a ticket to the state that the table gives, and is refused where it gives none."""
    expected = MOVES.get((ticket.state, type(fact)))
    if expected is None:
        with pytest.raises(IllegalMove):
            advance(ticket, fact)
    else:
        assert advance(ticket, fact).state is expected


def test_table_names_every_state_and_fact() -> None:
    """The table of moves is about every state and every kind of fact."""
    assert {ticket.state for ticket in TICKETS} == set(State)
    assert {type(fact) for fact in FACTS} == set(KINDS)


@given(any_tickets(), facts(st.integers(0, 5)))
def test_advance_is_total(ticket: Ticket, fact: Fact) -> None:
    """Whatever a ticket is, a fact moves it or is refused as an illegal move, and its id stays."""
    try:
        after = advance(ticket, fact)
    except IllegalMove:
        return
    assert after.id == ticket.id
    assert after.token == ticket.token + isinstance(fact, Claimed)


@given(any_tickets(), facts(st.integers(0, 5), REPORTS))
def test_report_of_another_claim_is_refused(ticket: Ticket, fact: Fact) -> None:
    """The fence: what a claim reports with a token that is not the ticket's, or when it does not run, is refused."""
    assume(ticket.state is not State.RUNNING or with_token(fact, ticket.token) != fact)
    with pytest.raises(IllegalMove):
        advance(ticket, fact)


@given(lives(), facts(st.just(0), REPORTS))
def test_report_of_an_earlier_claim_is_refused(life: tuple[list[Fact], Ticket], fact: Fact) -> None:
    """A claim that was given up for dead cannot report to the ticket, whatever became of it since."""
    _, ticket = life
    with pytest.raises(IllegalMove):
        advance(ticket, with_token(fact, ticket.token - 1))


@given(any_tickets(), st.integers(0, 6))
def test_claim_has_the_next_token(ticket: Ticket, token: int) -> None:
    """A ready ticket is claimed with the token after its last one and no other, another ticket never."""
    if ticket.state is State.READY and token == ticket.token + 1:
        assert advance(ticket, Claimed(token)).token == token
    else:
        with pytest.raises(IllegalMove):
            advance(ticket, Claimed(token))


@given(lives())
def test_what_is_true_of_every_ticket(life: tuple[list[Fact], Ticket]) -> None:
    """A ticket has a reason when and only when it is held, does not wait while it runs and is held in time."""
    past, ticket = life
    assert (ticket.reason is not None) == (ticket.state is State.HELD)
    assert ticket.token == sum(isinstance(fact, Claimed) for fact in past)
    assert ticket.stop is None or ticket.state in {State.RUNNING, State.READY}
    assert ticket.state is not State.RUNNING or ticket.not_before_us == 0
    assert 0 <= ticket.crashes < IDLE_CRASHES_TO_HOLD or ticket.state in {State.HELD, State.CANCELLED}
    assert ticket.attempts >= 0
    assert ticket.waits >= 0


@given(lives())
def test_ticket_is_what_its_facts_fold_into(life: tuple[list[Fact], Ticket]) -> None:
    """Folding a life from its start makes the ticket that each fact in turn made."""
    past, ticket = life
    assert fold("t", past) == ticket


def test_fold_refuses_what_is_no_life() -> None:
    """Facts that no ticket can have in a row are refused by the fold."""
    with pytest.raises(IllegalMove):
        fold("t", [Taken(), Finished(1)])


def test_taken_says_from_when_on() -> None:
    """A ticket that its source wants later is ready from then on, and is taken before its first claim only."""
    assert fold("t", [Taken(77)]) == Ticket("t", not_before_us=77)
    assert fold("t", [Taken(77), Claimed(1)]).not_before_us == 0


def test_three_idle_deaths_hold() -> None:
    """Three claims in a row that end in the daemon's death with nothing new in the log hold the ticket."""
    ticket = Ticket("t")
    for _ in range(2):
        ticket = advance(claimed(ticket), Orphaned(ticket.token + 1, progressed=False))
        assert ticket.state is State.READY
    ticket = advance(claimed(ticket), Orphaned(ticket.token + 1, progressed=False))
    assert (ticket.state, ticket.reason, ticket.attempts) == (State.HELD, Reason.ATTEMPTS, 0)
    assert "3 claims in a row" in ticket.note
    assert advance(ticket, Released()).crashes == 0


@pytest.mark.parametrize(
    "between", [Orphaned(3, progressed=True), PutBack(3, Cause.DRAIN)], ids=lambda fact: type(fact).__name__
)
def test_idle_deaths_count_only_in_a_row(between: Fact) -> None:
    """A claim that got anywhere, or that ended by itself, starts the count of idle deaths anew."""
    idle = [fact for token in (1, 2) for fact in (Claimed(token), Orphaned(token, progressed=False))]
    ticket = fold("t", [*idle, Claimed(3), between])
    assert (ticket.state, ticket.crashes) == (State.READY, 0)


@pytest.mark.parametrize("cause", Cause)
def test_only_an_attempt_counts_as_one(cause: Cause) -> None:
    """Weather, drains, starts that never reached the model and a spent day are no attempt."""
    after = advance(RUNNING, PutBack(1, cause, 5, "why"))
    assert after.attempts == (cause is Cause.ATTEMPT)
    assert (after.state, after.not_before_us, after.note) == (State.READY, 5, "why")


def test_death_of_the_daemon_is_no_attempt() -> None:
    """A daemon's death counts neither as an attempt nor as a wait."""
    after = advance(RUNNING, Orphaned(1, progressed=True))
    assert (after.attempts, after.waits) == (0, 0)


@pytest.mark.parametrize(
    ("cause", "waits"),
    [(Cause.WEATHER, 3), (Cause.START, 3), (Cause.ATTEMPT, 0), (Cause.ALLOWANCE, 0), (Cause.DRAIN, 0)],
)
def test_waits_count_only_in_a_row(cause: Cause, waits: int) -> None:
    """Weather and failed starts in a row are counted, and any other end starts that count anew."""
    assert advance(Ticket("t", State.RUNNING, token=1, waits=2), PutBack(1, cause)).waits == waits


@pytest.mark.parametrize("fact", [Released(), Retried()])
def test_person_starts_the_counts_anew(fact: Fact) -> None:
    """A held ticket that a person lets go has all its attempts and waits for nothing."""
    held = Ticket("t", State.HELD, Reason.ATTEMPTS, "tried", token=1, attempts=3, waits=2, crashes=3, not_before_us=9)
    assert advance(held, fact) == Ticket("t", token=1)


def test_released_while_it_waits_is_due_at_once() -> None:
    """A ready ticket that waits is due at once when a person releases it, and keeps its attempts."""
    waiting = Ticket("t", note="429", token=1, attempts=2, waits=4, not_before_us=9)
    assert advance(waiting, Released()) == Ticket("t", token=1, attempts=2)


@pytest.mark.parametrize("reason", Reason)
@pytest.mark.parametrize("fact", [Released(), Retried(), Answered(), Settled()], ids=lambda fact: type(fact).__name__)
def test_held_for_something_goes_on_by_that(reason: Reason, fact: Fact) -> None:
    """A question is left by its answer, an effect by being settled or approved, all else by a person's word."""
    allowed: tuple[type[Fact], ...] = (Released, Retried)
    if reason in SETTLED_ELSEWHERE:
        allowed = (Answered,) if reason is Reason.QUESTION else (Settled,)
    held = Ticket("t", State.HELD, reason, token=1)
    if isinstance(fact, allowed):
        assert advance(held, fact) == Ticket("t", token=1)
    else:
        with pytest.raises(IllegalMove):
            advance(held, fact)


@pytest.mark.parametrize("reason", Reason)
def test_held_for_anything_can_be_cancelled(reason: Reason) -> None:
    """A held ticket can be given up, whatever it is held for."""
    assert advance(Ticket("t", State.HELD, reason, "why"), Cancelled()) == Ticket("t", State.CANCELLED)


@pytest.mark.parametrize(
    ("stop", "state", "reason"),
    [
        (Stop.CANCEL, State.CANCELLED, None),
        (Stop.HOLD, State.HELD, Reason.OPERATOR),
        (Stop.RETRY, State.READY, None),
    ],
)
@pytest.mark.parametrize("end", [None, Orphaned(1, progressed=False), PutBack(1, Cause.WEATHER, 99)], ids=repr)
def test_stop_is_done_once_by_this_claim_or_the_next(
    stop: Stop, state: State, reason: Reason | None, end: Fact | None
) -> None:
    """A requested stop changes the state when the claim has ended, and outlives a death of the daemon."""
    ticket = fold("t", [Taken(), Claimed(1), StopRequested(stop)])
    assert ticket.state is State.RUNNING
    if end is not None:
        left = advance(ticket, end)
        assert (left.state, left.stop, left.not_before_us) == (State.READY, stop, 0)
        ticket = claimed(left)
    assert ticket.stop is stop
    after = advance(ticket, Stopped(ticket.token))
    assert (after.state, after.reason, after.stop) == (state, reason, None)


def test_stop_outlives_two_idle_deaths_and_ends_in_a_hold_at_the_third() -> None:
    """A stop that three daemons in a row died of is not tried again: a person sees a held ticket."""
    ticket = fold("t", [Claimed(1), StopRequested(Stop.CANCEL), Orphaned(1, progressed=False)])
    ticket = advance(claimed(ticket), Orphaned(2, progressed=False))
    assert ticket.stop is Stop.CANCEL
    ticket = advance(claimed(ticket), Orphaned(3, progressed=False))
    assert (ticket.state, ticket.stop) == (State.HELD, None)


def test_last_stop_is_the_one_that_counts() -> None:
    """A second stop takes the place of the first, and a wish for a new session stays."""
    asked = fold("t", [Claimed(1), StopRequested(Stop.RETRY, fresh=True), StopRequested(Stop.HOLD)])
    assert (asked.stop, asked.fresh) == (Stop.HOLD, True)


def test_delivered_work_is_done_whatever_was_asked() -> None:
    """A stop that comes too late, after delivery, leaves the ticket done."""
    assert fold("t", [Claimed(1), StopRequested(Stop.CANCEL), Finished(1)]) == Ticket("t", State.DONE, token=1)


@pytest.mark.parametrize("stop", Stop)
def test_hold_and_a_stop_at_once(stop: Stop) -> None:
    """A claim that holds its ticket while a stop is asked for leaves it held, or cancelled if that was asked."""
    after = fold("t", [Claimed(1), StopRequested(stop), Held(1, Reason.QUESTION, "which?")])
    expected = (State.CANCELLED, None) if stop is Stop.CANCEL else (State.HELD, Reason.QUESTION)
    assert (after.state, after.reason, after.stop) == (*expected, None)


@pytest.mark.parametrize(
    ("fact", "state"), [(Cancelled(), State.CANCELLED), (Parked(), State.HELD), (Retried(), State.READY)]
)
def test_stop_left_by_a_death_gives_way_to_a_new_word(fact: Fact, state: State) -> None:
    """Between two claims a person may say otherwise, and the earlier stop is forgotten."""
    left = fold("t", [Claimed(1), StopRequested(Stop.CANCEL), Orphaned(1, progressed=True)])
    after = advance(left, fact)
    assert (after.state, after.stop) == (state, None)


def test_release_does_not_undo_a_stop() -> None:
    """Releasing a ticket whose stop was not done yet is refused: it asks for two things at once."""
    left = fold("t", [Claimed(1), StopRequested(Stop.HOLD), Orphaned(1, progressed=True)])
    with pytest.raises(IllegalMove):
        advance(left, Released())


@pytest.mark.parametrize(
    "life",
    [
        [Retried(fresh=True)],
        [Retried(fresh=True), Retried()],
        [Parked(), Retried(fresh=True)],
        [Retried(fresh=True), Parked(), Released()],
        [Retried(fresh=True), Cancelled(), Retried()],
        [Claimed(1), StopRequested(Stop.RETRY, fresh=True), Stopped(1)],
        [Retried(fresh=True), Claimed(1), PutBack(1, Cause.WEATHER)],
        [Retried(fresh=True), Claimed(1), Held(1, Reason.QUESTION), Answered()],
        [Retried(fresh=True), Claimed(1), Held(1, Reason.EFFECT), Settled()],
    ],
    ids=repr,
)
def test_wish_for_a_new_session_stays_until_used(life: list[Fact]) -> None:
    """A person who asked for a new session gets it once, whatever happens before."""
    ticket = fold("t", life)
    assert (ticket.state, ticket.fresh) == (State.READY, True)
    running = claimed(ticket)
    assert not advance(running, FreshUsed(running.token)).fresh


@given(facts(st.integers(0, 3)))
@example(Held(1, Reason.QUESTION, "which?"))
def test_illegal_move_survives_copy_and_pickle(fact: Fact) -> None:
    """The error of an illegal move is the same after pickling and says what was not possible."""
    error = IllegalMove("t", State.DONE, fact)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert (again.ticket, again.state, again.fact) == ("t", State.DONE, fact)
    assert str(again) == str(error) == f"ticket t is done: {fact} is not possible"


@pytest.mark.parametrize(
    ("ticket_id", "problem"),
    [
        ("", "empty"),
        ("a/b", "A-Z"),
        (".hidden", "starts with"),
        ("-rf", "starts with"),
        ("a b", "A-Z"),
        ("a\n", "A-Z"),
        ("é", "A-Z"),
        ("a" * 65, "1 to 64"),
        ("a..b", "'..'"),
        ("a.", "'.'"),
        ("a.lock", "'.lock'"),
    ],
)
def test_id_that_cannot_be_a_name(ticket_id: str, problem: str) -> None:
    """An id that cannot be a directory, a ref and a file name is refused with the reason."""
    assert problem in (id_problem(ticket_id) or "")


def test_ids_that_pass_are_branches_for_git(tmp_path: Path) -> None:
    """Every id that passes makes a branch name that git accepts and a directory that can be made."""
    parts = ("a", "Z", "9"), ("", ".", "-", "_", "..", "@", "{"), ("", "x", ".lock", ".LOCK", "/y")
    passed = [name for name in map("".join, product(*parts)) if id_problem(name) is None]
    assert len(passed) > 20
    for name in (*passed, "a" * 64):
        subprocess.run(["git", "check-ref-format", "--branch", f"ticket/{name}"], check=True, capture_output=True)
        (tmp_path / name).mkdir()


@given(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True))
def test_canonical_id_is_a_fixed_point(ticket_id: str) -> None:
    """The canonical id is its own, ignores case and holds nothing that a transcript's directory would change."""
    canonical = canonical_id(ticket_id)
    assert canonical == canonical_id(canonical) == canonical_id(ticket_id.upper())
    assert set(canonical) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_ids_that_would_meet() -> None:
    """Ids that differ in case or in which sign they use share one canonical id, others do not."""
    assert len({canonical_id(name) for name in ("Fix_1", "fix-1", "FIX.1")}) == 1
    assert canonical_id("fix-1") != canonical_id("fix1")
