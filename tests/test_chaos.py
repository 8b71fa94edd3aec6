"""Several daemons on one store, killed and frozen at random moments, and what the outside has seen of it."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.events import Event, Name, fold_log
from runner.store import Rx, Store, effects, log, runs, tickets
from runner.store.effects import EffectState
from tests.chaos import Done
from tests.daemons_of_chaos import Arena, price
from tickets.ticket import State

ROOT = Path(__file__).parent.parent
SEED = int(os.environ.get("CHAOS_SEED", "0")) or int.from_bytes(os.urandom(3))
"""Printed when a test fails; the same one strikes in the same order, though not at the very same instants."""
DAEMONS = 6


def drive(arena: Arena, *, kills: int, freezes: int) -> Done:
    """Let daemons finish what they took in, in spite of everything, and return what was done to them."""
    sys.stdout.write(f"CHAOS_SEED={arena.seed}\n")
    Store.open(arena.url).close()  # makes the tables
    command = [sys.executable, "-m", "tests.chaos", arena.url, str(arena.directory)]
    numbers = {"seed": arena.seed, "slots": DAEMONS, "kills": kills, "freezes": freezes}
    options = [f"--{name}={value}" for name, value in numbers.items()]
    driver = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert driver.returncode == 0, driver.stderr
    done = TypeAdapter(Done).validate_json(driver.stdout)
    assert done.crashed == 0, driver.stderr
    return done


def whole_log(rx: Rx, ticket: str) -> list[Event]:
    """Return all of a ticket's log."""
    return [entry.event for entry in log.events(rx, ticket=ticket, limit=1_000_000)]


def test_a_taste_of_chaos(database: str, tmp_path: Path) -> None:
    """A few deaths and freezes repeat no effect, lose no event and no money, and let no lost claim write."""
    arena = Arena(database, tmp_path, SEED)
    drive(arena, kills=6, freezes=2)
    check(arena)


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_chaos(database: str, tmp_path: Path) -> None:
    """Hundreds of deaths and freezes repeat no effect, lose no event and no money, and let no lost claim write."""
    arena = Arena(database, tmp_path, SEED)
    done = drive(arena, kills=200, freezes=60)
    assert done.killed >= 200
    assert done.frozen >= 60
    assert arena.told("refused"), "no claim that was lost has tried to write"
    check(arena)
    reached = {event.name for event in every_event(arena)}
    assert {Name.EFFECT_UNKNOWN, Name.TICKET_ORPHANED, Name.QUESTION_ANSWERED, Name.TICKET_STOPPED} <= reached


def every_event(arena: Arena) -> list[Event]:
    """Return all logs, one after the other."""
    store = Store.open(arena.url, read_only=True)
    try:
        return [event for ticket in ["", *store.read(tickets.states)] for event in store.read(whole_log, ticket)]
    finally:
        store.close()


def check(arena: Arena) -> None:
    """Compare the store with itself and with the outside."""
    store = Store.open(arena.url, read_only=True)
    try:
        store.read(check_effects, arena)
        gapless(store.read(whole_log, ""))
        rows = store.read(tickets.all_rows)
        assert rows
        for row in rows:
            assert row.ticket.state is State.DONE
            events = store.read(whole_log, row.ticket.id)
            gapless(events)
            assert fold_log(row.ticket.id, events) == row.ticket
            check_claims(events)
            check_money(events)
            assert store.read(runs.spent, row.ticket.id) == sum(map(price, {each.run for each in events if each.run}))
    finally:
        store.close()


def gapless(events: list[Event]) -> None:
    """Each event has the next number."""
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]


def check_effects(rx: Rx, arena: Arena) -> None:
    """Everything that was wanted was sent exactly once, and nothing else."""
    sent = Counter(arena.told("sent"))
    assert {key: times for key, times in sent.items() if times > 1} == {}
    assert {(row.key, row.state) for row in effects.effects(rx)} == {(key, EffectState.DONE) for key in sent}


def check_claims(events: list[Event]) -> None:
    """Tokens rise by one, and what names a token was written while that was the present claim."""
    present, last = 0, 0
    for event in events:
        if event.name is Name.TICKET_CLAIMED:
            assert event.payload["token"] == last + 1
            present = last = last + 1
        elif event.name in ENDS:
            assert event.payload["token"] == present
            present = 0
        elif "claim" in event.payload:
            assert event.payload["claim"] == present


ENDS = {
    Name.TICKET_ORPHANED,
    Name.TICKET_PUT_BACK,
    Name.TICKET_HELD,
    Name.TICKET_FINISHED,
    Name.TICKET_STOPPED,
}


def check_money(events: list[Event]) -> None:
    """Every run that began has ended once, and cost what it cost."""
    began = Counter(event.run for event in events if event.name is Name.RUN_STARTED)
    ended = Counter(event.run for event in events if event.name is Name.RUN_ENDED)
    assert began == ended
    assert set(began.values()) <= {1}
    for event in events:
        if event.name is Name.RUN_ENDED:
            assert event.payload["cost_microusd"] == price(event.run or "")
