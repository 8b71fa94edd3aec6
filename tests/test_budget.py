"""What a run may spend and what it cost, in micro-dollars."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.budget import (
    FLOOR_MICROUSD,
    RESERVE_MICROUSD,
    Cost,
    CostKind,
    Scarce,
    allowance,
    run_cost,
)

DOLLAR = 1_000_000
MONEY = st.integers(0, 100 * DOLLAR)
READING = st.none() | MONEY


def given_to(
    ticket_cap: int, spent: int = 0, day_cap: int | None = None, day: int = 0, reserved: int = 0
) -> int | Scarce:
    """Return the allowance of a run."""
    return allowance(ticket_cap=ticket_cap, ticket_spent=spent, day_cap=day_cap, day_spent=day, day_reserved=reserved)


def as_amount(allowed: int | Scarce) -> int:
    """Return an allowance as money: none when a cap is too low."""
    return 0 if isinstance(allowed, Scarce) else allowed


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (given_to(5 * DOLLAR), 4_950_000),
        (given_to(5 * DOLLAR, spent=4 * DOLLAR), 950_000),
        (given_to(100_000), 90_000),
        (given_to(11_112), 10_001),
        (given_to(11_110), Scarce.TICKET),
        (given_to(0), Scarce.TICKET),
        (given_to(5 * DOLLAR, spent=6 * DOLLAR), Scarce.TICKET),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR), 4_950_000),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR, day=18 * DOLLAR), 1_950_000),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR, day=10 * DOLLAR, reserved=8 * DOLLAR), 1_950_000),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR, day=10 * DOLLAR, reserved=10 * DOLLAR), Scarce.DAY_RESERVED),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR, day=20 * DOLLAR), Scarce.DAY),
        (given_to(5 * DOLLAR, day_cap=20 * DOLLAR, day=21 * DOLLAR, reserved=DOLLAR), Scarce.DAY),
        (given_to(5 * DOLLAR, day_cap=0), Scarce.DAY),
        (given_to(0, day_cap=0), Scarce.TICKET),
    ],
)
def test_allowance_by_example(allowed: int | Scarce, expected: int | Scarce) -> None:
    """A run is given what is left of both caps less a reserve, or told which cap is too low."""
    assert allowed == expected


@given(MONEY, MONEY, st.none() | MONEY, MONEY, MONEY)
def test_allowance_never_exceeds_what_is_left(cap: int, spent: int, day_cap: int | None, day: int, held: int) -> None:
    """An allowance is at least the floor, and leaves a reserve of every cap: zero is never passed on."""
    allowed = given_to(cap, spent, day_cap, day, held)
    if not isinstance(allowed, Scarce):
        assert allowed >= FLOOR_MICROUSD
        for left in [cap - spent, *([] if day_cap is None else [day_cap - day - held])]:
            assert allowed + min(RESERVE_MICROUSD, left // 10) <= left


@given(MONEY, MONEY, st.none() | MONEY, MONEY, MONEY, MONEY)
def test_allowance_is_monotone(cap: int, spent: int, day_cap: int | None, day: int, held: int, more: int) -> None:
    """A higher cap never gives less, and more money spent or reserved never gives more."""
    allowed = as_amount(given_to(cap, spent, day_cap, day, held))
    assert as_amount(given_to(cap + more, spent, day_cap, day, held)) >= allowed
    assert as_amount(given_to(cap, spent, None if day_cap is None else day_cap + more, day, held)) >= allowed
    assert as_amount(given_to(cap, spent + more, day_cap, day, held)) <= allowed
    assert as_amount(given_to(cap, spent, day_cap, day + more, held)) <= allowed
    assert as_amount(given_to(cap, spent, day_cap, day, held + more)) <= allowed


@given(MONEY, MONEY, MONEY, MONEY, MONEY)
def test_scarce_names_who_can_help(cap: int, spent: int, day_cap: int, day: int, held: int) -> None:
    """The ticket's cap is named when it alone forbids the run, a reserve only when giving it back would help."""
    match given_to(cap, spent, day_cap, day, held):
        case Scarce.TICKET:
            assert given_to(cap, spent) is Scarce.TICKET
        case Scarce.DAY_RESERVED:
            assert not isinstance(given_to(cap, spent, day_cap, day), Scarce)
        case Scarce.DAY:
            assert given_to(cap, spent, day_cap, day) is Scarce.DAY
        case allowed:
            assert allowed <= as_amount(given_to(cap, spent))


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
