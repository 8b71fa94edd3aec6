"""A daemon as its operator knows it: signals, exit codes and commands, while real agents run."""

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from runner.events import Name
from runner.offline import conversation_text
from tests.daemons import Daemon, Site, bash, say, until, wait_until_gone

pytestmark = pytest.mark.timeout(120)  # several runs, each with the real CLI

WAIT = "touch {mark}; for i in $(seq 900); do test -e go && exit; sleep 0.1; done"
"""A shell that waits for a file, a minute and a half at most."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose model has nothing to say yet."""
    with Site.at(tmp_path) as site:
        yield site


def terminate(daemon: Daemon, times: int) -> None:
    """Send TERM, and wait until it was heeded, so many times: two that wait together are one."""
    for time in range(1, times + 1):
        daemon.signal(signal.SIGTERM)
        until(partial(daemon.stops, time), f"heeding TERM number {time}")


def test_a_drain_lets_a_ticket_finish_and_starts_no_other(site: Site) -> None:
    """After one TERM the running ticket goes on to its end and the next one stays; a second daemon never began."""
    site.configure(concurrency=1)
    site.plays(bash(WAIT.format(mark="in-tool")), bash("rm in-tool; echo one > one.txt"), say("Done."))
    site.add("t")
    daemon = site.start()
    site.waits_in_tool("t", "in-tool")
    site.add("later")
    site.wait_for(Name.TICKET_TAKEN, "later")
    said = site.tell("start", "--once", code=75)
    assert f"process {daemon.pid}" in said
    terminate(daemon, 1)
    (site.worktree("t") / "go").touch()
    assert daemon.ends() == 0
    assert site.processes() == []
    assert site.show("t").kinds == [("first", "finished")]
    assert {line.ticket.id: line.ticket.state for line in site.status().lines} == {"t": "done", "later": "ready"}
    assert site.show("later").runs == []


def test_a_signal_that_comes_late_changes_no_exit_code(site: Site) -> None:
    """One more TERM while the process of a daemon that has ended is taken down does not make a failure of it."""
    daemon = site.start()
    site.wait(site.home.socket.exists, "the socket")
    terminate(daemon, 1)
    until(lambda: site.home.holder() is None, "the end of the daemon")
    daemon.signal(signal.SIGTERM)
    assert daemon.ends() == 0


def test_an_interrupted_ticket_goes_on_at_the_next_start(site: Site) -> None:
    """A second TERM and a drain that is over interrupt a run, a third TERM leaves at once, and its session goes on."""
    site.plays(*(bash(f"touch tool-{n}; sleep 100") for n in (1, 2, 3)), bash("rm tool-*; date > date"), say("Done."))
    site.add("t")
    daemon = site.start()
    site.waits_in_tool("t", "tool-1")
    terminate(daemon, 2)
    assert daemon.ends() == 0
    assert site.processes() == []
    ticket = site.show("t").ticket
    assert (ticket.state, ticket.attempts, ticket.not_before_us) == ("ready", 0, 0)

    site.configure(clocks={"drain_s": 0.1})
    daemon = site.start()
    site.waits_in_tool("t", "tool-2")
    terminate(daemon, 1)
    assert daemon.ends() == 0
    assert site.processes() == []

    site.configure()
    daemon = site.start()
    site.waits_in_tool("t", "tool-3")
    left, cli = site.processes(), site.cli("t")
    os.kill(cli.pid, signal.SIGSTOP)  # deaf to the interruption, which would else be over before the third TERM
    terminate(daemon, 2)
    daemon.signal(signal.SIGTERM)
    assert daemon.ends() == 70
    os.kill(cli.pid, signal.SIGCONT)
    wait_until_gone(left)

    assert site.works_once() == 0
    shown = site.show("t")
    assert shown.kinds == [
        ("first", "stopped"),
        ("resumed", "stopped"),
        ("resumed", "orphaned"),
        ("resumed", "finished"),
    ]
    assert (shown.ticket.state, shown.ticket.attempts, len(shown.sessions)) == ("done", 0, 1)
    assert [run.cost.cut for run in shown.runs if run.cost] == [False] * 4
    assert shown.spent_microusd == site.server.cost_microusd
    for call, mark in zip(site.calls[1:4], ("tool-1", "tool-2", "tool-3"), strict=True):
        assert any(f"- Bash: touch {mark}" in text for text in call.last_user_texts)


def test_a_running_ticket_is_steered_through_the_socket(site: Site) -> None:
    """Hold, cancel and a fresh retry of running tickets change a state only when no process of the ticket is left."""
    site.configure(concurrency=3)
    tickets = ("dropped", "parked", "again")
    site.plays(bash("touch in-tool; sleep 100"), later=(bash("rm in-tool; echo two > two.txt"), say("Done.")))
    for ticket in tickets:
        site.add(ticket, f"Do {ticket}.")
    daemon = site.start(look_at=[Name.TICKET_STOPPED])
    for ticket in tickets:
        site.waits_in_tool(ticket, "in-tool")
    for words in (("cancel", "dropped"), ("hold", "parked"), ("retry", "again", "--fresh")):
        assert "asked to stop" in site.tell(*words)
    site.wait(lambda: len(site.looks(Name.TICKET_STOPPED)) == 3, "all three to stop")
    assert {look.ticket: look.pids for look in site.looks(Name.TICKET_STOPPED)} == {ticket: [] for ticket in tickets}
    site.wait_for(Name.TICKET_FINISHED, "again")
    terminate(daemon, 1)
    assert daemon.ends() == 0
    shown = {ticket: site.show(ticket) for ticket in tickets}
    assert {name: (it.ticket.state, it.ticket.reason) for name, it in shown.items()} == {
        "dropped": ("cancelled", None),
        "parked": ("held", "operator"),
        "again": ("done", None),
    }
    assert [(it.ticket.attempts, it.runs[0].outcome) for it in shown.values()] == [(0, "stopped")] * 3
    again = shown["again"]
    assert again.kinds == [("first", "stopped"), ("fallback", "finished")]
    assert [(each.generation, each.closed_reason) for each in again.sessions] == [(1, "operator"), (2, None)]
    assert "Do again." in conversation_text(site.calls[-1].body)
    places = ("cancelled/dropped", "held/parked", "done/again")
    assert all((site.config.queue_directory / f"{place}.md").exists() for place in places)


def test_steering_while_no_daemon_runs(site: Site) -> None:
    """Without a daemon commands act on the store at once, but for a ticket that was running, which stops at a start."""
    site.plays(bash("touch in-tool; sleep 100"), later=(say("Never."),))
    site.add("ran")
    daemon = site.start()
    site.waits_in_tool("ran", "in-tool")
    assert re.fullmatch(r"in Bash for \d+s: touch in-tool; sleep 100", site.show("ran").why)
    daemon.kill()
    left = site.processes()
    assert site.show("ran").why == "interrupted: it goes on at the next start"
    assert "at the next start" in site.tell("cancel", "ran")
    site.tell("pause")
    site.add("idle")
    assert site.works_once() == 1
    assert site.show("idle").why == "the queue is paused"
    site.tell("cancel", "idle")
    assert (site.config.queue_directory / "cancelled/idle.md").exists()
    site.tell("resume")
    assert site.works_once(look_at=[Name.TICKET_STOPPED]) == 0
    wait_until_gone(left, within_s=0)
    assert [look.pids for look in site.looks(Name.TICKET_STOPPED)] == [[]]
    assert {line.ticket.id: line.ticket.state for line in site.status().lines} == {
        "ran": "cancelled",
        "idle": "cancelled",
    }
    assert len(site.calls) == 1
    assert site.works_once() == 3
