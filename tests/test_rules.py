"""A session whose rules are older than the daemon's, with the real CLI."""

import json
from pathlib import Path

import pytest

from runner.events import Name
from runner.offline import Reply, ToolUse
from tests.daemons import Site, bash, say

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI


def test_a_session_keeps_its_rules_or_makes_way_for_a_new_one(tmp_path: Path) -> None:
    """After its rules changed a session goes on and is marked, until the daemon is told to go on in a new one, once."""
    ask = Reply((ToolUse("mcp__runner__ask", {"question": "Go on?"}),))
    with Site.at(tmp_path, verify=["true"]) as site:
        site.plays(ask, ask, later=(bash("echo one > one.txt"), say("Done.")))
        site.add("t")
        assert site.works_once() == 4
        site.tell("answer", "t", "Yes.")
        site.configure(verify=["true", "test -e one.txt"])
        assert site.works_once() == 4
        assert site.show("t").kinds == [("first", "asked"), ("resumed", "asked")]
        assert site.names("t").count(Name.SESSION_OUTDATED) == 1
        assert "its rules are older than the daemon's" in site.tell("show", "t")
        assert "; its rules are older\n" in site.tell("status")

        site.tell("answer", "t", "Yes.")
        agent = {"base_url": site.server.url, "model": "claude-sonnet-4-5", "on_rules_changed": "fresh"}
        site.configure(verify=["true", "test -e one.txt"], agent=agent)
        assert site.works_once() == 0
        shown = site.show("t")
        assert shown.kinds == [("first", "asked"), ("resumed", "asked"), ("fallback", "finished")]
        assert [session.closed_reason for session in shown.sessions] == ["rules_changed", None]
        assert "- `test -e one.txt`" in json.dumps(site.calls[-1].body)
        assert site.names("t").count(Name.SESSION_OUTDATED) == 1
        assert "1 fresh" in (table := site.tell("status", "--done"))
        assert "its rules are older" not in table
