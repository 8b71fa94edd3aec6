"""A base that moves on before a ticket is delivered: real git, claims of finished agents, and one conflict for real."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from runner import claim
from runner.agent import Stop
from runner.catchup import Conflict
from runner.events import Name
from runner.store import Tx, claims, log, queue, tickets
from runner.worktree import CommitRefused, GitFailed, WorktreeRefused
from tests.daemons import Site, bash, say, wait_until_gone
from tests.homes import Place, git
from tests.worlds import ledger_of
from tickets.ticket import Cause, Fact, Finished, Held, PutBack, Reason

TICKET = "t"
MERGE = "refs/merging/t"


@dataclass
class Work:
    """A ticket whose agent has finished, with work that is not committed, in a home that merges its base."""

    place: Place
    tree: Path
    epoch: int = 0

    @property
    def repo(self) -> Path:
        """The repository that tickets are about."""
        return self.place.root / "repo"

    def base_moves(self, name: str = "theirs.txt", text: str = "theirs\n") -> str:
        """Commit to the base, and return the commit."""
        (self.repo / name).write_text(text)
        git(self.repo, "add", name)
        git(self.repo, "commit", "--quiet", "-m", f"Change {name}")
        return git(self.repo, "rev-parse", "HEAD")

    def commit(self) -> str:
        """Commit the agent's work as a claim does, and return the commit."""
        self.place.repository.commit_all(TICKET, "Work")
        return git(self.tree, "rev-parse", "HEAD")

    def merges(self) -> int:
        """Count the merge commits of the branch."""
        return int(git(self.tree, "rev-list", "--count", "--merges", "HEAD"))

    def outbox(self, *arguments: str) -> str:
        """Return what git says in the copy that no agent is given."""
        return git(self.place.repository.outbox_path, *arguments)

    def row(self) -> tickets.Row:
        """Return the ticket as stored."""
        return self.place.store.read(tickets.get, TICKET)

    def names(self) -> list[Name]:
        """Return what happened to the ticket."""
        return [entry.event.name for entry in self.place.store.read(log.events, ticket=TICKET)]

    def is_claimed(self) -> Fact:
        """Let a daemon that starts after a death finish the claim, and return how that ends."""
        place = self.place

        def again(tx: Tx) -> tickets.Row:
            self.epoch = queue.begin_epoch(tx, "host", place.home.name, 2)
            before = tickets.get(tx, TICKET).ticket
            claims.orphan(tx, TICKET, before.token)
            row = claims.take_next(tx, epoch=self.epoch, home=place.home.name, lease_s=600)
            assert row is not None
            return row

        row = place.store.transact(again)

        async def work() -> Fact:
            async with anyio.create_task_group() as group:
                ledger = ledger_of(place.store, self.epoch, {}, group, place.home.name)
                report = await claim.work(self.place.parts(), ledger, row, Stop())
            return report.fact

        return anyio.run(work)


def works(root: Path, on_base_moved: str = "merge", **settings: object) -> Iterator[Work]:
    """Give a ticket whose agent has finished."""
    place = Place(root, {"git": {"on_base_moved": on_base_moved}, **settings})
    with closing(place.store):
        tree = place.claim(TICKET)
        (tree / "mine.txt").write_text("mine\n")
        run = place.converse(TICKET)
        place.end(run, 1)
        place.store.transact(Tx.log, TICKET, Name.AGENT_FINISHED, run=run)
        yield Work(place, tree)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Work]:
    """Give a ticket whose agent has finished, where the base is merged."""
    yield from works(tmp_path)


def half_a_merge(work: Work, base: str) -> None:
    """Leave what a kill leaves while git writes files: some are there, index and HEAD are as before."""
    del base
    (work.tree / "theirs.txt").write_text("thei")


def merged_and_not_committed(work: Work, base: str) -> None:
    """Leave what a kill leaves before git writes the commit."""
    git(work.tree, "merge", "--quiet", "--no-commit", base)


def committed_and_not_cleaned(work: Work, base: str) -> None:
    """Leave what a kill leaves after the commit: git still remembers a merge."""
    git(work.tree, "merge", "--quiet", "-m", "Merge main into ticket/t", base)
    admin = Path(git(work.tree, "rev-parse", "--absolute-git-dir"))
    (admin / "MERGE_HEAD").write_text(f"{base}\n")
    (admin / "MERGE_MODE").write_text("no-ff")


@pytest.mark.parametrize("left", [half_a_merge, merged_and_not_committed, committed_and_not_cleaned])
def test_a_merge_that_was_killed_is_made_once(work: Work, left: object) -> None:
    """Wherever a merge was cut off, the next claim delivers one merge, the agent's work, and nothing half done."""
    assert callable(left)
    before, base = work.commit(), work.base_moves()
    work.place.repository.fetch_base(None)
    work.outbox("update-ref", MERGE, base)
    left(work, base)
    assert isinstance(work.is_claimed(), Finished)
    assert work.merges() == 1
    assert git(work.tree, "log", "-1", "--format=%P", "HEAD") == f"{before} {base}"
    assert git(work.tree, "log", "--format=%s", "HEAD^1..HEAD", "--merges") == "Merge main into ticket/t"
    assert git(work.tree, "status", "--porcelain") == ""
    assert (work.tree / "theirs.txt").read_text() == "theirs\n"
    assert git(work.repo, "rev-parse", "ticket/t") == git(work.tree, "rev-parse", "HEAD")
    assert work.outbox("for-each-ref", MERGE) == ""
    asides = git(work.place.repository.clone_path, "for-each-ref", "--format=%(refname)", "refs/aside")
    assert bool(asides) == (left in {half_a_merge, merged_and_not_committed})
    if left is half_a_merge:
        assert git(work.place.repository.clone_path, "show", f"{asides}:theirs.txt") == "thei"


def test_what_the_work_is_compared_with_moves_with_the_base(work: Work) -> None:
    """After a merge the base is the merged one, for diff, for the agent's facts and for what may be delivered."""
    base = work.base_moves()
    assert isinstance(work.is_claimed(), Finished)
    assert work.row().base_sha == base
    assert work.names().count(Name.BASE_MERGED) == 1
    patch = work.place.repository.diff(TICKET, base, limit_bytes=10_000)
    assert ("mine.txt" in patch, "theirs.txt" in patch) == (True, False)
    assert "ticket-runner" in git(work.tree, "log", "-1", "--format=%an <%ae>")
    assert "Ticket: t" in git(work.tree, "log", "-1", "--format=%b")


def test_work_that_the_base_has_already_is_no_change(work: Work) -> None:
    """A ticket whose change came into the base by another way is held, and pushes nothing."""
    work.base_moves("mine.txt", "mine\n")
    fact = work.is_claimed()
    assert isinstance(fact, Held)
    assert fact.reason is Reason.NO_CHANGE
    assert git(work.repo, "for-each-ref", "refs/heads/ticket") == ""


@pytest.mark.parametrize("gone", [True, False])
def test_a_repository_that_takes_no_ticket_holds_none(work: Work, *, gone: bool) -> None:
    """Where the repository is gone, or has a branch `ticket`, the ticket is put back until a person has looked."""
    if gone:
        work.repo.rename(work.repo.with_name("elsewhere"))
    else:
        git(work.repo, "branch", "ticket")
    fact = work.is_claimed()
    assert isinstance(fact, PutBack)
    assert (fact.cause, fact.not_before_us) == (Cause.START, 0)
    assert ("no git repository at" if gone else "has a branch `ticket`") in fact.note


def test_a_rebase_of_a_person_holds_no_ticket(work: Work) -> None:
    """While HEAD of a person's checkout names no branch, as in a rebase, a ticket that starts from it waits."""
    git(work.repo, "checkout", "--quiet", "--detach")
    fact = work.is_claimed()
    assert isinstance(fact, PutBack)
    assert fact.cause is Cause.WEATHER
    assert "has no default branch; it has main" in fact.note
    git(work.repo, "checkout", "--quiet", "main")
    assert isinstance(work.is_claimed(), Finished)


def test_an_agent_that_merged_the_base_itself_is_not_merged_again(work: Work) -> None:
    """What the branch has already is not merged, and is what the work is compared with."""
    work.commit()
    base = work.base_moves()
    work.place.repository.fetch_base(None)
    git(work.tree, "merge", "--quiet", "-m", "Mine", base)
    assert isinstance(work.is_claimed(), Finished)
    assert (work.merges(), work.row().base_sha) == (1, base)


def test_a_base_that_stands_still_leaves_no_trace(work: Work) -> None:
    """Where the base did not move nothing is merged and nothing logged."""
    assert isinstance(work.is_claimed(), Finished)
    assert work.merges() == 0
    assert not {Name.BASE_MERGED, Name.BASE_CONFLICTED} & {*work.names()}


def test_a_base_may_be_left_alone(tmp_path: Path) -> None:
    """By default a branch is delivered as it is, and compared with the base that it started from."""
    for work in works(tmp_path, "keep"):
        before = work.row().base_sha
        work.base_moves()
        assert isinstance(work.is_claimed(), Finished)
        assert (work.merges(), work.row().base_sha) == (0, before)
        assert Name.BASE_MERGED not in work.names()


def test_a_base_that_moves_on_and_on_is_merged_three_times(tmp_path: Path) -> None:
    """Each merge is checked, and a base that moves during each check does not keep a ticket from delivery."""
    move = f"git -C {tmp_path}/repo -c user.name=a -c user.email=a@b commit -q --allow-empty -m Move"
    for work in works(tmp_path, verify=[move]):
        assert isinstance(work.is_claimed(), Finished)
        assert work.merges() == 3
        assert work.names().count(Name.CHECK_PASSED) == 4
        assert git(work.repo, "rev-parse", "ticket/t") == git(work.tree, "rev-parse", "HEAD")


def test_a_conflict_without_a_fix_round_is_held_with_its_files(tmp_path: Path) -> None:
    """A conflict that no agent may resolve holds the ticket and names the files, until a person has resolved it."""
    for work in works(tmp_path, max_fix_rounds=0):
        before, base = work.commit(), work.base_moves("mine.txt", "not yours\n")
        fact = work.is_claimed()
        assert isinstance(fact, Held)
        assert (fact.reason, "`main`" in fact.note, fact.note.endswith("\nmine.txt")) == (Reason.DELIVERY, True, True)
        assert git(work.tree, "rev-parse", "HEAD", "MERGE_HEAD").split() == [before, base]
        with pytest.raises(CommitRefused):
            work.place.repository.commit_all(TICKET, "x")
        assert work.outbox("for-each-ref", MERGE) == ""
        held = work.is_claimed()
        assert isinstance(held, Held)
        assert "mine.txt" in held.note
        assert work.names().count(Name.BASE_CONFLICTED) == 1
        (work.tree / "mine.txt").write_text("both\n")
        git(work.tree, "add", "mine.txt")
        assert isinstance(work.is_claimed(), Finished)
        assert git(work.tree, "log", "-1", "--format=%P %s") == f"{before} {base} Merge main into ticket/t"
        assert work.row().base_sha == base


def test_files_in_conflict_are_told_whatever_their_names_are(tmp_path: Path) -> None:
    """A name that is no text is told as one to the agent and to a person: no request with half a character is made."""
    name = os.fsdecode(b"caf\xe9\n.txt")
    for work in works(tmp_path, max_fix_rounds=0):
        (work.tree / name).write_text("mine\n")
        work.base_moves(name)
        held = work.is_claimed()
        assert isinstance(held, Held)
        assert held.note.splitlines()[0].endswith("; in conflict: caf\ufffd .txt")
        assert held.note.endswith("\ncaf\ufffd\n.txt")
        assert work.place.repository.conflicts(TICKET) == ("caf\ufffd\n.txt",)


def test_many_files_in_conflict_are_counted() -> None:
    """The line that the table shows names the first files and counts the others; all of them follow."""
    files = tuple("abcdefg")
    first, *names = str(Conflict("`main`", files)).splitlines()
    assert first == "the branch does not merge with `main`; in conflict: a, b, c, d, e and 2 more"
    assert names == [*files]


def test_what_git_cannot_merge_at_all_is_as_it_was(work: Work) -> None:
    """A base that shares no history is no conflict: it is refused, and the worktree stays clean."""
    before = work.commit()
    git(work.repo, "checkout", "--quiet", "--orphan", "other")
    git(work.repo, "commit", "--quiet", "--allow-empty", "-m", "Other")
    with pytest.raises(GitFailed, match="unrelated histories"):
        work.place.repository.merge_base_into(TICKET, "other", "")
    assert git(work.tree, "rev-parse", "HEAD") == before
    assert git(work.tree, "status", "--porcelain") == ""
    assert work.outbox("for-each-ref", MERGE) == ""


def test_submodules_that_the_base_moves_are_left_to_a_person(work: Work) -> None:
    """Where submodules are checked out, a base that has them elsewhere is refused before anything is merged."""
    before = work.commit()
    (work.repo / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ../sub\n')
    git(work.repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    work.base_moves(".gitmodules", (work.repo / ".gitmodules").read_text())
    Path(git(work.tree, "rev-parse", "--absolute-git-dir"), "modules").mkdir()
    with pytest.raises(WorktreeRefused, match=r"not merged with main, which moves submodules \(sub\): merge by hand"):
        work.place.repository.merge_base_into(TICKET, None, "")
    assert git(work.tree, "rev-parse", "HEAD") == before
    assert work.outbox("for-each-ref", MERGE) == ""


def test_submodules_that_the_base_got_are_no_work_of_the_ticket(work: Work) -> None:
    """What a merge brings is not asked of a submodule's own repository when the ticket is delivered."""
    git(work.repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},sub")
    base = work.base_moves(".gitmodules", '[submodule "sub"]\n\tpath = sub\n\turl = ../nowhere\n')
    assert isinstance(work.is_claimed(), Finished)
    assert work.row().base_sha == base


@pytest.mark.parametrize("theirs", ["theirs.txt", "mine.txt"], ids=["clean", "conflict"])
def test_the_first_submodules_of_a_base_are_checked_out_with_its_merge(tmp_path: Path, theirs: str) -> None:
    """Submodules that are wanted and come with a merge are there for the checks, and for who resolves its conflicts."""
    sub = tmp_path / "sub"
    sub.mkdir()
    git(sub, "init", "--quiet", "-b", "main")
    (sub / "file.txt").write_text("sub\n")
    git(sub, "add", ".")
    git(sub, "commit", "--quiet", "-m", "Begin")
    for work in works(tmp_path, git={"on_base_moved": "merge", "submodules": "update"}, max_fix_rounds=0):
        git(work.repo, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../sub", "sub")
        work.base_moves(theirs)
        fact = work.is_claimed()
        assert (work.tree / "sub/file.txt").read_text() == "sub\n"
        assert isinstance(fact, Finished) == (theirs != "mine.txt")


def test_no_hook_of_an_agent_runs_in_a_merge(work: Work) -> None:
    """Hooks that an agent planted are not run by a merge of ours."""
    work.commit()
    work.base_moves()
    for name in ("pre-merge-commit", "post-merge", "commit-msg", "prepare-commit-msg", "post-checkout"):
        hook = work.place.repository.clone_path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {work.place.root}/ran\nexit 1\n")
        hook.chmod(0o755)
    assert work.place.repository.merge_base_into(TICKET, None, "").made
    assert not (work.place.root / "ran").exists()


@pytest.mark.timeout(120)  # two runs of the real CLI
def test_an_agent_resolves_a_conflict(tmp_path: Path) -> None:
    """A conflict goes to the session, over the daemon's death, and what it resolved is checked and delivered."""
    with Site.at(tmp_path, git={"on_base_moved": "merge"}, verify=["! grep '<<<<' README.md"]) as site:
        elsewhere = f"git -C {site.repository} -c user.name=a -c user.email=a@b commit -qam Theirs"
        site.plays(
            bash(f"echo mine > README.md; echo theirs > {site.repository}/README.md; {elsewhere}"),
            say("Done."),
            bash("printf 'theirs\\nmine\\n' > README.md; git add README.md"),
            say("Resolved."),
        )
        site.add(TICKET)
        site.dies_at(Name.BASE_CONFLICTED)
        wait_until_gone(site.processes())
        assert site.works_once() == 0
        shown = site.show(TICKET)
        assert shown.kinds == [("first", "finished"), ("fix", "finished")]
        (told,) = {text for call in site.calls for text in call.last_user_texts if "has moved on" in text}
        assert "- README.md\n" in told
        base = site.git("rev-parse", "main")
        assert shown.row.base_sha == base
        assert site.git("log", "-1", "--format=%s", "ticket/t") == "Merge main into ticket/t"
        assert site.git("rev-list", "--count", "--merges", "ticket/t") == "1"
        assert site.git("show", "ticket/t:README.md") == "theirs\nmine"
        assert site.names(TICKET).count(Name.BASE_CONFLICTED) == site.names(TICKET).count(Name.BASE_MERGED) == 1
