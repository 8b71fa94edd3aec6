"""The weather of the whole queue: one pause for all, one ticket that tries, and the rest that follow it."""

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner.events import Name
from runner.offline import Failure
from runner.outcome import Waits
from runner.store import Tx, claims, log, queue, tickets
from tests.daemons import COST, Site, bash, say
from tests.stores import HOME, SECOND, Place
from tests.test_base_moves import works
from tickets.ticket import Cause, Fact, Finished, Held, PutBack, Reason


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Give an empty store with a clock that the test moves."""
    place = Place(f"sqlite:///{tmp_path}/store.sqlite3")
    with closing(place.store):
        yield place


def meets(place: Place, ticket: str, *, reset_s: float | None = None, chance: float = 0.0) -> bool:
    """End a ticket's claim in weather; return whether the queue waits differently for it."""

    def end(tx: Tx) -> bool:
        token = tickets.get(tx, ticket).ticket.token
        tickets.apply(tx, ticket, PutBack(token, Cause.WEATHER, 0, "HTTP 529"))
        reset_at_us = None if reset_s is None else tx.now_us + round(reset_s * SECOND)
        return queue.wait_for_weather(tx, note="HTTP 529", reset_at_us=reset_at_us, by=ticket, chance=chance)

    return place.store.transact(end)


def hears(place: Place, ticket: str) -> bool:
    """Let the model speak to a ticket; return whether that ends the weather."""
    return place.store.transact(queue.hear, ticket)


def claim_all(place: Place) -> list[str]:
    """Claim all that may start."""
    return [row.ticket.id for row in iter(place.claim, None)]


def pause_of(place: Place) -> tuple[int, float | None, str | None] | None:
    """Return how many pauses in a row it is, how many seconds are left and who probes; None without a pause."""
    pause = place.store.read(queue.paused)
    if pause is None:
        return None
    left_s = None if pause.until_us is None else (pause.until_us - place.clock.now_us) / SECOND
    return pause.waits, left_s, pause.probe


def names(place: Place) -> list[Name]:
    """Return what happened to the queue."""
    return [event.name for event in place.log("") if event.name is not Name.DAEMON_STARTED]


def test_one_ticket_tries_and_the_rest_follow(place: Place) -> None:
    """Several ends in weather are one pause; at its time one ticket probes, and when it is heard all others start."""
    place.take("a", "b", "c", "d")
    assert [place.claim() is not None for _ in "ab"] == [True, True]
    assert meets(place, "a")
    place.clock.pass_s(2)
    assert not meets(place, "b"), "it met the weather that the queue waits for"
    assert pause_of(place) == (1, 28, None)
    assert claim_all(place) == []
    place.clock.pass_s(28)
    assert place.store.read(claims.next_due_us, HOME) is not None
    assert claim_all(place) == ["c"], "it has met no weather yet, and no other starts beside it"
    assert pause_of(place) == (1, 0, "c")
    assert place.store.read(claims.next_due_us, HOME) is None
    assert not hears(place, "a")
    assert hears(place, "c")
    assert pause_of(place) is None
    assert claim_all(place) == ["a", "b", "d"]
    assert names(place) == [Name.QUEUE_PAUSED, Name.QUEUE_PROBED, Name.QUEUE_RESUMED]
    assert meets(place, "d")
    assert pause_of(place) == (1, 30, None), "the next weather begins anew"


def test_a_probe_that_meets_the_weather_doubles_the_wait(place: Place) -> None:
    """Each probe that is refused doubles the wait, chance comes on top, and what else ends then changes nothing."""
    place.take("long", "a", "b")
    assert [row and row.ticket.id for row in (place.claim(), place.claim())] == ["long", "a"]
    meets(place, "a")
    for probe, pause in (("b", (2, 75, None)), ("a", (3, 150, None)), ("long", (4, 300, None))):
        place.clock.pass_s(300)
        assert claim_all(place) == [probe], "of those that met the weather least often the oldest"
        if probe == "a":
            assert not meets(place, "long", reset_s=3600), "the probe says how it is"
        assert meets(place, probe, chance=0.5)
        assert pause_of(place) == pause


@pytest.mark.parametrize("reset_s", [20, 7200])
def test_a_reset_that_is_said_later_makes_the_pause_longer(place: Place, reset_s: int) -> None:
    """The queue waits until the latest reset that a run was told, and a little longer by chance."""
    place.take("a", "b")
    assert claim_all(place) == ["a", "b"]
    meets(place, "a", reset_s=3600, chance=0.5)
    assert pause_of(place) == (1, 3607.5, None)
    assert meets(place, "b", reset_s=reset_s) == (reset_s == 7200)
    assert pause_of(place) == (1, max(3607.5, reset_s), None)


@pytest.mark.parametrize(
    "end",
    [
        PutBack(2, Cause.START, 10**18),
        Held(2, Reason.WORKTREE),
        Finished(2),
        None,
    ],
)
def test_a_probe_that_ends_without_a_word_of_the_model_is_followed_by_another(place: Place, end: Fact | None) -> None:
    """A probe that is put back, held, done, or dies with its daemon, has said nothing: the next one probes at once."""
    place.take("a")
    assert claim_all(place) == ["a"]
    meets(place, "a")
    place.clock.pass_s(30)
    assert claim_all(place) == ["a"]
    place.take("b", "c")
    assert claim_all(place) == []
    if end is None:
        place.epoch = place.start()
        place.store.transact(claims.orphan, "a", 2)
    else:
        place.store.transact(tickets.apply, "a", end)
    (probe,) = claim_all(place)
    assert probe == "b"
    assert not hears(place, "a")
    assert hears(place, "b")


def test_a_probe_of_a_daemon_that_is_silent_keeps_nobody(place: Place) -> None:
    """When the lease of a probe's claim ends unrenewed, a ticket of another daemon probes."""
    place.take("a")
    assert claim_all(place) == ["a"]
    meets(place, "a")
    place.clock.pass_s(30)
    assert claim_all(place) == ["a"]
    place.take("b")
    place.clock.pass_s(11)
    row = place.claim(place.start("host:/other"), "host:/other")
    assert row is not None
    assert row.ticket.id == "b"


def test_a_probe_that_needs_no_model_leaves_the_probe_to_another(place: Place) -> None:
    """A ticket whose work is only checked and delivered lets the next one try."""
    place.take("a")
    assert claim_all(place) == ["a"]
    meets(place, "a")
    place.clock.pass_s(30)
    assert claim_all(place) == ["a"]
    place.take("b")
    place.store.transact(queue.leave_probe, "b")
    assert claim_all(place) == []
    place.store.transact(queue.leave_probe, "a")
    assert claim_all(place) == ["b"]


def test_work_that_is_only_checked_keeps_no_other_from_trying(tmp_path: Path) -> None:
    """A ticket that was claimed to probe and whose agent has finished is the probe no more while it is checked."""
    ask = (
        "import sqlite3; database = sqlite3.connect('state/ticket-runner.sqlite3');"
        " print(database.execute('SELECT probe FROM queue').fetchall())"
    )
    for work in works(tmp_path, verify=[f'cd {tmp_path}; {sys.executable} -c "{ask}" > probe']):
        store = work.place.store
        store.transact(queue.wait_for_weather, note="", reset_at_us=None, by="a", chance=0.0, waits=Waits(1e-6, 1e-6))
        assert isinstance(work.is_claimed(), Finished)
        assert Name.QUEUE_PROBED in {entry.event.name for entry in store.read(log.events, ticket="")}
        assert (tmp_path / "probe").read_text() == "[(None,)]\n"


@pytest.mark.parametrize("wait_s", [0, 30])
def test_resume_ends_the_weather_at_once(place: Place, wait_s: int) -> None:
    """A person lets all tickets start, also while one probes, and earlier pauses are forgotten."""
    place.take("a")
    assert claim_all(place) == ["a"]
    meets(place, "a")
    place.clock.pass_s(wait_s)
    assert claim_all(place) == (["a"] if wait_s else [])
    place.take("b", "c")
    assert place.store.transact(queue.resume, by="me")
    assert claim_all(place) == [*([] if wait_s else ["a"]), "b", "c"]
    assert meets(place, "c")
    assert pause_of(place) == (1, 30, None)


def test_a_persons_pause_outlives_the_weather(place: Place) -> None:
    """What a person paused while a ticket probed stays paused, whatever the probe hears or meets."""
    place.take("a")
    assert claim_all(place) == ["a"]
    meets(place, "a")
    place.clock.pass_s(30)
    assert claim_all(place) == ["a"]
    assert place.store.transact(queue.pause, reason="operator", note="", by="me")
    assert not hears(place, "a")
    assert not meets(place, "a")
    place.take("b")
    place.clock.pass_s(3600)
    assert claim_all(place) == []
    place.store.transact(queue.resume, by="me")
    assert claim_all(place) == ["a", "b"]


def test_a_ticket_that_alone_meets_weather_keeps_no_other(place: Place) -> None:
    """A ticket that the API fails each time is never the probe while another is due, so the others get done."""
    place.take("bad", "b", "c", "d")
    done = []
    for _ in range(4):
        while (row := place.claim()) is not None:
            if row.ticket.id == "bad":
                assert meets(place, "bad")
                continue
            hears(place, row.ticket.id)
            place.store.transact(tickets.apply, row.ticket.id, Finished(1))
            done.append(row.ticket.id)
        assert pause_of(place) == (1, 30, None)
        place.clock.pass_s(30)
    assert done == ["b", "c", "d"]


@pytest.mark.timeout(120)
def test_a_daemon_that_dies_in_the_weather_probes_once_more(tmp_path: Path) -> None:
    """Killed at the pause and at the probe, a queue waits, one ticket tries, and the others follow while it works."""
    with Site.at(tmp_path, poll_s=600.0, concurrency=2) as site:
        for ticket in "abc":
            site.add(ticket, f"for-{ticket}", expects="nothing")
        site.plays_for(**{ticket: [Failure(529, times=None)] for ticket in "abc"})
        site.dies_at(Name.QUEUE_PAUSED)
        asked = len(site.calls)
        assert site.works_once() == 1
        assert len(site.calls) == asked, "it waits"
        assert {line.ticket.attempts for line in site.status().lines} == {0}
        site.let_the_wait_pass("c")
        site.dies_at(Name.QUEUE_PROBED)
        two = "test $(wc -l < at-work) -ge 2"
        waits = f"cd {tmp_path}; echo >> at-work; for i in $(seq 200); do {two} && break; sleep 0.1; done"
        site.plays_for(**{ticket: [bash(waits), say("Done.")] for ticket in "abc"})
        assert site.works_once() == 0
        log = site.log(None)
        kinds = [event.name for event in log]
        probes = [event.payload["by"] for event in log if event.name is Name.QUEUE_PROBED]
        resumed = kinds.index(Name.QUEUE_RESUMED)
        followers = {event.ticket for event in log[resumed:] if event.name is Name.TICKET_CLAIMED}
        assert len(probes) == 2
        assert followers == {*"abc"} - {probes[-1]}
        finished = next(place for place, event in enumerate(log) if event.name is Name.AGENT_FINISHED)
        assert Name.TICKET_CLAIMED in kinds[resumed:finished], "while the probe works"
        for ticket in "abc":
            shown = site.show(ticket)
            assert (shown.ticket.state, shown.ticket.attempts, len(shown.sessions)) == ("done", 0, 1)
        assert site.server.cost_microusd == 6 * COST
