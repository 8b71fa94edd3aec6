"""How a run ended and what follows: the table of rules, what holds of any ending, attempts and waits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.outcome import (
    RULES,
    Ending,
    Next,
    Outcome,
    Result,
    Rule,
    StoppedBy,
    Trouble,
    classify,
    follow,
    put_off,
    retry_delay_s,
    weather_delay_s,
)
from tests.endings import API_ERRORS, ERROR_SUBTYPES, NOT_FOUND, TERMINAL_REASONS, ended
from tests.lives import claimed
from tickets.moves import advance
from tickets.ticket import Cause, Held, PutBack, Reason, State, Ticket

NOW_US = 1_800_000_000_000_000
RUNNING = Ticket("t", State.RUNNING, token=1)
END_OF_STORY = {Outcome.FINISHED, Outcome.STOPPED, Outcome.ORPHANED}

RESULTS = st.builds(
    Result,
    subtype=st.sampled_from(["success", *ERROR_SUBTYPES, "error_unheard_of", ""]),
    is_error=st.booleans(),
    terminal_reason=st.sampled_from([None, *TERMINAL_REASONS, "unheard_of"]),
    api_error_status=st.none() | st.sampled_from([400, 401, 404, 413, 429, 500, 529]) | st.integers(),
)
ENDINGS = st.builds(
    Ending,
    resumed=st.booleans(),
    confirmed=st.booleans(),
    result=st.none() | RESULTS,
    api_error=st.sampled_from([None, *API_ERRORS, "unheard_of"]),
    exit_code=st.none() | st.integers(-15, 256),
    trouble=st.none() | st.sampled_from(Trouble),
    stopped_by=st.none() | st.sampled_from(StoppedBy),
)


def test_every_outcome_has_a_rule() -> None:
    """The table has one row for each outcome and no other."""
    assert set(RULES) == set(Outcome)


@pytest.mark.parametrize(
    ("outcome", "rule"),
    [
        (Outcome.FINISHED, Rule(Next.CHECK)),
        (Outcome.ASKED, Rule(Next.HOLD, hold=Reason.QUESTION)),
        (Outcome.RESUME_FAILED, Rule(Next.FRESH, closes_session=True)),
        (Outcome.WEATHER, Rule(Next.WEATHER)),
        (Outcome.UNAUTHORIZED, Rule(Next.PAUSE)),
        (Outcome.BUDGET, Rule(Next.HOLD, hold=Reason.BUDGET)),
        (Outcome.TURNS, Rule(Next.HOLD, hold=Reason.BUDGET)),
        (Outcome.SESSION_OVER, Rule(Next.AGAIN, closes_session=True)),
        (Outcome.STALLED, Rule(Next.AGAIN)),
        (Outcome.LOOPED, Rule(Next.HOLD, hold=Reason.LOOP)),
        (Outcome.NEVER_STARTED, Rule(Next.WAIT)),
        (Outcome.STOPPED, Rule(Next.LEAVE)),
        (Outcome.KILLED, Rule(Next.AGAIN)),
        (Outcome.NO_CLI, Rule(Next.PAUSE)),
        (Outcome.FAILED, Rule(Next.AGAIN)),
        (Outcome.UNEXPLAINED, Rule(Next.WAIT)),
        (Outcome.ORPHANED, Rule(Next.LEAVE)),
    ],
)
def test_table_of_rules(outcome: Outcome, rule: Rule) -> None:
    """What follows an outcome is what the documentation's table says."""
    assert RULES[outcome] == rule


def test_rule_holds_for_a_reason_only() -> None:
    """A rule has a reason to hold when and only when it holds."""
    assert [outcome for outcome, rule in RULES.items() if (rule.next is Next.HOLD) != (rule.hold is not None)] == []


@given(ENDINGS)
def test_classify_is_total(end: Ending) -> None:
    """Whatever is known of an ending, it has an outcome, and never that of a run that nobody saw end."""
    assert classify(end) in set(Outcome) - {Outcome.ORPHANED}


@given(ENDINGS)
def test_success_is_nothing_less(end: Ending) -> None:
    """A run is finished only by a completed result without an error, of a process that we let go."""
    if classify(end) is Outcome.FINISHED:
        assert end.result is not None
        got = (end.result.subtype, end.result.is_error, end.result.terminal_reason)
        assert got == ("success", False, "completed")
        assert end.trouble is None
        assert end.stopped_by in {None, StoppedBy.LINGER}


@given(ENDINGS)
def test_session_is_replaced_only_when_resume_found_nothing(end: Ending) -> None:
    """Fresh in the same claim only after a resume that failed before the first assistant message, unstopped by us."""
    if RULES[classify(end)].next is Next.FRESH:
        assert end.result is not None
        assert end.result.subtype == "error_during_execution"
        assert end.resumed
        assert not end.confirmed
        assert end.stopped_by in {None, StoppedBy.LINGER}
        assert end.trouble is None


@pytest.mark.parametrize(
    "kept",
    [
        Ending(resumed=True, trouble=Trouble.CLI_MISSING),
        Ending(resumed=True, trouble=Trouble.SPAWN_FAILED),
        Ending(resumed=True, exit_code=-9),
        Ending(resumed=True, exit_code=137),
        Ending(resumed=True, stopped_by=StoppedBy.START),
        Ending(resumed=True, stopped_by=StoppedBy.SILENCE),
        replace(NOT_FOUND, stopped_by=StoppedBy.DRAIN),
        replace(NOT_FOUND, stopped_by=StoppedBy.OPERATOR),
        Ending(resumed=True, exit_code=1),
        ended("error_during_execution", "aborted_tools", confirmed=False),
        replace(NOT_FOUND, confirmed=True),
        replace(NOT_FOUND, resumed=False),
        ended(status=401, error="authentication_failed", confirmed=False),
        ended(status=429, error="rate_limit", confirmed=False),
        ended(status=529, error="overloaded", confirmed=False),
        ended(confirmed=False),
        ended(status=400, error="invalid_request", reason="image_error"),
    ],
    ids=repr,
)
def test_session_is_kept(kept: Ending) -> None:
    """A missing CLI, a kill, a stall, authentication, weather, a bad option or our own stop never costs a session."""
    rule = RULES[classify(kept)]
    assert rule.next is not Next.FRESH
    assert not rule.closes_session


@given(ENDINGS)
def test_only_unexplained_ends_give_up_a_session(end: Ending) -> None:
    """What counts towards giving up a session had no assistant message and no reason that we know."""
    if classify(end) is Outcome.UNEXPLAINED:
        assert not end.confirmed
        assert end.stopped_by in {None, StoppedBy.LINGER}
        assert end.trouble not in {Trouble.CLI_MISSING, Trouble.SPAWN_FAILED}


@given(ENDINGS)
def test_weather_is_what_we_know_to_be_weather(end: Ending) -> None:
    """The queue never waits for an end that nobody knows: weather has a status or a word of the API's."""
    if classify(end) is Outcome.WEATHER:
        assert end.result is not None
        known = end.api_error in {"rate_limit", "overloaded", "server_error"} or end.result.api_error_status is not None
        assert known or (end.api_error, end.result.terminal_reason) == ("unknown", "api_error")


@given(ENDINGS)
def test_attempt_needs_a_word_of_the_model(end: Ending) -> None:
    """A run that never reached the model is no attempt, unless its session cannot go on."""
    if RULES[classify(end)].next is Next.AGAIN and not end.confirmed:
        assert classify(end) in {Outcome.TURNS, Outcome.SESSION_OVER}


@pytest.mark.parametrize("outcome", [outcome for outcome, rule in RULES.items() if rule.next is Next.AGAIN])
def test_third_attempt_holds(outcome: Outcome) -> None:
    """With three attempts the first two ends that the ticket caused wait 10 and 20 s, and the third holds."""
    ticket, waited = RUNNING, []
    for _ in range(2):
        fact = follow(outcome, ticket, now_us=NOW_US, attempts=3, note="why")
        assert isinstance(fact, PutBack)
        assert (fact.cause, fact.note) == (Cause.ATTEMPT, "why")
        waited.append(fact.not_before_us - NOW_US)
        ticket = claimed(advance(ticket, fact))
    assert waited == [10_000_000, 20_000_000]
    assert follow(outcome, ticket, now_us=NOW_US, attempts=3, note="why") == Held(3, Reason.ATTEMPTS, "why")


@pytest.mark.parametrize(
    "outcome", [outcome for outcome, rule in RULES.items() if rule.next not in {Next.AGAIN, Next.HOLD}]
)
@given(count=st.integers(0, 99), failed_starts=st.integers(0, 99))
def test_everything_else_is_no_attempt(outcome: Outcome, count: int, failed_starts: int) -> None:
    """Weather, a refused key, a missing CLI and starts that reached nothing never count as an attempt."""
    ticket = replace(RUNNING, attempts=count)
    fact = follow(outcome, ticket, now_us=NOW_US, attempts=3, failed_starts=failed_starts)
    assert advance(ticket, fact).attempts == count


def test_weather_leaves_the_wait_to_the_queue() -> None:
    """A ticket whose run met the weather is due at once, since the whole queue waits, and it is never held for it."""
    fact = follow(Outcome.WEATHER, RUNNING, now_us=NOW_US, attempts=1, failed_starts=99, note="529")
    assert fact == PutBack(1, Cause.WEATHER, 0, "529")


def test_a_ticket_is_put_off_twice_as_long_each_time() -> None:
    """What only one ticket met is waited out for 30 s, then twice as long each time in a row, up to half an hour."""
    ticket, waited = RUNNING, []
    for _ in range(9):
        fact = put_off(ticket, Cause.WEATHER, now_us=NOW_US, note="no route")
        assert (fact.cause, fact.note) == (Cause.WEATHER, "no route")
        waited.append((fact.not_before_us - NOW_US) // 1_000_000)
        ticket = claimed(advance(ticket, fact))
    assert waited == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]


@pytest.mark.parametrize("outcome", [Outcome.UNEXPLAINED, Outcome.NEVER_STARTED, Outcome.RESUME_FAILED])
def test_failed_starts_end_in_a_hold(outcome: Outcome) -> None:
    """Five failed starts in a row wait, which is time for a new session, and the sixth holds."""
    for failed in range(1, 6):
        fact = follow(outcome, RUNNING, now_us=NOW_US, attempts=3, failed_starts=failed)
        assert fact == PutBack(1, Cause.START, NOW_US + 30_000_000)
    fact = follow(outcome, RUNNING, now_us=NOW_US, attempts=3, failed_starts=6, note="why")
    assert fact == Held(1, Reason.SESSION, "why")


@pytest.mark.parametrize("outcome", [Outcome.UNAUTHORIZED, Outcome.NO_CLI])
def test_paused_queue_keeps_its_tickets_due(outcome: Outcome) -> None:
    """A ticket that pauses the queue goes on at once when the queue does, however often it failed to start."""
    fact = follow(outcome, RUNNING, now_us=NOW_US, attempts=3, failed_starts=99, note="401")
    assert fact == PutBack(1, Cause.START, 0, "401")


@pytest.mark.parametrize("outcome", [Outcome.ASKED, Outcome.BUDGET])
def test_question_and_spent_budget_hold(outcome: Outcome) -> None:
    """A question and a spent allowance wait for a person, whatever the counts are."""
    reason = RULES[outcome].hold
    assert reason is not None
    assert follow(outcome, RUNNING, now_us=NOW_US, attempts=1, note="why") == Held(1, reason, "why")


@given(
    st.sampled_from(sorted(set(Outcome) - END_OF_STORY)),
    st.integers(0, 99),
    st.integers(0, 5000),
    st.integers(1, 9),
    st.integers(0, 9),
)
def test_what_follows_is_a_legal_move(outcome: Outcome, count: int, waits: int, attempts: int, failed: int) -> None:
    """Whatever the counts are, what follows is a move that the running ticket can make, due within half an hour."""
    ticket = replace(RUNNING, attempts=count, waits=waits)
    fact = follow(outcome, ticket, now_us=NOW_US, attempts=attempts, failed_starts=failed)
    after = advance(ticket, fact)
    assert after.state in {State.READY, State.HELD}
    assert after.not_before_us <= NOW_US + 1800 * 1_000_000


@given(st.integers(1, 10**9), st.floats(0.001, 1e6), st.floats(0.001, 1e6))
def test_delay_is_bounded_and_never_shrinks(attempt: int, base_s: float, cap_s: float) -> None:
    """A delay lies between the smaller of base and cap and the cap, and later attempts do not wait less."""
    delay_s = retry_delay_s(attempt, base_s=base_s, cap_s=cap_s)
    assert min(base_s, cap_s) <= delay_s <= cap_s
    assert retry_delay_s(attempt + 1, base_s=base_s, cap_s=cap_s) >= delay_s


def test_delays_by_example() -> None:
    """Attempts wait from 10 s to 5 min and weather from 30 s to 30 min, doubling."""
    assert [retry_delay_s(attempt) for attempt in range(1, 8)] == [10, 20, 40, 80, 160, 300, 300]
    assert [weather_delay_s(wait) for wait in (1, 2, 2000)] == [30, 60, 1800]


@given(st.integers(max_value=0))
def test_delay_of_no_attempt_is_refused(attempt: int) -> None:
    """Attempts count from 1."""
    with pytest.raises(ValueError, match="below 1"):
        retry_delay_s(attempt)
