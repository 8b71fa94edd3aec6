"""Whatever daemons, claims that were lost, operators and the clock do in any order, the store keeps its promises."""

import os
import sys

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from runner.store import Store
from tests.machine import Machine
from tests.stores import Clock

SEED = int(os.environ.get("STATE_MACHINE_SEED", "1"))
"""With the same one the same games are played."""


def play(url: str, *, games: int, steps: int) -> None:
    """Play games of some steps over the database."""
    sys.stdout.write(f"STATE_MACHINE_SEED={SEED}\n")
    clock = Clock()
    store = Store.open(url, clock=clock)
    machine = seed(SEED)(type("Played", (Machine,), {"store": store, "clock": clock}))
    options = settings(
        max_examples=games,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        database=None,
    )
    try:
        run_state_machine_as_test(machine, settings=options)
    finally:
        store.close()


@pytest.mark.timeout(300)  # to make a failure small takes its time
def test_a_taste_of_any_order(database: str) -> None:
    """In a few short games no order of steps breaks a promise of the store."""
    play(database, games=10, steps=20)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_any_order(database: str) -> None:
    """In many long games no order of steps breaks a promise of the store."""
    play(database, games=200 if database.startswith("sqlite") else 60, steps=40)
