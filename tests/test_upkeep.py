"""What tickets that are over leave behind goes when it is due, and no work with it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from runner.config import Config
from runner.disk import usage
from runner.events import Name
from runner.processes import Cookie
from runner.session import Kind, Transcript, choose, session_id
from runner.store import Store, Tx, claims, log, sessions, tickets
from runner.upkeep import Upkeep, _There
from runner.worktree import Repository
from tests.daemons import Site, bash, say
from tests.homes import Place, configured, git, opened
from tickets.ticket import Cancelled, Claimed, Fact, Finished, Held, Reason, Retried

USER = {"type": "user", "timestamp": "2026-01-01T00:00:01Z"}
DAY_US = 24 * 3600 * 1_000_000


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A home with a done, a cancelled and a held ticket, each with a worktree, temporary files and a conversation."""
    for place in opened(tmp_path):
        for ticket, fact in (("done", Finished(1)), ("dropped", None), ("held", Held(1, Reason.OPERATOR))):
            place.claim(ticket)
            run = place.converse(ticket, USER)
            place.store.transact(sessions.say, session_id("folder", ticket, 1), run, "one", "{}")
            place.end(run, 1)
            (place.home.make_tmp(ticket) / "x").touch()
            place.store.transact(tickets.apply, ticket, fact or Held(1, Reason.OPERATOR))
        place.store.transact(tickets.apply, "dropped", Cancelled())
        yield place


def tidy(here: Place, *, days: float, config: Config | None = None, repository: Repository | None = None) -> list[str]:
    """Let upkeep look after so many days, and return what it says."""
    now_us = here.store.read(lambda rx: rx.now_us)
    url = here.config.database_url
    with closing(Store.open(url, clock=lambda: now_us + round(days * DAY_US))) as store:
        return Upkeep(config or here.config, here.home, store, repository or here.repository).run()


def names(here: Place, ticket: str) -> list[Name]:
    """Return what happened to a ticket after it was over."""
    return here.store.read(log.names_since, ticket, Name.SESSION_CONFIRMED)[1:]


def left(here: Place, ticket: str) -> set[str]:
    """Return what is there of a ticket."""
    there = {
        "tmp": here.home.tmp_of(ticket).exists(),
        "worktree": (here.home.worktrees / ticket).exists(),
        "transcript": here.transcript(ticket).exists(),
        "messages": here.store.read(sessions.was_said, ticket),
    }
    return {what for what, is_there in there.items() if is_there}


ALL = {"tmp", "worktree", "transcript", "messages"}


def test_each_goes_in_its_time_and_open_tickets_keep_all(here: Place) -> None:
    """Temporary files go at once, a worktree after a week, what was said after a month; of a held ticket nothing."""
    assert tidy(here, days=6.9) == []
    assert left(here, "done") == left(here, "dropped") == ALL - {"tmp"}
    assert tidy(here, days=7) == ["done: worktree removed", "dropped: worktree removed"]
    assert left(here, "done") == {"transcript", "messages"}
    tidy(here, days=30)
    assert left(here, "done") == left(here, "dropped") == set()
    assert left(here, "held") == ALL
    assert tidy(here, days=1000) == []
    assert [*here.home.trash.iterdir()] == []
    gone = [Name.WORKTREE_REMOVED, Name.SESSION_CLOSED, Name.TRANSCRIPTS_REMOVED, Name.MESSAGES_REMOVED]
    assert names(here, "done")[-4:] == gone
    assert git(here.home.clone, "rev-parse", "ticket/done") == git(here.root / "repo", "rev-parse", "main")
    assert here.differs() == []


def test_forever_is_forever(here: Place) -> None:
    """What is to be kept forever is there after a hundred years."""
    keep = {"worktrees_days": "forever", "transcripts_days": "forever", "messages_days": "forever"}
    tidy(here, days=36_500, config=configured(here.root, keep=keep))
    assert left(here, "done") == ALL - {"tmp"}


@pytest.mark.parametrize("what", ["uncommitted", "unpushed", "broken"])
def test_work_is_put_aside_and_reported(here: Place, what: str) -> None:
    """A worktree with work that the repository has not, or that git cannot read, is moved with a note, and logged."""
    tree = here.home.worktrees / "dropped"
    (tree / "precious.txt").write_text("precious\n")
    if what == "unpushed":
        here.repository.commit_all("dropped", "Work")
    if what == "broken":
        (tree / ".git").write_text("gitdir: /elsewhere\n")
    said = tidy(here, days=7)
    aside = here.home.aside / "dropped-1"
    assert said[1].startswith("dropped: worktree put aside, since it ")
    assert said[1].endswith(str(aside))
    assert (aside / "precious.txt").read_text() == "precious\n"
    kept = here.store.read(log.latest, "dropped", limit=1)[0].event
    assert (kept.name, kept.payload["where"]) == (Name.WORKTREE_KEPT, str(aside))
    assert str(kept.payload["why"]) in aside.with_name("dropped-1.txt").read_text()
    assert not tree.exists()
    assert tidy(here, days=8) == []
    assert here.differs() == []


class Watched(Repository):
    """Notes whether another thread could have our copies while a worktree is put aside, and counts the fetches."""

    free: bool | None = None
    fetched = 0

    def _fetch(self) -> None:
        self.fetched += 1
        super()._fetch()

    def put_aside(self, ticket_id: str, why: str) -> Path:
        """Look first."""
        with ThreadPoolExecutor(1) as other:
            self.free = other.submit(self._tried).result()
        return super().put_aside(ticket_id, why)

    def _tried(self) -> bool:
        free = self._lock.acquire(blocking=False)
        if free:
            self._lock.release()
        return free


def test_no_transaction_waits_for_a_fetch(here: Place) -> None:
    """Our copies are waited for before the transaction in which a worktree is put aside: who writes waits for none."""
    (here.home.worktrees / "dropped/precious.txt").touch()
    watched = Watched(here.home.path, str(here.root / "repo"), author_name="a", author_email="a@b")
    tidy(here, days=7, repository=watched)
    assert watched.free is False


def test_a_name_makes_no_line(here: Place) -> None:
    """A file that is named like two lines of ours is told in one, when it is put aside and by `disk`."""
    (here.home.worktrees / "dropped" / "x\ndone: worktree removed").touch()
    said = tidy(here, days=7)
    (aside,) = usage(here.config, 0, []).aside
    assert [line.partition(" ")[0] for line in said] == ["done:", "dropped:"]
    assert [len(line.splitlines()) for line in (*said, aside)] == [1, 1, 1]


def test_a_cancelled_ticket_is_taken_up_again(here: Place) -> None:
    """After all of it went, a retry finds its branch in a new worktree, and goes on in a new session."""
    (here.home.worktrees / "dropped/work.txt").write_text("work\n")
    sha = here.repository.commit_all("dropped", "Work")
    here.repository.push("dropped")
    tidy(here, days=31)
    assert left(here, "dropped") == set()
    here.store.transact(tickets.apply, "dropped", Retried())
    row = here.store.transact(claims.take_next, epoch=here.epoch, home=here.home.name, lease_s=60)
    assert row is not None
    tree = here.repository.ensure("dropped", None, base_sha=row.base_sha)
    assert (tree.made, git(tree.path, "rev-parse", "HEAD")) == (True, sha)
    last = here.store.read(sessions.last_session, "dropped")
    plan = choose(last, name=lambda n: session_id("folder", "dropped", n), transcript=lambda _: Transcript.MISSING)
    assert (plan.kind, plan.generation, plan.resume) == (Kind.FALLBACK, 2, False)


def test_an_origin_that_is_away_removes_nothing(here: Place) -> None:
    """Where only the repository could say whether a commit is in it and it does not answer, the worktree stays."""
    (here.home.worktrees / "dropped/work.txt").write_text("work\n")
    here.repository.commit_all("dropped", "Work")
    here.repository.push("dropped")
    (here.root / "repo").rename(here.root / "away")
    said = tidy(here, days=7)
    assert said[0] == "done: worktree removed"
    assert said[1].startswith("dropped: worktree left until the repository answers")
    (here.root / "away").rename(here.root / "repo")
    assert tidy(here, days=7) == ["dropped: worktree removed"]


def test_what_was_delivered_goes_though_its_branch_is_gone(here: Place) -> None:
    """A branch that was squashed into the base and removed was delivered: its worktree holds nothing."""
    (here.home.worktrees / "done/work.txt").write_text("work\n")
    here.repository.commit_all("done", "Work")
    pushed = here.repository.push("done")
    here.store.transact(Tx.log, "done", Name.BRANCH_PUSHED, sha=pushed.sha, branch=pushed.branch)
    git(here.root / "repo", "branch", "-D", pushed.branch)
    assert tidy(here, days=7)[0] == "done: worktree removed"


def test_an_origin_that_is_away_is_asked_once(here: Place) -> None:
    """Of many worktrees that only the repository could judge, the first one asks: claims wait for git meanwhile."""
    for ticket in ("done", "dropped"):
        (here.home.worktrees / ticket / "work.txt").write_text("work\n")
        here.repository.commit_all(ticket, "Work")
    watched = Watched(here.home.path, str(here.root / "repo"), author_name="a", author_email="a@b")
    (here.root / "repo").rename(here.root / "away")
    assert [line.partition(" left until")[0] for line in tidy(here, days=7, repository=watched)] == [
        "done: worktree",
        "dropped: worktree",
    ]
    assert watched.fetched == 1


def again(here: Place) -> None:
    """Retry and cancel the ticket once more."""
    for fact in (Retried(), Cancelled()):
        here.store.transact(tickets.apply, "dropped", fact)


def claimed(here: Place) -> None:
    """Retry and claim the ticket."""
    facts: list[Fact] = [Retried(), Claimed(2)]
    for fact in facts:
        here.store.transact(tickets.apply, "dropped", fact)


@pytest.mark.parametrize("works", [False, True], ids=["clean", "with work"])
@pytest.mark.parametrize("meanwhile", [again, claimed])
def test_a_ticket_that_was_touched_meanwhile_keeps_all(
    here: Place, meanwhile: Callable[[Place], None], *, works: bool
) -> None:
    """What began between the look at a ticket and the removal wins: nothing of it is removed or put aside."""
    if works:
        (here.home.worktrees / "dropped/work.txt").touch()
    now_us = here.store.read(lambda rx: rx.now_us) + 31 * DAY_US
    with closing(Store.open(here.config.database_url, clock=lambda: now_us)) as store:
        upkeep = Upkeep(here.config, here.home, store, here.repository)
        row, there = here.store.read(tickets.get, "dropped"), _There.of(here.home, here.repository)
        meanwhile(here)
        assert [*upkeep._tidy(row, there)] == []
    assert left(here, "dropped") == ALL


def test_a_process_that_is_left_keeps_all(here: Place) -> None:
    """While a process of the ticket lives nothing of it goes."""
    cookie = Cookie(str(here.home.path), "dropped", 1)
    with subprocess.Popen(["/bin/sleep", "100"], env=os.environ | cookie.environment()) as started:
        tidy(here, days=31)
        assert left(here, "dropped") == ALL
        started.kill()
    tidy(here, days=31)
    assert left(here, "dropped") == set()


def test_a_kill_in_the_middle_is_made_good(here: Place) -> None:
    """A worktree that was moved to the trash and not forgotten, and a full trash, are gone after the next look."""
    here.home.trash.mkdir()
    here.repository.leave("done", here.home.trash)
    locked = here.home.trash / "worktree-done/locked"
    locked.mkdir()
    (locked / "x").touch()
    locked.chmod(0o500)
    assert tidy(here, days=0) == []
    assert [*here.home.trash.iterdir()] == []
    assert here.repository.survey().registered == tuple(here.home.worktrees / name for name in ("dropped", "held"))


def test_a_ticket_of_another_home_is_left_alone(here: Place) -> None:
    """Of a database that several daemons share, only this home's tickets are looked at."""

    def elsewhere(tx: Tx) -> None:
        tx.connection.exec_driver_sql("UPDATE ticket SET home = 'other' WHERE id = 'done'")

    here.store.transact(elsewhere)
    assert tidy(here, days=31) == [
        "dropped: worktree removed",
        "dropped: transcripts removed",
        "dropped: 1 messages removed",
    ]
    assert left(here, "done") == ALL


def test_what_an_agent_left_behind_does_not_stop_it(here: Place) -> None:
    """Symlinks, a FIFO and directories that may not be written go, and what a symlink names stays."""
    precious = here.root / "precious"
    precious.mkdir()
    (precious / "x").touch()
    tmp = here.home.tmp_of("done")
    (tmp / "link").symlink_to(precious)
    os.mkfifo(tmp / "fifo")
    (tmp / "cache").mkdir()
    (tmp / "cache/x").touch()
    (tmp / "cache").chmod(0o500)
    here.home.trash.symlink_to(precious)
    tidy(here, days=0)
    assert left(here, "done") == ALL - {"tmp"}
    assert (precious / "x").exists()


@pytest.mark.timeout(120)  # two daemons with the real CLI
def test_temporary_files_are_the_tickets_own(tmp_path: Path) -> None:
    """Set-up, agent and checks share a directory that outlives a daemon that is killed, and is gone with the ticket."""
    with Site.at(tmp_path) as site:
        site.configure(setup=["touch $TMPDIR/of-setup"], verify=["test -e $TMPDIR/of-agent"])
        turn = bash("touch $TMPDIR/of-agent; pwd -P > $CLAUDE_CODE_TMPDIR/where; touch mark; sleep 100")
        site.plays(turn, bash("rm mark; ls $TMPDIR > found.txt"), say("Done."))
        site.add("t")
        daemon = site.start()
        site.waits_in_tool("t", "mark")
        daemon.kill()
        own = site.home.tmp_of("t")
        assert {"of-setup", "of-agent", "where", f"claude-{os.getuid()}"} <= {path.name for path in own.iterdir()}
        assert site.works_once() == 0
        assert {"of-setup", "of-agent", "where"} <= set(site.git("show", "ticket/t:found.txt").split())
        assert not own.exists()
