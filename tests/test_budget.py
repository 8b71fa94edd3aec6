"""What a run may use and what it cost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.budget import (
    FLOOR_ACTIVE_US,
    FLOOR_MICROUSD,
    RESERVE_MICROUSD,
    Allowance,
    Cap,
    Cost,
    CostKind,
    Scarce,
    Use,
    allowance,
    is_near,
    remedy,
    run_cost,
    scarce,
    told,
)

DOLLAR = 1_000_000
MONEY = st.integers(0, 100 * DOLLAR)
READING = st.none() | MONEY


def money(cap: int, spent: int = 0) -> Use:
    """Return how much of a ticket's own money is spent."""
    return Use(Cap.TICKET_USD, cap, spent)


def day(cap: int, spent: int = 0, reserved: int = 0) -> Use:
    """Return how much of a day's money is spent and reserved."""
    return Use(Cap.DAY_USD, cap, spent, reserved)


def queue(cap: int, spent: int = 0, reserved: int = 0) -> Use:
    """Return how much of the queue's money is spent and reserved."""
    return Use(Cap.QUEUE_USD, cap, spent, reserved)


def turns(cap: int, made: int = 0) -> Use:
    """Return how many of a ticket's turns are made."""
    return Use(Cap.TICKET_TURNS, cap, made)


def tokens(cap: int, used: int = 0) -> Use:
    """Return how many of a ticket's tokens are used."""
    return Use(Cap.TICKET_TOKENS, cap, used)


def active(cap_s: float, used_s: float = 0) -> Use:
    """Return how much of a ticket's active time is used."""
    return Use(Cap.TICKET_ACTIVE_S, round(cap_s * 1e6), round(used_s * 1e6))


RICH = money(5 * DOLLAR)


@pytest.mark.parametrize(
    ("uses", "expected"),
    [
        ([money(5 * DOLLAR)], (4_950_000, Cap.TICKET_USD)),
        ([money(5 * DOLLAR, 4 * DOLLAR)], (950_000, Cap.TICKET_USD)),
        ([money(100_000)], (90_000, Cap.TICKET_USD)),
        ([money(11_112)], (10_001, Cap.TICKET_USD)),
        ([money(11_110)], (Cap.TICKET_USD, False)),
        ([money(0)], (Cap.TICKET_USD, False)),
        ([money(5 * DOLLAR, 6 * DOLLAR)], (Cap.TICKET_USD, False)),
        ([RICH, day(20 * DOLLAR)], (4_950_000, Cap.TICKET_USD)),
        ([RICH, day(20 * DOLLAR, 18 * DOLLAR)], (1_950_000, Cap.DAY_USD)),
        ([RICH, day(20 * DOLLAR, 10 * DOLLAR, 8 * DOLLAR)], (1_950_000, Cap.DAY_USD)),
        ([RICH, day(20 * DOLLAR, 10 * DOLLAR, 10 * DOLLAR)], (Cap.DAY_USD, True)),
        ([RICH, day(20 * DOLLAR, 20 * DOLLAR)], (Cap.DAY_USD, False)),
        ([RICH, day(20 * DOLLAR, 21 * DOLLAR, DOLLAR)], (Cap.DAY_USD, False)),
        ([RICH, day(0)], (Cap.DAY_USD, False)),
        ([money(0), day(0)], (Cap.TICKET_USD, False)),
        ([RICH, queue(3 * DOLLAR), day(2 * DOLLAR)], (1_950_000, Cap.DAY_USD)),
        ([RICH, queue(2 * DOLLAR), day(3 * DOLLAR)], (1_950_000, Cap.QUEUE_USD)),
        ([RICH, queue(2 * DOLLAR, 2 * DOLLAR), day(0)], (Cap.QUEUE_USD, False)),
        ([RICH, queue(2 * DOLLAR, 0, 2 * DOLLAR), day(0)], (Cap.DAY_USD, False)),
        ([RICH, turns(1)], (4_950_000, Cap.TICKET_USD)),
        ([RICH, turns(40, 40)], (Cap.TICKET_TURNS, False)),
        ([RICH, turns(40, 41), day(0)], (Cap.TICKET_TURNS, False)),
        ([money(0), turns(40, 41)], (Cap.TICKET_USD, False)),
        ([day(0), RICH, turns(40, 41)], (Cap.TICKET_TURNS, False)),
        ([RICH, tokens(1_000, 1_000)], (Cap.TICKET_TOKENS, False)),
        ([RICH, active(60, 59)], (4_950_000, Cap.TICKET_USD)),
        ([RICH, active(60, 59.5)], (Cap.TICKET_ACTIVE_S, False)),
    ],
)
def test_allowance_by_example(uses: list[Use], expected: object) -> None:
    """A run is given what is left of each cap, of money less a reserve, or told which cap is too low."""
    match allowance(uses):
        case Allowance(microusd, by):
            assert (microusd, by) == expected
        case Scarce(use, is_reserved):
            assert (use.cap, is_reserved) == expected


def test_each_cap_leaves_what_is_not_used() -> None:
    """Turns, tokens and seconds are given to the last one, and without a cap there is no limit."""
    given = allowance([RICH, turns(40, 39), tokens(1_000, 1), active(60, 20)])
    assert given == Allowance(4_950_000, Cap.TICKET_USD, turns=1, tokens=999, active_us=40_000_000)
    assert allowance([RICH]) == Allowance(4_950_000, Cap.TICKET_USD)


USES = st.builds(
    lambda ticket, *others: [ticket, *(use for use in others if use is not None)],
    st.builds(money, MONEY, MONEY),
    st.none() | st.builds(turns, st.integers(1, 50), st.integers(0, 60)),
    st.none() | st.builds(active, st.integers(1, 50), st.integers(0, 60)),
    st.none() | st.builds(queue, MONEY, MONEY, MONEY),
    st.none() | st.builds(day, MONEY, MONEY, MONEY),
)


@given(USES)
def test_allowance_never_exceeds_what_is_left(uses: list[Use]) -> None:
    """An allowance is at least the floor, and leaves a reserve of every cap of money: zero is never passed on."""
    given = allowance(uses)
    if isinstance(given, Allowance):
        assert given.microusd >= FLOOR_MICROUSD
        assert given.turns is None or given.turns >= 1
        assert given.active_us is None or given.active_us >= FLOOR_ACTIVE_US
        for use in uses:
            left = use.limit - use.used - use.reserved
            assert use.unit != "microusd" or given.microusd + min(RESERVE_MICROUSD, left // 10) <= left


@given(USES, st.data())
def test_allowance_is_monotone(uses: list[Use], data: st.DataObject) -> None:
    """A higher cap never gives less, and more that is used or reserved never gives more."""
    which, more = data.draw(st.integers(0, len(uses) - 1)), data.draw(MONEY)
    use = uses[which]
    for changed, sign in (
        (replace(use, limit=use.limit + more), 1),
        (replace(use, used=use.used + more), -1),
        (replace(use, reserved=use.reserved + more), -1),
    ):
        before, after = as_amount(uses), as_amount([*uses[:which], changed, *uses[which + 1 :]])
        assert (after - before) * sign >= 0


def as_amount(uses: list[Use]) -> int:
    """Return an allowance as money: none when a cap is too low."""
    given = allowance(uses)
    return 0 if isinstance(given, Scarce) else given.microusd


@given(USES)
def test_scarce_names_who_can_help(uses: list[Use]) -> None:
    """A cap that is named leaves too little; a reserve is blamed only when giving it back would help everywhere."""
    short = scarce(uses)
    if short is None:
        assert isinstance(allowance(uses), Allowance)
    else:
        assert scarce([short.use]) == short == allowance(uses)
        given_back = scarce([replace(use, reserved=0) for use in uses])
        assert short.is_reserved is (given_back is None)


@pytest.mark.parametrize(
    ("use", "near"),
    [(money(5 * DOLLAR, 4 * DOLLAR - 1), False), (money(5 * DOLLAR, 4 * DOLLAR), True), (turns(4, 3), False)],
)
def test_a_cap_is_near_at_four_fifths(use: Use, *, near: bool) -> None:
    """A person is told at 80 % of a cap and not before."""
    assert is_near(use) is near


@pytest.mark.parametrize(
    ("short", "said"),
    [
        (
            Scarce(money(5 * DOLLAR, 4_961_000)),
            "limits.ticket_usd: $4.9610 of $5.0000 spent; `release --budget-usd` gives it more",
        ),
        (
            Scarce(turns(4_000, 4_001)),
            "limits.ticket_turns: 4,001 of 4,000 turns used; raise limits.ticket_turns, restart and `release`",
        ),
        (
            Scarce(tokens(1_000, 1_500)),
            "limits.ticket_tokens: 1,500 of 1,000 tokens used; raise limits.ticket_tokens, restart and `release`",
        ),
        (
            Scarce(active(3600, 3599.7)),
            "limits.ticket_active_s: 3,600 of 3,600 s used; raise limits.ticket_active_s, restart and `release`",
        ),
        (
            Scarce(day(DOLLAR, DOLLAR)),
            (
                "limits.day_usd: $1.0000 of $1.0000 spent;"
                " it goes on the next day, or after a restart with a higher limits.day_usd"
            ),
        ),
        (
            Scarce(queue(DOLLAR, DOLLAR)),
            "limits.queue_usd: $1.0000 of $1.0000 spent; it goes on after a restart with a higher limits.queue_usd",
        ),
        (
            Scarce(day(DOLLAR, 0, DOLLAR), is_reserved=True),
            "limits.day_usd: $0.0000 of $1.0000 spent; running tickets have the rest, and may give it back",
        ),
    ],
)
def test_a_person_is_told_what_is_used_and_what_to_raise(short: Scarce, said: str) -> None:
    """What is said of a cap names it, what is used of it, and what lets the ticket go on."""
    assert f"{told(short.use)}; {remedy(short)}" == said


@pytest.mark.parametrize(
    ("carried", "total", "last_total", "priced", "cut", "expected"),
    [
        (0, 10_500, None, None, False, Cost(10_500, CostKind.MEASURED)),
        (21_000, 31_500, None, None, False, Cost(10_500, CostKind.MEASURED)),
        (21_000, 31_500, 99_000, 77, False, Cost(10_500, CostKind.MEASURED)),
        (21_000, None, 42_000, 77, True, Cost(21_000, CostKind.MEASURED, cut=True)),
        (21_000, 0, None, None, False, Cost(0, CostKind.MEASURED)),
        (0, None, None, 10_500, False, Cost(10_500, CostKind.ESTIMATED)),
        (0, None, None, 10_500, True, Cost(10_500, CostKind.ESTIMATED, cut=True)),
        (0, None, None, 0, True, Cost(0, CostKind.ESTIMATED, cut=True)),
        (0, None, None, 0, False, Cost(0, CostKind.MEASURED)),
        (0, None, None, None, True, Cost(0, CostKind.UNKNOWN, cut=True)),
    ],
    ids=[
        "result of a new session",
        "result less what was carried",
        "a result is believed before the transcript",
        "no result: the transcript's newer total",
        "a failed resume reports a total of zero",
        "killed: its messages at list price",
        "killed in a response",
        "killed in its first response",
        "killed before its first request",
        "a model without a known price",
    ],
)
def test_cost_is_the_best_reading(
    carried: int, total: int | None, last_total: int | None, priced: int | None, cut: bool, expected: Cost
) -> None:
    """A run costs its result's total less what was carried, else the transcript's, else its messages at list price."""
    assert run_cost(carried=carried, total=total, last_total=last_total, priced=priced, cut=cut) == expected


@given(MONEY, READING, READING, READING, st.booleans())
def test_cost_is_never_negative(
    carried: int, total: int | None, last_total: int | None, priced: int | None, cut: bool
) -> None:
    """Whatever is known, no run gives money back, and a response that was cut off is marked."""
    cost = run_cost(carried=carried, total=total, last_total=last_total, priced=priced, cut=cut)
    assert cost.microusd >= 0
    assert cost.cut is cut


@given(st.lists(MONEY, min_size=1))
def test_costs_of_runs_add_up_to_the_sessions_total(spent: list[int]) -> None:
    """The costs of a session's runs, each less what it carried, add up to the session's last total."""
    total, costs = 0, 0
    for own in spent:
        costs += run_cost(carried=total, total=total + own, last_total=None, priced=None, cut=False).microusd
        total += own
    assert costs == total
