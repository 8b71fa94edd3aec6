"""A bad night: what was a ticket in the evening is done in the morning, or held for a reason that a person is told.

`make proof` plays NIGHTS of them; SEED says from which on.
"""

import os
from itertools import pairwise
from pathlib import Path

import pytest

from tests.night.plans import REASONS, Kind
from tests.night.schedule import BLOWS, night
from tests.night.verdict import judge, story
from tests.night.world import play

SEED = int(os.environ.get("SEED", "1"))
NIGHTS = int(os.environ.get("NIGHTS", "2"))


def test_a_seed_decides_a_night() -> None:
    """A seed always makes the same night, and each night has all kinds of tickets, storms and its kills."""
    for seed in range(1, 30):
        once = night(seed)
        assert once == night(seed)
        assert (len(once.plans), len(once.blows)) == (30, BLOWS)
        assert {plan.kind for plan in once.plans} >= {*REASONS, Kind.ASKS, Kind.DEPLOYS}
        assert {storm.failure.status for storm in once.storms} >= {429, 500, 529}
        gaps = [after.at - before.at for before, after in pairwise(once.blows)]
        assert min(gaps) > 4, "each daemon comes further than the one before"
    assert night(1) != night(2)


@pytest.mark.proof
@pytest.mark.timeout(660)  # the world has a limit of its own, which says more
@pytest.mark.parametrize("seed", range(SEED, SEED + NIGHTS))
def test_every_ticket_is_done_or_held_for_a_reason_after_a_bad_night(tmp_path: Path, seed: int) -> None:
    """Through storms, broken streams and five kills no work, no effect and no dollar is lost or doubled."""
    with play(night(seed), tmp_path) as morning:
        problems = judge(morning)
        assert not problems, "\n".join([*problems, story(morning)])
