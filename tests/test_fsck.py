"""Each way in which two places can differ, made by hand, is named; and what can be mended is."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import pytest

from runner.budget import Cost, CostKind
from runner.fsck import Finding, examine, look
from runner.outcome import Outcome
from runner.processes import Cookie, Kind
from runner.store import Rx, Store, effects, queue, runs, tickets
from runner.store.effects import Wish
from tests.homes import Place, git, opened, repaired
from tickets.ticket import Finished, Held, Reason

P = ParamSpec("P")
T = TypeVar("T")
USER = {"type": "user", "timestamp": "2026-01-01T00:00:01Z"}
PROGRAM = Path(sys.executable).with_name("ticket-runner")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A home in which nothing differs: one ticket is claimed and one is held, and both have a session."""
    for place in opened(tmp_path):
        place.claim("t")
        place.end(place.converse("t", USER, total(0.01)), 10_000)
        place.claim("u")
        place.end(place.converse("u", USER, total(0.02)), 20_000)
        place.store.transact(tickets.apply, "u", Held(1, Reason.OPERATOR))
        yield place


def total(usd: float) -> dict[str, object]:
    """Return the line of a transcript that says what its session cost."""
    return {"type": "cost-state", "totalCostUSD": usd}


def answer(identity: str) -> dict[str, object]:
    """Return the line of a response that costs $0.0105."""
    usage = {"input_tokens": 1000, "output_tokens": 500}
    return {"type": "assistant", "message": {"id": identity, "model": "claude-sonnet-4-5", "usage": usage}}


def only(found: list[Finding], ticket: str = "t") -> str:
    """Return what the only finding, which is of this ticket and says what to do, says."""
    assert [(it.ticket, bool(it.todo)) for it in found] == [(ticket, True)], found
    return found[0].what


@contextmanager
def process(here: Place, ticket: str, token: int, kind: Kind = "agent") -> Iterator["subprocess.Popen[bytes]"]:
    """Give a process with a cookie, ended at the end."""
    cookie = Cookie(str(here.home.path), ticket, token, kind)
    with subprocess.Popen(["/bin/sleep", "100"], env=os.environ | cookie.environment()) as started:
        try:
            yield started
        finally:
            started.kill()


def run_program(here: Place, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command line on a home."""
    file = here.root / "ticket-runner.toml"
    file.write_text('repository = "repo"\nstate_directory = "state"\n')
    command = [str(PROGRAM), *arguments, "--config", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=40)


def test_nothing_differs_where_nothing_was_damaged(here: Place) -> None:
    """A claimed, a held and a done ticket with sessions, runs and worktrees agree with everything."""
    assert here.differs() == []
    here.store.transact(tickets.apply, "t", Finished(1))
    shutil.rmtree(here.home.worktrees / "t")
    here.transcript("t").unlink()
    assert here.differs() == [], "what a done ticket had may be gone"
    assert here.differs(daemon=True) == []


def test_a_gap_in_the_log_is_named(here: Place) -> None:
    """An event that is gone, or one too many, and events of no ticket, each break the numbers."""
    here.damage("DELETE FROM event WHERE ticket = 't' AND name = 'session.confirmed'")
    assert "the log has a gap" in only(here.differs())
    here.damage("UPDATE event SET ticket = 'x' WHERE ticket = 't'")
    assert [(it.ticket, it.what.partition(":")[0]) for it in here.differs()] == [
        ("t", "the log has a gap"),
        ("t", "its row is not what its log says"),
        ("x", "the log has events of a ticket that is in no table"),
    ]


def test_a_queue_that_is_not_what_its_log_says_is_named(here: Place) -> None:
    """A pause in the row alone, or the log alone, differs; one that is in both, or over in both, does not."""
    here.store.transact(queue.pause, reason="operator", note="", by="me")
    assert here.differs() == []
    here.damage("UPDATE queue SET paused_at_us = NULL")
    assert "differ about its pause" in only(here.differs(), "")
    here.damage("UPDATE queue SET paused_at_us = 1")
    here.store.transact(queue.resume, by="me")
    assert here.differs() == []
    here.damage("UPDATE queue SET seq = seq + 1")
    assert "the log has a gap" in only(here.differs(), "")


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE ticket SET state = 'done', note = 'x' WHERE id = 't'", "state done (log: running), note x (log: )"),
        ("UPDATE event SET payload = '{\"token\":7}' WHERE ticket = 't' AND name = 'ticket.claimed'", "no life"),
        ("UPDATE event SET payload = '{' WHERE ticket = 't' AND name = 'ticket.claimed'", "cannot be read"),
    ],
)
def test_a_row_that_is_not_what_its_log_says_is_named(here: Place, statement: str, said: str) -> None:
    """A changed row, an impossible fact and an unreadable one are told with what differs."""
    here.damage(statement)
    assert said in only(here.differs())


def test_a_session_without_its_transcript_is_named(here: Place) -> None:
    """A confirmed session whose transcript is gone or cannot be resumed differs, and a closed one does not."""
    whole = here.transcript("u").read_bytes()
    here.transcript("u").write_text("")
    assert "is unusable" in only(here.differs(), "u")
    here.transcript("u").unlink()
    assert "is missing" in only(here.differs(), "u")
    here.damage("UPDATE session SET closed_reason = 'operator' WHERE ticket = 'u'")
    assert here.differs() == []
    here.transcript("u").write_bytes(whole)
    assert here.differs() == []


def test_a_transcript_without_its_session_is_named(here: Place) -> None:
    """A stray transcript differs; one that the next claim finds by its id is told and is as it may be."""
    here.transcript("t").with_name("stray.jsonl").write_text("{}")
    assert "a transcript of no session is at" in only(here.differs())
    here.transcript("t").with_name("stray.jsonl").unlink()
    here.damage("DELETE FROM run WHERE ticket = 't'")
    here.damage("DELETE FROM session WHERE ticket = 't'")
    assert here.differs() == []
    told = [it.what for it in look(here.config, here.store, daemon=False) if it.ticket == "t"]
    assert any("is on disk and in no table" in what for what in told)


def test_a_worktree_that_is_not_the_ticket_s_is_named(here: Place) -> None:
    """A missing worktree, one that is gone, something else in its place, a lost branch and one of no ticket differ."""
    tree, branch = here.home.worktrees / "t", here.home.clone / "refs/heads/ticket/t"
    sha = branch.read_text()
    branch.unlink()
    assert "its branch ticket/t is not in the clone" in only(here.differs())
    branch.write_text(sha)
    link = (tree / ".git").read_text()
    (tree / ".git").write_text("gitdir: /elsewhere\n")
    assert "something else is at" in only(here.differs())
    (tree / ".git").write_text(link)
    tree.rename(here.root / "kept")
    assert "is gone and still registered" in only(here.differs())
    tree.symlink_to(here.root)
    assert "something else is at" in only(here.differs())
    tree.unlink()
    git(here.home.clone, "worktree", "prune")
    assert "it has no worktree at" in only(here.differs())
    git(here.home.clone, "worktree", "add", "--quiet", str(tree), "ticket/t")
    git(here.home.clone, "worktree", "add", "--quiet", "--detach", str(here.home.worktrees / "x"), "ticket/t")
    assert "a worktree of no ticket is at" in only(here.differs(), "x")
    (here.home.worktrees / "y").mkdir()
    assert [it.ticket for it in here.differs()] == ["x", "y"]


def test_processes_that_no_claim_has_are_named(here: Place) -> None:
    """What lives of a running claim is as it should be beside its daemon, and of any other claim it is not."""
    with process(here, "t", 1), process(here, "u", 1), process(here, "t", 77, "effect"):
        assert "processes of no running claim live: sleep" in only(here.differs(daemon=True), "u")
        assert [(it.ticket, it.what.partition(":")[0]) for it in here.differs()] == [
            ("t", "processes of no running claim live"),
            ("u", "processes of no running claim live"),
        ]
        notes = [it.what for it in look(here.config, here.store, daemon=False) if not it.differs]
        assert any("the command of an effect outlived its daemon: sleep" in what for what in notes)
    assert here.differs() == []


def test_an_open_run_without_a_daemon_is_named(here: Place) -> None:
    """A run that did not end differs when no daemon works, and its claim is told."""
    here.converse("t", carried=10_000)
    assert here.differs(daemon=True) == []
    assert "run t/2 is open, no daemon works here and it has no process" in only(here.differs())
    notes = [(it.ticket, it.what) for it in look(here.config, here.store, daemon=False) if not it.differs]
    assert ("t", "its claim's daemon is dead") in notes


def test_a_cost_that_the_transcript_denies_is_named(here: Place) -> None:
    """Measured totals follow on each other, and what was killed is worth its usage; anything else differs."""
    here.end(here.converse("t", USER, answer("a"), carried=10_000), 10_500, CostKind.ESTIMATED)
    here.end(here.converse("t", USER, answer("b"), total(0.0305), carried=10_000), 20_500)
    assert here.differs() == []
    here.damage("UPDATE run SET cost_microusd = 9 WHERE id = 't/2'")
    assert only(here.differs()).startswith(
        "run t/2: it is in the ledger with $0.000009 and by its transcript cost $0.01"
    )
    here.damage("UPDATE run SET cost_microusd = 10500 WHERE id = 't/2'")
    here.damage("UPDATE run SET cost_microusd = 20000 WHERE id = 't/3'")
    assert only(here.differs()).startswith("run t/3: it is in the ledger with $0.020000")
    here.damage("UPDATE run SET cost_microusd = 20500, carried_microusd = 0 WHERE id = 't/3'")
    assert {it.what.partition(":")[0] for it in here.differs()} == {"run t/3"}
    assert any("$0.000000 was carried into it and the transcript says $0.010000" in it.what for it in here.differs())
    lines = here.transcript("t").read_text().splitlines(keepends=True)
    here.transcript("t").write_text("".join(lines[:2]))
    assert any("is shorter than when run t/3 began" in it.what for it in here.differs())


def test_what_a_dead_daemon_was_performing_is_told(here: Place) -> None:
    """Effects that a dead daemon claimed, or that nobody can find out about, are told and differ from nothing."""
    for operation in ("deploy", "drop"):
        wish = Wish(f"folder/t/1/{operation}", "t", 1, operation, operation, {})
        here.store.transact(effects.want, wish, limit=9)
        row = here.store.transact(effects.claim, wish.key, epoch=here.epoch)
        assert row is not None
        if operation == "drop":
            here.store.transact(effects.leave_unknown, row, "nobody knows")

    def told(*, daemon: bool) -> list[str]:
        found = look(here.config, here.store, daemon=daemon)
        return [it.what for it in found if not it.differs and "folder/" in it.what]

    assert told(daemon=False) == [
        "whether folder/t/1/drop happened is not known",
        "a dead daemon was performing folder/t/1/deploy",
    ]
    assert told(daemon=True) == ["whether folder/t/1/drop happened is not known"]
    assert here.differs() == []


class Passing(Store):
    """A store in which what differs is gone after the first look."""

    def read(self, fn: Callable[Concatenate[Rx, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Read, then mend."""
        try:
            return super().read(fn, *args, **kwargs)
        finally:
            self.transact(lambda tx: tx.connection.exec_driver_sql("UPDATE ticket SET note = ''"))


def test_a_passing_moment_beside_a_daemon_is_not_told(here: Place) -> None:
    """While a daemon holds the home, only what two looks in a row find is told."""
    for lock, store, differs in (
        (nullcontext(), Passing.open(here.config.database_url), 1),
        (here.home.lock(), Passing.open(here.config.database_url), 0),
        (here.home.lock(), here.store, 1),
    ):
        here.damage("UPDATE ticket SET note = 'changed' WHERE id = 't'")
        with lock:
            found = [it for it in examine(here.config, store) if it.differs]
        assert len(found) == differs
        if store is not here.store:
            store.close()


def test_repair_mends_what_needs_no_decision(here: Place) -> None:
    """It ends processes and runs, forgets a worktree that is gone, keeps every commit, and leaves effects alone."""
    tree = here.home.worktrees / "u"
    (tree / "work").write_text("work")
    git(tree, "checkout", "--quiet", "--detach")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "Work")
    sha = git(tree, "rev-parse", "HEAD")
    shutil.rmtree(tree)
    run = here.converse("t", USER, answer("a"), carried=10_000)
    with process(here, "t", 1) as left, process(here, "t", 77, "effect") as effect:
        assert len(here.differs()) == 3
        done = repaired(here.config)
        assert left.wait(10) == -signal.SIGKILL
        assert effect.poll() is None
    assert [line.partition(" (")[0] for line in done] == [
        "t: ended 1 processes: sleep",
        "t: left sleep",
        "t: ended run t/2, which cost $0.0105+",
        f"u: forgot the worktree {tree}, which is gone; its branch stays",
    ]
    assert git(here.home.clone, "rev-parse", "ticket/u") == sha
    ended = here.store.read(runs.get_run, run)
    assert (ended.outcome, ended.cost) == (Outcome.ORPHANED, Cost(10_500, CostKind.ESTIMATED, cut=True))
    assert (ended.turns, ended.input_tokens, ended.output_tokens) == (1, 1000, 500)
    assert [it.what for it in here.differs()] == [f"it has no worktree at {tree}"]
    assert repaired(here.config) == []


def test_the_command_says_it_by_its_exit_code(here: Place) -> None:
    """0 when nothing differs, 1 when something does, 75 for a repair beside a daemon, which changes nothing."""
    done = run_program(here, "fsck")
    assert (done.returncode, done.stderr) == (0, "")
    assert "note    t: its claim's daemon is dead" in done.stdout
    here.converse("t", carried=10_000)
    done = run_program(here, "fsck", "--json")
    assert done.returncode == 1
    assert [it["ticket"] for it in json.loads(done.stdout) if it["differs"]] == ["t"]
    with here.home.lock():
        done = run_program(here, "fsck", "--repair")
        assert done.returncode == 75
        assert f"held by process {os.getpid()}" in done.stderr
    assert here.store.read(runs.unended) != []
    done = run_program(here, "fsck", "--repair")
    assert (done.returncode, done.stdout.startswith("repair  t: ended run t/2")) == (0, True)


def test_looking_needs_no_sdk() -> None:
    """Neither fsck nor repair imports the SDK, which takes a second."""
    program = "import sys, runner.fsck, runner.repair; print('claude_agent_sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_temporary_files_of_no_ticket_are_noted(here: Place) -> None:
    """A directory that no ticket has for its temporary files is named; that of a known one is not, nor another's."""
    here.home.make_tmp("t")
    (here.home.tmp / "of-an-effect").mkdir()
    lost = here.home.make_tmp("lost")
    notes = [found for found in look(here.config, here.store, daemon=False) if not found.differs]
    assert [found.what for found in notes if "temporary" in found.what] == [
        f"temporary files of no ticket are at {lost}"
    ]
