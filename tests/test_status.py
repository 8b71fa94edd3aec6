"""What an operator sees: the table, one ticket, the log and the patch, as text and JSON, and nothing harmful."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import Connection, event

from runner import daemon
from runner.budget import Cost, CostKind
from runner.config import Config
from runner.config.values import Surroundings
from runner.events import Name
from runner.outcome import Outcome
from runner.render import details, overview
from runner.session import Kind
from runner.status import Around, Overview, look, look_at
from runner.store import Rx, claims, queue, runs, sessions, tickets
from tests.shell import PROGRAM, Shell, read_back, text_stream
from tests.stores import SECOND, Place
from tickets.source import Refused
from tickets.ticket import OPEN, Cancelled, Finished, Held, Parked, Reason, Spec, State

EVIL = "\x1b[31m\x1b]0;owned\x07\x9b2J\r\b\u202e[red]loud[/red] [link=file:///etc]x[/] :skull: {0} %s"
OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
SLOW_TO_IMPORT = {"alembic", "anthropic", "claude_agent_sdk", "git", "mcp", "starlette", "uvicorn", "watchfiles"}


def around_of(**settings: object) -> Around:
    """Return what is around a database without a daemon."""
    config = Config.of({"repository": "/nowhere", **settings}, Surroundings(Path("/"), {}))
    return Around(config, daemon=None, shortage=None, files=("a", "new"))


AROUND = around_of()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a command line over an empty queue."""
    return Shell(tmp_path)


@pytest.fixture
def place(shell: Shell) -> Iterator[Place]:
    """Return the queue's database, open as a daemon has it."""
    place = shell.database()
    yield place
    place.store.close()


def finish(place: Place, ticket: str) -> None:
    """Let a ticket be claimed, run once for 1.5 cents and done."""
    row = place.claim()
    assert row is not None
    assert row.ticket.id == ticket
    run = place.run(ticket)
    place.store.transact(runs.end_run, run, outcome=Outcome.FINISHED, cost=Cost(15_000, CostKind.MEASURED))
    place.store.transact(tickets.apply, ticket, Finished(row.ticket.token))


def test_an_empty_table_says_what_there_is_besides(shell: Shell, place: Place) -> None:
    """Where no ticket is shown it is said how many there are, in which state, and how they are shown."""
    assert shell("status").out.startswith("no tickets\n")
    place.take("a", "b", "c")
    finish(place, "a")
    finish(place, "b")
    place.store.transact(tickets.apply, "c", Cancelled())
    all_shown = "`ticket-runner status --done` shows all\n"
    assert shell("status").out.startswith(f"no tickets that are open; 2 done, 1 cancelled: {all_shown}")
    assert json.loads(shell("status", "--json").out)["besides"] == {"done": 2, "cancelled": 1}
    assert json.loads(shell("status", "--done", "--json").out)["besides"] == {}
    place.take("d")
    assert shell("status", "--since", "1m").out.startswith(
        f"no tickets of that time; 1 ready, 2 done, 1 cancelled: {all_shown}"
    )


def shown(shell: Shell, *words: str) -> list[str]:
    """Return the ids that `status` shows."""
    ended = shell("status", "--json", *words)
    assert (ended.code, ended.err) == (0, "")
    return [line["ticket"]["id"] for line in json.loads(ended.out)["lines"]]


def test_the_table_has_a_row_per_open_ticket(shell: Shell, place: Place) -> None:
    """Open tickets have a row each with state and reason; those that are over come with `--done` only."""
    place.take("a", "b", "c", "d")
    finish(place, "a")
    place.store.transact(tickets.apply, "b", Cancelled())
    place.claim()
    place.store.transact(tickets.apply, "c", Held(1, Reason.CHECKS, "`make test`: exit code 2\nlong output"))
    assert shown(shell) == ["c", "d"]
    assert shown(shell, "--done") == ["a", "b", "c", "d"]
    rows = {line.split()[0]: line for line in shell("status", "--done").out.splitlines() if line}
    assert "checks: `make test`: exit code 2" in rows["c"]
    assert "long output" not in rows["c"]
    assert re.search(r"^a +done +a-sessio +1 +1 +0 +\$0\.0150 .* nothing had to change$", rows["a"])
    assert rows["b"].split()[:2] == ["b", "cancelled"]


def test_the_money_of_today_is_marked_as_all_money_is(place: Place) -> None:
    """What is estimated of today's total, or misses a response that was cut off, is marked; yesterday's is not."""
    place.take("a")
    place.claim()
    place.store.transact(
        runs.end_run, place.run("a"), outcome=Outcome.STOPPED, cost=Cost(15_000, CostKind.ESTIMATED, cut=True)
    )
    assert any("today ~$0.0150+ spent," in line for line in drawn(place.store.read(look, AROUND, states=OPEN), False))
    place.clock.pass_s(24 * 3600)
    assert any("today $0.0000 spent," in line for line in drawn(place.store.read(look, AROUND, states=OPEN), False))


def test_a_long_reason_is_folded_on_a_terminal_only(place: Place) -> None:
    """On a terminal a reason goes on below itself, within the width; in a pipe it ends the one line of its ticket."""
    reason = " ".join(f"word{number}" for number in range(40))
    place.take("a", "b")
    place.store.transact(tickets.apply, "a", Parked(Reason.WORKTREE, reason))
    view = place.store.read(look, AROUND, states=[*State])
    on_terminal, in_pipe = (drawn(view, is_terminal) for is_terminal in (True, False))
    assert max(map(len, on_terminal)) <= 120
    assert [line.split()[0] for line in on_terminal[:2]] == ["ticket", "a"]
    column = on_terminal[0].index("why")
    assert " ".join(line[column:].partition("  ")[0].strip() for line in on_terminal[1:-3]).startswith(
        f"worktree: {reason}"
    )
    assert [line.split()[0] for line in in_pipe[:3]] == ["ticket", "a", "b"]
    assert in_pipe[1].endswith(f"  worktree: {reason}")
    assert max(len(in_pipe[0]), len(in_pipe[2])) < 120, "no other line is as long"


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_the_table_fits_a_terminal(place: Place, width: int) -> None:
    """Columns are left out from the least important on, until the reason has room; no id is ever cut or folded."""
    long = "a-ticket-with-an-id-as-long-as-an-id-may-be-which-is-64-letters-x"[:64]
    place.take("short", long)
    finish(place, "short")
    place.store.transact(tickets.apply, long, Parked(Reason.WORKTREE, "there is something else at its path " * 3))
    lines = drawn(place.store.read(look, AROUND, states=[*State]), is_terminal=True, width=width)
    assert max(map(len, lines[:-3])) <= width
    assert any(long in line.split() for line in lines)
    heads = lines[0].split()
    assert heads[:3] == ["ticket", "state", "why"]
    assert "cost" in heads
    assert ("session" in heads, "branch" in heads) == (width == 200, width == 200)


def test_older_rules_and_new_sessions_are_told_on_any_terminal(place: Place) -> None:
    """That a session's rules are older is told in what is never left out; a new one that was asked for is fresh."""
    place.take("a")
    place.claim()
    run = place.run("a")
    place.store.transact(runs.end_run, run, outcome=Outcome.STOPPED, cost=Cost(0, CostKind.MEASURED))
    place.store.transact(sessions.close_session, "a-session-1", "operator")
    place.run("a", kind=Kind.FALLBACK)
    place.store.transact(sessions.resume_session, "a-session-2", "others")
    view = place.store.read(look, AROUND, states=OPEN)
    for width in (80, 200):
        assert "; its rules are older" in "\n".join(drawn(view, is_terminal=True, width=width))
    assert "  2 (1 fresh)  " in "\n".join(drawn(view, is_terminal=False))
    stream = text_stream()
    details(place.store.read(look_at, "a", AROUND), Console(file=stream, width=120, highlight=False))
    said = read_back(stream)
    assert re.search(r"^  a/2 +fresh +a-sessio ", said, re.MULTILINE)
    assert "closed: operator" in said


def test_a_narrow_terminal_shows_less_of_runs(place: Place) -> None:
    """Below 120 columns `show` leaves columns of runs out instead of breaking their words."""
    place.take("a")
    finish(place, "a")
    view, lines = place.store.read(look_at, "a", AROUND), []
    for width in (80, 120):
        stream = text_stream()
        details(view, Console(file=stream, width=width, highlight=False))
        lines.append(next(line for line in read_back(stream).splitlines() if line.startswith("run ")))
    assert lines[0].split() == ["run", "kind", "started", "outcome", "turns", "cost"]
    assert {"session", "given", "carried", "cli"} < {*lines[1].split()}


@pytest.mark.parametrize(
    ("window", "shortage", "pause", "said"),
    [
        (None, "1 KiB of the disk are free", False, "no ticket starts: 1 KiB of the disk are free"),
        ("Thu 00:00-24:00", None, False, "no ticket starts until 2026-07-02T00:00:00Z: it is outside active_hours"),
        ("Mon-Sun 00:00-24:00", None, False, None),
        (None, "no room", True, "the queue is paused (by fix, 0s ago)"),
    ],
)
def test_a_queue_that_starts_nothing_says_why(
    place: Place, window: str | None, shortage: str | None, pause: bool, said: str | None
) -> None:
    """Below the table is what keeps all tickets from starting, also without a daemon: hours, machine or a pause."""
    place.clock.now_us = 1_782_907_200 * SECOND  # a Wednesday
    if pause:
        place.store.transact(queue.pause, reason="key", note="", by="fix")
    around = around_of(**({} if window is None else {"active_hours": [window]}))
    view = place.store.read(look, replace(around, shortage=shortage), states=OPEN)
    assert (said or "no daemon runs") in drawn(view, is_terminal=False)
    assert (view.closed is None) is (said is None)


def drawn(view: Overview, is_terminal: bool, width: int = 120) -> list[str]:
    """Return the lines of the table as they are drawn, without colours."""
    stream = text_stream()
    overview(view, Console(file=stream, force_terminal=is_terminal, color_system=None, width=width, highlight=False))
    return re.sub(r"\x1b\[[0-9;]*m", "", read_back(stream)).splitlines()


def test_the_end_of_the_table_is_about_all(shell: Shell, place: Place) -> None:
    """A pause, who made it, and what cannot become a ticket are told below the table."""
    refused = Refused("x.md:3", "unknown key `buget_usd`", "f")
    place.store.transact(queue.refuse, [refused])
    place.store.transact(queue.pause, reason="key", note="the key was refused", by="fix")
    told = shell("status").out
    assert "no tickets" in told
    assert re.search(
        r"^the queue is paused: the key was refused \(by fix, \d+d ago\)\n`ticket-runner resume`$", told, re.MULTILINE
    )
    assert "not taken: x.md:3: unknown key `buget_usd`" in told


@pytest.mark.parametrize(
    ("since", "ids"),
    [
        ("1970-01-01", ["old", "new"]),
        ("1970-01-01T00:16:41", ["new"]),
        ("1970-01-01T01:16:41+01:00", ["new"]),
        ("1970-01-01T00:16:42Z", []),
        ("30m", []),
        ("1000000h", ["old", "new"]),
    ],
)
def test_since_shows_what_changed(shell: Shell, place: Place, since: str, ids: list[str]) -> None:
    """`--since` takes a time, UTC unless it has a zone, or an age, and shows what changed then or later."""
    place.take("old", "new")
    assert shown(shell, "--since", since) == ids


def test_since_means_the_last_change(shell: Shell, place: Place) -> None:
    """A ticket that was taken in long ago and has just changed is shown."""
    place.take("old", "new")
    place.clock.now_us = time.time_ns() // 1000 - 60 * SECOND
    place.store.transact(tickets.apply, "old", Cancelled())
    assert shown(shell, "--done", "--since", "2m") == ["old"]


def test_json_keeps_its_keys(shell: Shell, place: Place) -> None:
    """What programs read of `status`, `show` and `events` stays there under its name; more may come."""
    place.take("a")
    finish(place, "a")
    view = json.loads(shell("status", "--done", "--json").out)
    assert view.keys() >= {"now_us", "lines", "pause", "refused", "today", "reserved_microusd"}
    (line,) = view["lines"]
    assert line.keys() >= {"ticket", "title", "home", "branch", "base_sha", "taken_at_us", "changed_at_us", "sums"}
    assert line.keys() >= {"session", "generation", "last_event", "last_event_at_us", "effects", "priority"}
    ticket = {"id", "state", "reason", "note", "round", "token", "attempts", "not_before_us", "stop"}
    assert line["ticket"].keys() >= ticket
    assert (
        line["sums"].items() >= {"runs": 1, "resumed": 0, "fallbacks": 0, "turns": 0, "cost_microusd": 15_000}.items()
    )
    details = json.loads(shell("show", "a", "--json").out)
    assert details.keys() >= {"now_us", "row", "why", "spent_microusd", "sessions", "runs", "events"}
    assert details["row"]["ticket"].keys() >= ticket
    assert details["row"]["spec"].keys() >= {"id", "text", "title", "budget_microusd", "base", "model", "verify"}
    (run,) = details["runs"]
    assert run.keys() >= {"id", "session", "kind", "outcome", "cost", "turns", "started_at_us", "ended_at_us"}
    assert run["cost"] == {"microusd": 15_000, "kind": "measured", "cut": False}
    entry = json.loads(shell("events", "a", "--json").out.splitlines()[0])
    assert entry.keys() >= {"id", "name", "ticket", "seq", "at_us", "run", "payload", "version"}
    assert entry["name"] == "ticket.taken"


def test_nothing_of_a_ticket_is_obeyed(shell: Shell, place: Place) -> None:
    """Control characters, markup and line breaks of texts, titles, notes and payloads are shown and not obeyed."""
    spec = Spec("fix", f"first {EVIL}\nsecond {EVIL}\n", title=f"title {EVIL}", base=f"base{EVIL}")
    place.store.transact(tickets.take_in, "folder", spec)
    place.claim()
    place.store.transact(tickets.apply, "fix", Held(1, Reason.CHECKS, f"note {EVIL}\n     9  forged"))
    place.store.transact(lambda tx: tx.log("fix", Name.TOOL_STARTED, {"tool": f"\ud800{EVIL}\n     9  forged"}))
    place.store.transact(queue.refuse, [Refused("x.md", f"refused {EVIL}", "f")])
    for words in (["status"], ["show", "fix"], ["events"]):
        for form in ([], ["--json"]):
            ended = shell(*words, *form)
            assert (ended.code, ended.err) == (0, "")
            assert not OBEYED.search(ended.out), ended.out
            assert "[red]loud[/red]" in ended.out
            assert ":skull:" in ended.out
            assert (
                not any(line.lstrip().startswith("9  forged") for line in ended.out.splitlines()) or words[0] == "show"
            )
    assert json.loads(shell("show", "fix", "--json").out)["row"]["spec"]["text"] == spec.text


def test_every_event_is_a_line_with_its_number(shell: Shell, place: Place) -> None:
    """`events` prints one line each, all of them however many, and goes on after the number that it is given."""
    place.take("a", "b")
    place.store.transact(lambda tx: [tx.log("a", Name.TOOL_STARTED, {"n": n, "tool": "x\ny"}) for n in range(1500)])
    lines = shell("events").out.splitlines()
    numbers = [int(line.split()[0]) for line in lines]
    assert len(lines) == 1503
    assert numbers == sorted(set(numbers))
    after = shell("events", "--since", str(numbers[-3])).out.splitlines()
    assert after == lines[-2:]
    assert shell("events", "--since", str(numbers[-1])).out == ""
    of_one = shell("events", "b", "--json").out.splitlines()
    assert [json.loads(line)["ticket"] for line in of_one] == ["b"]


def test_the_log_can_be_followed_with_the_daemon_down(shell: Shell, place: Place) -> None:
    """`--follow` prints what is there, then each event as it comes, and ends well when it is interrupted."""
    place.take("a", "b")
    command: list[str | Path] = [PROGRAM, "events", "a", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=shell.repository) as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["name"] == "ticket.taken"
        place.store.transact(tickets.apply, "b", Cancelled())
        place.store.transact(tickets.apply, "a", Cancelled())
        assert json.loads(follower.stdout.readline())["name"] == "ticket.cancelled"
        follower.send_signal(signal.SIGINT)
        assert follower.stdout.read() == ""
    assert follower.returncode == 0


def test_show_has_sessions_runs_and_the_text(shell: Shell, place: Place) -> None:
    """`show` has what was asked, what was spent, and each session and run."""
    place.store.transact(tickets.take_in, "folder", Spec("fix", "Do this.\n", title="Fix it"))
    finish(place, "fix")
    told = shell("show", "fix").out
    for part in ("fix  done", "Fix it", "$0.0150", "Do this.", "fix-session-1", "fix/1", "finished", "ticket.finished"):
        assert part in told


def test_a_ticket_without_a_worktree_has_no_patch(shell: Shell, place: Place) -> None:
    """`diff` of a ticket that never ran says so."""
    place.take("fix")
    ended = shell("diff", "fix")
    assert (ended.code, ended.err) == (
        1,
        "ticket-runner: ticket fix has no worktree yet: it gets one when it is first worked on\n",
    )


def test_diff_has_uncommitted_work_too(shell: Shell, place: Place) -> None:
    """`diff` is a patch from the base of all there is, new files too; on a terminal none of it is obeyed."""
    place.take("fix")
    place.claim()
    repository = daemon.repository_of(shell.config, None)
    repository.prepare()
    tree = repository.ensure("fix", None, base_sha=None)
    place.store.transact(claims.set_tree, "fix", 1, home=str(shell.state), branch=tree.branch, base_sha=tree.base_sha)
    assert shell("diff", "fix").out == ""
    (tree.path / "evil.txt").write_text(f"{EVIL}\n", newline="")
    ended = shell("diff", "fix")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("diff --git a/evil.txt b/evil.txt\nnew file mode 100644\n")
    assert ended.out.endswith(f"+{EVIL}\n")
    seen = on_a_terminal(shell, "diff", "fix")
    assert "[red]loud[/red]" in seen
    assert "+++ b/evil.txt" in seen
    assert not OBEYED.search(seen.replace("\r\n", "\n"))


def on_a_terminal(shell: Shell, *words: str) -> str:
    """Return what the installed program writes to a terminal."""
    ours, theirs = pty.openpty()
    seen = b""
    with subprocess.Popen([PROGRAM, *words], stdout=theirs, cwd=shell.repository):
        os.close(theirs)
        try:
            while part := os.read(ours, 65_536):
                seen += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return seen.decode()


def statements(place: Place) -> int:
    """Return how many statements the table of all tickets takes, and one ticket's page."""
    seen: list[str] = []

    def counted(rx: Rx) -> None:
        def note(connection: Connection, cursor: object, statement: str, *_: object) -> None:
            del connection, cursor
            seen.append(statement)

        event.listen(rx.connection, "before_cursor_execute", note)
        look(rx, AROUND, states=[*State])
        look_at(rx, "a", AROUND)
        event.remove(rx.connection, "before_cursor_execute", note)

    place.store.read(counted)
    return len(seen)


def test_a_thousand_tickets_take_no_more_statements(place: Place) -> None:
    """The table asks the database as often for a thousand tickets as for one."""
    place.take("a")
    for_one = statements(place)
    place.store.transact(lambda tx: [tickets.take_in(tx, "folder", Spec(f"t{n}", "text")) for n in range(999)])
    assert statements(place) == for_one


@pytest.mark.parametrize("words", [["status"], ["events"], ["show", "a"], ["explain", "a"], ["hold", "a"]])
def test_looking_imports_neither_the_agent_nor_git(shell: Shell, words: list[str]) -> None:
    """What takes long to import is not imported by a command that only reads or steers."""
    shell.know("a")
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", PROGRAM, *words],
        capture_output=True,
        text=True,
        check=True,
        cwd=shell.repository,
    )
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in ended.stderr.splitlines()}
    assert {"runner", "sqlalchemy"} <= imported
    assert not imported & SLOW_TO_IMPORT


def test_a_terminal_that_is_not_utf8_gets_its_table(shell: Shell) -> None:
    """What the terminal's encoding does not have is shown escaped, and the command goes on."""
    place = shell.database()
    place.store.transact(tickets.take_in, "folder", Spec("fix", "caf\u00e9\n", title="\u65e5\u672c"))
    place.store.close()
    ended = shell.process("show", "fix", environ={"PYTHONIOENCODING": "ascii"})
    assert (ended.code, ended.err) == (0, "")
    assert "caf\\xe9" in ended.out
