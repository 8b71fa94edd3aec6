"""What is used of each cap, who is told of it, and that starts at once never get more than there is."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC
from threading import Barrier

import pytest

from runner import accounts, caps
from runner.agent import Used
from runner.budget import RESERVE_MICROUSD, Allowance, Cap, Cost, CostKind, Scarce
from runner.config import Config
from runner.config.values import Surroundings
from runner.days import next_day_us
from runner.events import Name
from runner.meter import Meter
from runner.outcome import Ending, Outcome, StoppedBy
from runner.run import _begin
from runner.session import Kind, Plan, Transcript
from runner.store import Store, Tx, effects, runs, tickets
from runner.transcript import Reading
from tests.stores import HOME, SECOND, Place
from tickets.ticket import NEVER_US, Cause, Parked, PutBack

DOLLAR = 1_000_000
DAY_S = 24 * 3600
STARTS = 8


@pytest.fixture
def place(database: str) -> Iterator[Place]:
    """Give an open database, at the first of two seconds of a day."""
    place = Place(database)
    place.clock.now_us = 20_000 * DAY_S * SECOND
    with closing(place.store):
        yield place


def configured(**limits: object) -> Config:
    """Return a configuration with these limits."""
    return Config.of({"repository": "/r", "limits": limits}, Surroundings())


def end(place: Place, run: str, config: Config, cost: int = 0, *, turns: int = 0, tokens: int = 0) -> None:
    """End a run, and tell whom it concerns."""

    def ends(tx: Tx) -> None:
        paid = Cost(cost, CostKind.MEASURED)
        runs.end_run(tx, run, outcome=Outcome.STALLED, cost=paid, turns=turns, tokens=(tokens, 0))
        accounts.warn(tx, runs.get_run(tx, run), config)

    place.store.transact(ends)


def warnings(place: Place, ticket: str) -> list[tuple[object, ...]]:
    """Return the caps that were said to be near."""
    found = [event.payload for event in place.log(ticket) if event.name is Name.BUDGET_WARNED]
    return [tuple(payload.values()) for payload in found]


@pytest.mark.parametrize("key", ["day_usd", "queue_usd"])
def test_starts_at_once_never_get_more_than_a_cap_has(place: Place, key: str) -> None:
    """Of starts at the same moment as many get money as a cap has for, and no dollar is given to two of them."""
    config = configured(ticket_usd=1.0, **{"day_usd": 100.0} | {key: 3.5})
    place.take(*(f"t{number}" for number in range(STARTS)))
    rows = [row for _ in range(STARTS) if (row := place.claim()) is not None]
    ready = Barrier(STARTS)

    def start(row: tickets.Row) -> int:
        with closing(Store.open(place.url, clock=place.clock)) as store:
            ready.wait()
            begun = store.transact(
                _begin,
                row=row,
                plan=Plan(Kind.FIRST, f"session-of-{row.ticket.id}", 1, resume=False),
                kind=Kind.FIRST,
                system="",
                before=Reading(Transcript.MISSING),
                config=config,
            )
        if isinstance(begun, Scarce):
            assert (begun.use.cap, begun.is_reserved) == (f"limits.{key}", True)
            return 0
        return begun[1].microusd

    with ThreadPoolExecutor(STARTS) as starts:
        given = sorted(starts.map(start, rows))
    assert given == [0, 0, 0, 0, 450_000, 950_000, 950_000, 950_000]
    assert sum(given) + 4 * RESERVE_MICROUSD <= 3_500_000
    assert place.store.read(runs.queue_money) == (0, sum(given) + 4 * RESERVE_MICROUSD)


def test_all_runs_of_a_ticket_use_its_caps(place: Place) -> None:
    """Money, turns, tokens and time of all its runs count, and a run that nobody saw end was active while heard of."""
    config = configured(
        ticket_usd=2.0, ticket_turns=10, ticket_tokens=1_000, ticket_active_s=100.0, day_usd="unlimited"
    )
    place.take("a")
    place.claim()
    first = place.run("a")
    place.clock.pass_s(10)
    end(place, first, config, 300_000, turns=2, tokens=70)
    second = place.run("a", "a-session-1")
    place.clock.pass_s(5)
    place.store.transact(Tx.log, "a", Name.TOOL_STARTED, run=second)
    place.clock.pass_s(2 * DAY_S)
    paid = Cost(200_000, CostKind.ESTIMATED)
    place.store.transact(runs.end_run, second, outcome=Outcome.ORPHANED, cost=paid, turns=3, tokens=(20, 10))
    place.run("a", "a-session-1")
    place.clock.pass_s(50)
    used = {use.cap: (use.used, use.limit, use.reserved) for use in place.store.read(caps.uses, "a", config)}
    assert used == {
        Cap.TICKET_USD: (500_000, 2 * DOLLAR, 0),
        Cap.TICKET_TURNS: (5, 10, 0),
        Cap.TICKET_TOKENS: (100, 1_000, 0),
        Cap.TICKET_ACTIVE_S: (15 * SECOND, 100 * SECOND, 0),
    }


@pytest.mark.parametrize(("passed_s", "seen_s"), [(10, 11), (2 * DAY_S, 11), (-3600, 11), (100, None)])
def test_a_machine_that_stood_still_takes_no_time(place: Place, passed_s: int, seen_s: int | None) -> None:
    """What a run was seen to take counts where the clock says something else by much, and only there."""
    place.take("a")
    place.claim()
    for active_us in (None, seen_s and seen_s * SECOND):
        run = place.run("a")
        place.clock.pass_s(passed_s if active_us else 100)
        ending, cost = Ending(resumed=False, active_us=active_us), Cost(1, CostKind.MEASURED)
        place.store.transact(runs.end_run, run, outcome=Outcome.FINISHED, cost=cost, ending=ending)
    expected_s = 100 + (seen_s if seen_s and passed_s != 10 else passed_s)
    assert place.store.read(runs.used, "a").active_us == expected_s * SECOND


def test_a_clock_that_is_put_back_gives_no_time(place: Place) -> None:
    """A run that ended before it began, by the clock, took no time, and gives none to the runs before it."""
    place.take("a")
    place.claim()
    for seconds in (10, -3600):
        run = place.run("a")
        place.clock.pass_s(seconds)
        end(place, run, configured())
    assert place.store.read(runs.used, "a").active_us == 10 * SECOND


def test_a_cap_that_is_near_is_told_once_and_again_when_raised(place: Place) -> None:
    """At 80 % of a cap its ticket's log says so once, and once more when 80 % of a higher one is used."""
    low, high = (configured(ticket_usd=usd, ticket_turns=10, day_usd="unlimited") for usd in (1.0, 2.0))
    place.take("a")
    place.claim()
    seen: list[int] = []
    for cost, config in [(790_000, low), (10_000, low), (100_000, low), (600_000, high), (150_000, high), (1, high)]:
        end(place, place.run("a", "a-session-1" if seen else None), config, cost, turns=1)
        seen.append(len(warnings(place, "a")))
    assert seen == [0, 1, 1, 1, 2, 2]
    assert warnings(place, "a") == [
        ("limits.ticket_usd", 1_000_000, 800_000),
        ("limits.ticket_usd", 2_000_000, 1_650_000),
    ]
    for _ in range(3):
        end(place, place.run("a", "a-session-1"), high, turns=1)
    assert warnings(place, "a")[2:] == [("limits.ticket_turns", 10, 8)]


@pytest.mark.anyio
async def test_a_cap_that_comes_near_is_told_while_the_run_goes_on(place: Place) -> None:
    """Money at list price, turns and tokens of a run that goes on count, and its end does not tell of them again."""
    config = configured(ticket_usd=1.0, ticket_turns=5, ticket_tokens=100_000)
    place.take("a")
    place.claim()
    end(place, place.run("a"), config, 590_000, turns=2, tokens=10_000)
    run = place.store.read(runs.get_run, place.run("a", "a-session-1"))
    given = Allowance(1_000_000, Cap.TICKET_USD, turns=3, tokens=90_000)
    meter = Meter(place.store, config, run, place.store.read(caps.uses, "a", config), given)
    seen = []
    for output, calls_tools in [(10_000, True), (4_000, True), (60_000, True), (12_000, False), (1, True)]:
        assert await meter.count(Used("claude-sonnet-4-5", input=1_000)) is None
        over = await meter.count(Used(output=output, ends=True, calls_tools=calls_tools))
        seen.append((over, [str(payload[0]) for payload in warnings(place, "a")]))
    money, made, spent = "limits.ticket_usd", "limits.ticket_turns", "limits.ticket_tokens"
    assert seen == [
        (None, []),
        (None, [money, made]),
        (None, [money, made, spent]),
        (None, [money, made, spent]),
        (StoppedBy.TOKENS, [money, made, spent]),
    ]
    assert warnings(place, "a")[0] == (money, 1_000_000, 590_000 + 216_000)
    end(place, run.id, config, 216_000, turns=5, tokens=80_000)
    assert len(warnings(place, "a")) == 3


@pytest.mark.anyio
async def test_a_response_of_a_subagent_counts_once(place: Place) -> None:
    """Told with each of its blocks it is one turn, which ends the run where it calls a tool; the model's do not."""
    config = configured()
    place.take("a")
    place.claim()
    run = place.store.read(runs.get_run, place.run("a"))
    meter = Meter(place.store, config, run, [], Allowance(1_000_000, Cap.TICKET_USD, turns=4, tokens=2_500))
    said = Used("claude-sonnet-4-5", input=500, ends=True)  # five of them are as many tokens as are left
    seen = [
        await meter.count(replace(said, aside=aside, calls_tools=calls_tools))
        for aside, calls_tools in [("", True), ("x", False), ("x", True), ("y", False), ("z", False), ("z", True)]
    ]
    assert seen == [*[None] * 5, StoppedBy.TURNS]
    assert await meter.count(replace(said, calls_tools=True)) is StoppedBy.TOKENS


def test_a_day_that_is_near_its_cap_is_told_once_a_day(place: Place) -> None:
    """The queue's log says once a day that the day's cap is near, and once that the queue's is, whoever spent it."""
    config = configured(ticket_usd=9.0, day_usd=1.0, queue_usd=2.0)
    place.take("a", "b")
    place.claim()
    place.claim()
    for ticket in ("a", "b", "a"):
        end(place, place.run(ticket), config, 450_000)
    assert warnings(place, "") == [("limits.day_usd", 1_000_000, 900_000)]
    place.clock.pass_s(DAY_S)
    end(place, place.run("b"), config, 800_000)
    assert [cap for cap, *_ in warnings(place, "")] == ["limits.day_usd", "limits.queue_usd", "limits.day_usd"]
    assert warnings(place, "a") == warnings(place, "b") == []


def put_back(place: Place, ticket: str, cause: Cause, until_us: int) -> None:
    """Put a claimed ticket back."""
    token = place.store.read(tickets.get, ticket).ticket.token
    place.store.transact(tickets.apply, ticket, PutBack(token, cause, until_us, "why"))


@pytest.mark.parametrize(
    ("notify", "told"),
    [({"url": "http://localhost"}, True), ({"url": "http://localhost", "on": ["held"]}, False), ({}, False)],
)
def test_a_person_is_notified_of_a_cap_that_is_near(place: Place, notify: dict[str, object], *, told: bool) -> None:
    """Where notifications are configured, one that says what is used is wanted with the warning."""
    config = Config.of({"repository": "/r", "limits": {"ticket_usd": 1.0}, "notify": notify}, Surroundings())
    place.take("a")
    place.claim()
    end(place, place.run("a"), config, 850_000)
    end(place, place.run("a", "a-session-1"), config, 1)
    wanted = [(row.kind, row.payload) for row in place.store.read(effects.effects, ticket="a")]
    text = "limits.ticket_usd: $0.8500 of $1.0000 spent"
    said = {"ticket": "a", "state": "running", "reason": "warned", "text": text}
    assert wanted == ([("notify", said)] if told else [])


def test_a_raised_cap_lets_go_what_waits_for_it(place: Place) -> None:
    """A start ends each wait for money that is longer than the caps of now ask for, and no other wait."""
    place.take("day", "ever", "weather", "held")
    for _ in range(4):
        place.claim()
    end(place, place.run("day"), configured(), DOLLAR)
    tomorrow_us = next_day_us(place.clock.now_us, UTC)
    put_back(place, "weather", Cause.ALLOWANCE, 0)
    place.claim()
    put_back(place, "weather", Cause.WEATHER, tomorrow_us)
    put_back(place, "day", Cause.ALLOWANCE, tomorrow_us)
    put_back(place, "ever", Cause.ALLOWANCE, NEVER_US)
    put_back(place, "held", Cause.ALLOWANCE, NEVER_US)
    place.store.transact(tickets.apply, "held", Parked())

    def let_go(**limits: object) -> list[str]:
        before = {row.ticket.id: row.ticket for row in place.store.read(tickets.all_rows)}
        place.store.transact(accounts.let_go, HOME, configured(**limits))
        after = {row.ticket.id: row.ticket for row in place.store.read(tickets.all_rows)}
        return [ticket for ticket in after if after[ticket] != before[ticket]]

    assert let_go(queue_usd=1.0) == []
    assert let_go(day_usd=1.0) == ["ever"]
    assert let_go() == ["day"]
    assert let_go() == []
    assert {place.store.read(tickets.get, ticket).ticket.not_before_us for ticket in ("day", "ever")} == {0}
