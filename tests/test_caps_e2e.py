"""What the caps beside dollars do to real runs of Claude Code: they end, keep their work, and go on when raised."""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from runner.days import next_day_us
from runner.events import Name
from runner.offline import Reply, Text, ToolUse
from tests.daemons import Site, bash, say
from tickets.ticket import NEVER_US

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Give a place for daemons."""
    with Site.at(tmp_path) as site:
        yield site


def errand(prompt: str) -> Reply:
    """Return a reply that gives work to a subagent."""
    return Reply((ToolUse("Agent", {"description": "d", "prompt": prompt, "subagent_type": "general-purpose"}),))


def committed(site: Site, ticket: str) -> bool:
    """Return whether all that a ticket did is in a commit."""
    tree, base = site.worktree(ticket), site.show(ticket).row.base_sha
    log, left = Site.run_git(tree, "log", "--format=%s", f"{base}.."), Site.run_git(tree, "status", "--porcelain")
    return (log, left) == (f"Work on {ticket}", "")


def test_turns_and_tokens_end_a_run_and_its_session_goes_on_when_they_are_raised(site: Site) -> None:
    """A run makes the turns that are left, ends with the response that crosses the tokens, and goes on when raised."""
    site.configure(limits={"ticket_turns": 3, "ticket_tokens": 9_000})
    small = [bash(f"echo {name} >> file.txt", input_tokens=100, output_tokens=50) for name in ("one", "two", "three")]
    site.plays_for(
        turns=[*small, *small, say("Done.")],
        tokens=[
            small[0],
            bash("sleep 20; echo more >> file.txt", input_tokens=6_000, output_tokens=4_000),
            say("Done."),
        ],
    )
    site.add("a", "Do it, for-turns.")
    site.add("b", "Do it, for-tokens.")
    assert site.works_once() == 4
    turns, tokens = site.show("a"), site.show("b")
    assert (turns.ticket.state, turns.ticket.reason, turns.kinds) == ("held", "budget", [("first", "turns")])
    assert (tokens.ticket.state, tokens.ticket.reason, tokens.kinds) == ("held", "budget", [("first", "budget")])
    assert "limits.ticket_turns: 3 of 3 turns used; the work so far is committed on ticket/a" in turns.why
    assert "limits.ticket_tokens: 10,150 of 9,000 tokens used" in tokens.why
    assert [(run.turns, run.input_tokens, run.output_tokens) for run in (*turns.runs, *tokens.runs)] == [
        (3, 300, 150),
        (2, 6_100, 4_050),
    ]
    assert len(site.calls) == 5
    assert committed(site, "a")
    assert committed(site, "b")
    for ticket in ("a", "b"):
        names = site.names(ticket)
        assert names.index(Name.BUDGET_WARNED) < names.index(Name.RUN_ENDED)

    site.configure(limits={"ticket_turns": 30, "ticket_tokens": 90_000})
    site.tell("release", "a")
    site.tell("release", "b")
    assert site.works_once() == 0
    for ticket in ("a", "b"):
        shown = site.show(ticket)
        assert (shown.ticket.state, shown.kinds[1:], len(shown.sessions)) == ("done", [("resumed", "finished")], 1)


def test_what_subagents_use_ends_a_run(site: Site) -> None:
    """Responses of subagents, and of their own, are turns and tokens of the ticket while they work, each once."""
    site.configure(limits={"ticket_turns": 4, "ticket_tokens": 9_000})
    words = Text("I begin."), ToolUse("Bash", {"command": "echo one >> file.txt"})
    site.plays_for(
        deep=[Reply(words), bash("sleep 20; echo more >> file.txt"), say("Done.")],
        errand=[errand("for-deep"), say("Done.")],
        large=[bash("sleep 20", input_tokens=9_000), say("Done.")],
        turns=[errand("for-errand"), say("Done.")],
        tokens=[errand("for-large"), say("Done.")],
    )
    site.add("a", "Do it, for-turns.", tools=["Bash", "Task"])
    site.add("b", "Do it, for-tokens.", tools=["Bash", "Task"])
    assert site.works_once() == 4
    turns, tokens = site.show("a"), site.show("b")
    assert (turns.ticket.state, turns.ticket.reason, turns.kinds) == ("held", "budget", [("first", "turns")])
    assert (tokens.ticket.state, tokens.ticket.reason, tokens.kinds) == ("held", "budget", [("first", "budget")])
    assert "limits.ticket_turns: 4 of 4 turns used; the work so far is committed on ticket/a" in turns.why
    assert "limits.ticket_tokens: 11,000 of 9,000 tokens used" in tokens.why
    assert [(run.turns, run.cost.cut) for run in (*turns.runs, *tokens.runs) if run.cost] == [(4, False), (2, False)]
    assert len(site.calls) == 6


def test_active_time_ends_a_run(site: Site) -> None:
    """A run ends when its active time is used, its session stays open, and no work is told of when none was done."""
    site.configure(limits={"ticket_active_s": 3.0})
    site.plays(bash("sleep 600"), say("Done."))
    site.add("t")
    assert site.works_once() == 4
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.reason, shown.kinds) == ("held", "budget", [("first", "budget")])
    assert "of 3 s used; nothing was changed so far" in shown.why
    assert Site.run_git(site.worktree("t"), "status", "--porcelain") == ""
    assert [session.closed_reason for session in shown.sessions] == [None]


def test_what_waits_for_money_of_all_goes_on_as_soon_as_there_is_more(site: Site) -> None:
    """A ticket waits for the queue's or the day's cap with the reason, and a start with a higher one ends the wait."""
    site.configure(limits={"queue_usd": 0.005})
    dear = bash("echo two > two.txt", input_tokens=10_000, output_tokens=5_000)
    site.plays(bash("echo one > one.txt"), dear, say("Done."))
    site.add("t")
    assert site.works_once() == 1
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.not_before_us, shown.because.until_us) == ("ready", NEVER_US, None)
    assert "limits.queue_usd: $0.0000 of $0.0050 spent" in shown.why

    site.configure(limits={"day_usd": 0.005}, time_zone="Asia/Tokyo")
    assert site.works_once() == 1
    shown = site.show("t")
    assert shown.ticket.not_before_us == next_day_us(shown.now_us, ZoneInfo("Asia/Tokyo"))
    assert "limits.day_usd: $0.0000 of $0.0050 spent" in shown.why
    assert (site.calls, shown.runs) == ([], [])
    assert not site.worktree("t").exists()

    site.configure(limits={"day_usd": 0.05})
    assert site.works_once() == 1
    shown = site.show("t")
    assert (shown.ticket.state, shown.ticket.attempts, shown.kinds) == ("ready", 0, [("first", "budget")])
    assert shown.ticket.not_before_us == next_day_us(shown.now_us, UTC)
    assert "limits.day_usd: $0.1155 of $0.0500 spent; the work so far is committed" in shown.why
    assert committed(site, "t")

    site.configure(limits={})
    assert site.works_once() == 0
    shown = site.show("t")
    assert (shown.ticket.state, shown.kinds[1:], len(shown.sessions)) == ("done", [("resumed", "finished")], 1)
