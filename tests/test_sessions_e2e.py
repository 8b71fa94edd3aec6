"""What sessions survive, what they cost, and what reaches the model, with the real CLI."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.offline import Failure
from runner.session import session_id
from tests.daemons import COST, Site, bash, command_line, say, wait_until_gone

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def test_what_is_not_the_tickets_fault_costs_no_attempt_and_no_session(site: Site) -> None:
    """An overloaded model, a CLI that is killed at its start and a refused key let a ticket wait in its session."""
    site.add("t", expects="nothing")
    site.plays(Failure(529, times=None))
    for wait_s in (30, 60):
        assert site.works_once() == 1
        shown = site.show("t")
        assert (shown.ticket.state, shown.ticket.attempts, shown.ticket.not_before_us) == ("ready", 0, 0)
        assert "HTTP 529" in shown.ticket.note
        pause = site.status().pause
        assert pause is not None
        assert pause.until_us is not None
        assert wait_s <= (pause.until_us - pause.since_us) / 1e6 <= 1.5 * wait_s
        assert "HTTP 529" in pause.note
        site.let_the_wait_pass("t")

    daemon = site.start(once=True)
    os.kill(site.cli("t").pid, signal.SIGKILL)
    assert daemon.ends() == 1
    assert site.show("t").ticket.waits == 3
    site.let_the_wait_pass("t")

    site.plays(Failure(401, kind="authentication_error", message="no such key", times=None))
    assert site.works_once() == 1
    pause = site.status().pause
    assert pause is not None
    assert (pause.reason, pause.by) == ("ticket", "t")
    assert "HTTP 401" in pause.note
    asked = len(site.calls)
    site.plays(say("Done."))
    site.tell("resume")
    assert site.works_once() == 0
    assert len(site.calls) == asked + 1
    shown = site.show("t")
    assert [run.outcome for run in shown.runs] == ["weather", "weather", "never_started", "unauthorized", "finished"]
    assert [run.api_error_status for run in shown.runs] == [529, 529, None, 401, None]
    assert not any(run.cost.cut for run in shown.runs if run.cost is not None)
    assert (shown.ticket.state, shown.ticket.attempts, len(shown.sessions)) == ("done", 0, 1)
    assert (shown.sessions[0].generation, shown.sessions[0].closed_reason) == (1, None)
    assert {run.session for run in shown.runs} == {session_id("folder", "t", 1)}
    assert shown.spent_microusd == site.server.cost_microusd == COST


def test_a_cap_holds_over_all_runs_of_a_session(site: Site) -> None:
    """A resumed run gets what is left of the cap, is stopped there with its work committed, and goes on when raised."""
    dear, cheap = 805_500, 105_000
    site.configure(limits={"ticket_usd": 1.0})
    site.plays(
        bash("touch in-tool; sleep 20", input_tokens=101_000, output_tokens=33_500),
        bash("echo one > one.txt", input_tokens=10_000, output_tokens=5_000),
        bash("echo two > two.txt", input_tokens=10_000, output_tokens=5_000),
        bash("rm in-tool; echo three > three.txt", input_tokens=10_000, output_tokens=5_000),
        say("Done."),
    )
    site.add("t")
    daemon = site.start()
    site.waits_in_tool("t", "in-tool")
    daemon.kill()
    wait_until_gone(site.processes("t"))

    daemon = site.start(once=True)
    arguments = command_line(site.cli("t"))
    assert daemon.ends() == 4
    shown = site.show("t")
    assert shown.kinds == [("first", "orphaned"), ("resumed", "budget")]
    assert shown.runs[1].allowance_microusd < 1_000_000 - dear
    given = float(arguments[arguments.index("--max-budget-usd") + 1])
    assert round(given * 1e6) == shown.runs[1].allowance_microusd
    assert [run.carried_microusd for run in shown.runs] == [0, dear]
    assert shown.spent_microusd == site.server.cost_microusd == dear + 2 * cheap
    assert (shown.ticket.state, shown.ticket.reason) == ("held", "budget")
    assert "$1.0155 of $1.0000" in shown.why
    assert (site.config.queue_directory / "held/t.md").exists()
    tree = site.worktree("t")
    assert Site.run_git(tree, "log", "--format=%s", f"{shown.row.base_sha}..").splitlines() == ["Work on t"]
    assert Site.run_git(tree, "status", "--porcelain") == ""

    site.tell("release", "t")
    assert site.works_once() == 4, "nothing was raised, so nothing is started"
    assert len(site.show("t").runs) == 2
    site.configure(limits={"ticket_usd": 2.0})
    site.tell("release", "t")
    assert site.works_once() == 0
    shown = site.show("t")
    assert (shown.ticket.state, shown.kinds[2:]) == ("done", [("resumed", "finished")])
    assert [run.carried_microusd for run in shown.runs] == [0, dear, dear + 2 * cheap]
    assert [run.cost.microusd for run in shown.runs if run.cost] == [dear, 2 * cheap, cheap + COST]
    assert shown.spent_microusd == site.server.cost_microusd == dear + 3 * cheap + COST
    assert len(shown.sessions) == 1


def test_tickets_that_end_in_their_own_ways_side_by_side(site: Site) -> None:
    """Checks go back to the session a bounded number of times, texts arrive verbatim, and no ticket touches another."""
    check = "test -e good.txt || { seq 1000; echo no good.txt; exit 7; }"
    site.configure(verify=[check], max_fix_rounds=1, concurrency=3)
    site.plays_for(
        mended=(bash("touch bad.txt"), say("Done."), bash("touch good.txt"), say("Done now.")),
        stubborn=(bash("touch bad.txt"), say("Done."), say("It is good.")),
        idle=(say("Nothing to do."),),
        looking=(say("I looked."),),
        fenced=(say("Never."),),
    )
    texts = {
        "idle": "/clear\nfor-idle and read @/etc/passwd\n\n  as it is ",
        "looking": "@/etc/passwd for-looking",
    }
    site.add("mended", "for-mended")
    site.add("stubborn", "for-stubborn")
    site.add("idle", texts["idle"], verify=[])
    site.add("looking", texts["looking"], verify=[], expects="nothing")
    site.add("fenced", "for-fenced")
    (site.root / "elsewhere").mkdir()
    site.worktree("fenced").symlink_to(site.root / "elsewhere")
    assert site.works_once() == 4
    shown = {line.ticket.id: site.show(line.ticket.id) for line in site.status().lines}
    assert {name: (it.ticket.state, it.ticket.reason) for name, it in shown.items()} == {
        "mended": ("done", None),
        "stubborn": ("held", "checks"),
        "idle": ("held", "no_change"),
        "looking": ("done", None),
        "fenced": ("held", "worktree"),
    }
    for name in ("mended", "stubborn"):
        assert shown[name].kinds == [("first", "finished"), ("fix", "finished")]
        (session,) = shown[name].sessions
        assert {run.session for run in shown[name].runs} == {session.id}
        told = next(call for call in site.calls if call.scene == f"for-{name}" and call.turn == 2).last_user_texts
        assert any(check in text and "exit code 7" in text and "1000\nno good.txt" in text for text in told)
    assert "exit code 7" in shown["stubborn"].why
    assert shown["stubborn"].why.rstrip().endswith("1000\nno good.txt")
    assert site.delivered("mended") == ["Work on mended"]
    assert site.delivered("stubborn") == []
    assert shown["mended"].why == "its work is on ticket/mended"
    assert shown["looking"].why == "nothing had to change"
    (comment,) = (site.config.queue_directory / "comments/looking").iterdir()
    assert comment.read_text().startswith("Done: nothing had to change.")
    for name, text in texts.items():
        (call,) = [call for call in site.calls if call.scene == f"for-{name}"]
        assert text in call.last_user_texts
        assert "root:" not in str(call.body["messages"])
    assert "is a symlink" in shown["fenced"].why
    assert list((site.root / "elsewhere").iterdir()) == []
    assert sum(it.spent_microusd for it in shown.values()) == site.server.cost_microusd
