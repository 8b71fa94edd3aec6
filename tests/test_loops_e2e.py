"""Tickets that go round in circles, with the real CLI: stopped or held with what shows it, and their work kept."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.events import Name
from runner.offline import Failure, Reply, Text, ToolUse
from tests.daemons import COST, Site, bash, say

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def test_a_call_that_fails_again_and_again_ends_its_run(site: Site) -> None:
    """The same call is stopped at its third failure with nothing that worked between, and what was made is kept."""
    site.configure(limits={"same_error": 3})
    fails = bash("echo no such thing >&2; exit 3")
    site.plays(
        *(fails, bash("echo one > one.txt"), fails, bash("false")),
        *(fails, fails, bash("sleep 60")),
    )
    site.add("t")
    assert site.works_once() == 4
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason, shown.ticket.attempts) == ("held", "loop", 0)
    assert shown.kinds == [("first", "looped")]
    assert "`Bash: echo no such thing >&2; exit 3` failed 3 times in the same way, and nothing worked" in shown.why
    assert "is committed on ticket/t" in shown.why
    (looped,) = [event for event in site.log("t") if event.name is Name.AGENT_LOOPED]
    assert looped.payload == {"tool": "Bash", "times": 3}
    assert len(site.calls) <= 7, "what was on its way when the third failure was heard, and no more"
    assert Site.run_git(site.worktree("t"), "log", "--format=%s", f"{shown.row.base_sha}..") == "Work on t"


def test_a_session_that_yields_no_turn_twice_is_followed_by_one_that_knows(site: Site) -> None:
    """After two resumes without a turn a new session has what was said and done, and the caps count both."""
    words, commit = Text("First one, then two."), "echo 1 > 1.txt; git add .; git commit -qm One"
    wanted = ToolUse("mcp__runner__comment", {"operation": "plan", "body": "One, then two."})
    step = ToolUse("TaskCreate", {"subject": "Add two", "description": "With a commit."})
    done = (Reply((words, ToolUse("Bash", {"command": commit}))), Reply((wanted, step)))
    site.plays(*done, Failure(422, kind="invalid_request_error", times=None))
    site.add("t", "Add one and two.")
    for outcome in ("failed", "unexplained", "unexplained"):
        assert site.works_once() == 1
        assert site.show("t").kinds[-1][1] == outcome
        site.let_the_wait_pass("t")
        site.plays(*done, *[say("")] * 9, later=(bash("echo 2 > 2.txt"), say("Done.")))
    assert site.works_once() == 0
    shown = site.show("t")
    assert shown.kinds[1:] == [("resumed", "unexplained"), ("resumed", "unexplained"), ("fallback", "finished")]
    assert [session.closed_reason for session in shown.sessions] == ["no_turns", None]
    begun = [event.payload["summary"] for event in site.log("t") if event.name is Name.TOOL_STARTED]
    assert "Add two" in begun
    (told,) = site.calls[-2].last_user_texts[-1:]
    assert told.startswith("Add one and two.")
    for fact in (
        "```\nFirst one, then two.\n```",
        "- pending: Add two\n",
        "Commits on the branch so far:\n- ",
        " One\n",
        "comment.plan: done",
    ):
        assert fact in told
    assert site.delivered("t") == ["Work on t", "One"]
    assert shown.spent_microusd == site.server.cost_microusd > 4 * COST, "empty answers cost too"


def test_work_that_gets_nowhere_is_held_though_rounds_are_left(site: Site) -> None:
    """Three times the same failure of a check, or three runs that leave all as it was, hold a ticket and say so."""
    site.configure(max_fix_rounds=9)
    done = ("Done.", "Done now.", "Now it is.")
    site.plays_for(
        busy=[turn for n, text in enumerate(done) for turn in (bash(f"echo {n} > {n}.txt"), say(text))],
        idle=[bash("echo one > one.txt"), *(say(f"It is good, and took {n} s.") for n in range(1, 9))],
    )
    site.add("busy", "for-busy", verify="date +%H:%M:%S; echo no good.txt >&2; test -e good.txt")
    site.add("idle", "for-idle", verify="echo $$-$(date +%N); test -e good.txt")
    assert site.works_once() == 4
    for name, said in (
        ("busy", "failed 3 times in a row in the same way: exit code 1"),
        ("idle", "its last 3 runs left everything as it was: the same commit, files and effects"),
    ):
        shown = site.show(name)
        assert (shown.ticket.state, shown.ticket.reason) == ("held", "loop")
        assert shown.kinds == [("first", "finished"), ("fix", "finished"), ("fix", "finished")]
        assert said in shown.why
    assert "no good.txt" in site.show("busy").why
    assert (site.worktree("busy") / "2.txt").exists()


@pytest.mark.proof
def test_runs_that_fail_and_change_nothing_are_held_though_attempts_are_left(site: Site) -> None:
    """The third run in a row that ends by its own fault and leaves all as it was is not put back again."""
    site.configure(limits={"attempts": 9})
    site.add("t")
    for number in range(1, 4):
        turns = [bash(f"test {n} -gt 0") for n in range(1, number + 1)]
        site.plays(*turns, Failure(422, kind="invalid_request_error", times=None))
        assert site.works_once() == (4 if number == 3 else 1)
        site.let_the_wait_pass("t")
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason, shown.ticket.attempts) == ("held", "loop", 2)
    assert [outcome for _, outcome in shown.kinds] == ["failed"] * 3
    assert "its last 3 runs left everything as it was" in shown.why
    assert "HTTP 422" in shown.why
