"""A full ticket whose daemon is killed at any moment is, once it is done, as if nothing had happened."""

from pathlib import Path

import pytest

from runner.events import Name
from tests.matrix.moments import Blow, Cell, Inside, Moment, Way
from tests.matrix.play import play
from tests.matrix.verdict import judge

pytestmark = pytest.mark.timeout(180)  # a ticket has three runs, each with the real CLI

SAMPLE = Cell(
    (
        Blow(Way.DAEMON, Moment(Inside.COMMENT_WRITTEN, 1)),
        Blow(Way.TREE, Moment(Name.TOOL_STARTED, 2)),
        Blow(Way.TERM, Moment(Name.CHECK_STARTED, 1)),
    )
)
"""A kill in each way, one after the other: inside an effect, inside a tool and inside a check."""


def test_a_ticket_that_is_killed_in_each_way_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Killed inside an effect, a tool and a check, a ticket ends as if undisturbed, each effect and dollar once."""
    verdict = judge(play(SAMPLE, tmp_path))
    assert not verdict.problems
