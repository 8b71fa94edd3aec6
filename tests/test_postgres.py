"""Daemons that share one PostgreSQL: each works on tickets of its own home, and goes on after a kill."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runner.events import Name
from tests.daemons import Site, bash, say, wait_until_gone

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


def test_two_daemons_share_a_database_and_leave_each_other_alone(tmp_path: Path, postgresql: Callable[[], str]) -> None:
    """A daemon takes no ticket with a worktree in another home, dead or alive; a killed one goes on with its own."""
    url = postgresql()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        Site.at(tmp_path / "a", database_url=url, concurrency=1) as first,
        Site.at(tmp_path / "b", database_url=url) as second,
    ):
        first.plays(bash("touch begun; sleep 30"), bash("date > made"), say("Made."))
        second.plays(bash("date > other"), say("Done."))
        first.add("one")
        daemon = first.start()
        first.waits_in_tool("one", "begun")
        second.add("two")
        assert second.works_once() == 0
        assert (second.show("one").ticket.state, second.show("two").ticket.state) == ("running", "done")

        left = first.processes("one")
        daemon.kill()
        wait_until_gone(left)
        assert second.works_once() == 3
        assert second.show("one").ticket.state == "running"

        assert first.works_once() == 0
        shown = first.show("one")
        assert (shown.ticket.state, len(shown.sessions)) == ("done", 1)
        assert [run.kind for run in shown.runs] == ["first", "resumed"]
        assert shown.spent_microusd == first.server.cost_microusd
        assert first.names("one").count(Name.TICKET_CLAIMED) == 2
        assert first.delivered("one")
        assert second.delivered("two")
