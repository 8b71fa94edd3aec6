"""A daemon that is killed, and what the next one makes of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import transcript
from runner.events import Name
from runner.offline import Reply, Text, conversation_text
from runner.session import session_id
from tests.daemons import COST, Site, bash, command_line, living, say, wait_until_gone

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def test_killed_in_a_tool_the_same_session_goes_on(site: Site) -> None:
    """Nothing outlives a daemon that was killed in a tool, and the next one resumes for one model call more at most."""
    turns = (
        bash("echo one > one.txt"),
        bash("(setsid nohup sleep 301 >/dev/null 2>&1 &); touch in-tool; sleep 20; touch too-late"),
        bash("rm in-tool; echo two > two.txt"),
        say("Done."),
    )
    site.plays(*turns)
    site.add("t")
    daemon = site.start()
    site.waits_in_tool("t", "in-tool")
    strays = site.wait(lambda: [p for p in site.processes("t") if command_line(p)[:2] == ["sleep", "301"]], "a stray")
    left = site.processes("t")
    assert {each.name for each in left} >= {"claude", "bash", "sleep"}
    daemon.kill()
    wait_until_gone([each for each in left if each not in strays])
    assert living(strays) == strays, "it left the CLI's tree, or this test proves nothing"
    assert site.works_once(look_at=[Name.RUN_STARTED]) == 0
    assert [look.pids for look in site.looks(Name.RUN_STARTED)] == [[]]
    shown = site.show("t")
    assert shown.ticket.state == "done"
    assert (shown.ticket.attempts, shown.kinds) == (0, [("first", "orphaned"), ("resumed", "finished")])
    assert [(each.id, each.generation) for each in shown.sessions] == [(session_id("folder", "t", 1), 1)]
    assert {call.session_id for call in site.calls} == {session_id("folder", "t", 1)}
    assert len(site.calls) <= len(turns) + 1
    told = next(call for call in site.calls if call.number == 3).last_user_texts
    assert any("interrupted" in text and "- Bash: (setsid nohup sleep 301" in text for text in told)
    assert not any("Do it." in text for text in told), "the ticket is not said again"
    assert not (site.worktree("t") / "too-late").exists()
    assert shown.spent_microusd == site.server.cost_microusd == len(turns) * COST
    line = site.status().line("t")
    assert (line.sums.cost_microusd, line.sums.cut) == (shown.spent_microusd, False)
    assert site.delivered("t") == ["Work on t"]


def test_killed_in_a_response_the_money_is_marked(site: Site) -> None:
    """A response that was in flight when the daemon was killed marks the cost, which is that of all complete ones."""
    site.plays(bash("echo one > one.txt"), Reply((Text("I think"),), hang=True), bash("echo two > two.txt"), say("Ok."))
    site.add("t")
    daemon = site.start()
    site.wait(lambda: len(site.calls) == 2 and site.calls[1].status == 200, "the second response to begin")
    left = site.processes("t")
    daemon.kill()
    wait_until_gone(left)
    assert site.works_once() == 0
    shown = site.show("t")
    assert (shown.ticket.state, shown.kinds) == ("done", [("first", "orphaned"), ("resumed", "finished")])
    assert [run.cost.cut for run in shown.runs if run.cost] == [True, False]
    assert shown.spent_microusd == site.server.cost_microusd == 3 * COST
    assert site.status().line("t").sums.cut


def test_killed_after_the_conversation_no_model_is_asked_again(site: Site) -> None:
    """Killed in a check, at the commit and at the push, the work is delivered once and its conversation paid once."""
    turns = (bash("echo one > one.txt"), say("Done."))
    site.plays(*turns)
    go, checking = site.root / "go", site.root / "checking"
    site.configure(verify=[f"test -s one.txt && touch {checking} && {{ test -e {go} || sleep 30; }}"])
    site.add("t", title="Add one")
    daemon = site.start()
    site.wait(checking.exists, "the check to run")
    left = site.processes("t")
    (shell,) = (each for each in left if each.command == each.pid)
    daemon.kill()
    wait_until_gone([shell])
    go.touch()
    for moment in (Name.BRANCH_COMMITTED, Name.BRANCH_PUSHED):
        site.dies_at(moment)
        assert len(site.calls) == len(turns)
    assert living(left) == []
    assert site.works_once() == 0
    assert len(site.calls) == len(turns)
    shown = site.show("t")
    assert (shown.ticket.state, shown.kinds) == ("done", [("first", "finished")])
    assert shown.spent_microusd == len(turns) * COST
    assert site.delivered("t") == ["Add one"]
    assert site.git("show", "ticket/t:one.txt") == "one"
    assert site.names("t").count(Name.BRANCH_COMMITTED) == 1


def test_a_lost_transcript_costs_one_failed_attempt(site: Site) -> None:
    """Without its transcript a session fails to resume once, a fresh one is told of it, and that one is resumed."""
    site.plays(bash("touch in-tool; sleep 20"), later=(bash("touch again; sleep 20"), say("Done.")))
    site.add("t", "Write a poem.", title="Poem")
    daemon = site.start()
    site.waits_in_tool("t", "in-tool")
    daemon.kill()
    wait_until_gone(site.processes("t"))
    first, second = (session_id("folder", "t", generation) for generation in (1, 2))
    transcript.path(site.home.claude, site.worktree("t"), first).unlink()
    daemon = site.start()
    site.waits_in_tool("t", "again")
    shown = site.show("t")
    assert shown.kinds == [("first", "orphaned"), ("resumed", "resume_failed"), ("fallback", None)]
    assert [(each.id, each.generation, each.closed_reason) for each in shown.sessions] == [
        (first, 1, "resume_failed"),
        (second, 2, None),
    ]
    told = conversation_text(site.calls[-1].body)
    assert "Poem\n\nWrite a poem." in told
    assert "an earlier session worked on the ticket" in told
    assert "- Bash: touch in-tool; sleep 20" in told
    daemon.kill()
    wait_until_gone(site.processes("t"))
    assert site.works_once() == 0
    shown = site.show("t")
    assert shown.kinds[2:] == [("fallback", "orphaned"), ("resumed", "finished")]
    assert [each.generation for each in shown.sessions] == [1, 2]
    assert site.calls[-1].session_id == second
    assert (shown.ticket.state, shown.ticket.attempts) == ("done", 0)
    assert [run.cost.kind for run in shown.runs if run.cost] == ["unknown", "measured", "measured", "measured"]
    assert shown.spent_microusd == site.server.cost_microusd - COST, "what only the lost transcript knew"


def test_three_idle_deaths_hold_a_ticket(site: Site) -> None:
    """A ticket whose claims end in the daemon's death three times, before there is anything new, waits for a person."""
    site.plays(say("Done."))
    site.add("t", expects="nothing")
    site.dies_at(Name.WORKTREE_MADE)
    for moment in (Name.TICKET_CLAIMED, Name.RUN_STARTED, Name.TICKET_CLAIMED):
        assert site.names("t").count(Name.TICKET_HELD) == 0
        site.dies_at(moment)
    assert site.works_once() == 3
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason) == ("held", "attempts")
    assert "3 claims in a row" in shown.why
    (comment,) = (site.config.queue_directory / "comments/t").iterdir()
    assert "3 claims in a row" in comment.read_text()
    assert (site.calls, shown.spent_microusd) == ([], 0)
