"""Submodules with real repositories: found, checked out, and delivered only at commits that their origin has."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.errors import Exit
from runner.events import Name
from runner.worktree import CommitRefused, Repository, RepositoryUnreachable, Tree, WorktreeRefused
from runner.worktree.modules import resolved
from tests.daemons import Site, bash, say, until
from tests.test_worktree import ME, commit, git, repository

LOCAL = ("-c", "protocol.file.allow=always")
FILL = """\
import sys
from pathlib import Path
from tests.test_worktree import repository
state, origin, sha = sys.argv[1:]
repository(Path(state), Path(origin)).fill("t-1", sha, update=True)
"""


@dataclass(frozen=True)
class Family:
    """A repository with a submodule that has one itself, and our repository of it."""

    root: Path
    state: Path
    ours: Repository
    base: str

    @property
    def admin(self) -> Path:
        """Where git keeps what is of the worktree of t-1 alone."""
        return self.ours.checkout("t-1").admin

    def tree(self, ticket: str = "t-1") -> Tree:
        """Return a worktree with its submodules, as a claim would."""
        tree = self.ours.ensure(ticket, None, base_sha=None)
        self.ours.fill(ticket, tree.base_sha, update=True)
        return tree

    def delivered(self, ticket: str = "t-1") -> str:
        """Commit and push, and return the commit that the submodule is at in what the origin has."""
        self.ours.commit_all(ticket, "x")
        self.ours.push(ticket)
        return git(self.root / "parent", "rev-parse", f"ticket/{ticket}:libs/child")


def begun(place: Path) -> Path:
    """Make a repository with one commit."""
    place.mkdir()
    git(place, "init", "-q", "-b", "main")
    commit(place, "file.txt", f"{place.name}\n")
    return place


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with `parent`, `child` and `grandchild`."""
    root = tmp_path_factory.mktemp("seed")
    for name in ("grandchild", "child", "parent"):
        begun(root / name)
    git(root / "child", *LOCAL, "submodule", "--quiet", "add", "--name", "deep", "../grandchild", "deep")
    git(root / "child", "commit", "-q", "-m", "Nest")
    git(root / "parent", *LOCAL, "submodule", "--quiet", "add", "../child", "libs/child")
    git(root / "parent", "commit", "-q", "-m", "Nest")
    return root


@pytest.fixture
def family(tmp_path: Path, seed: Path) -> Family:
    """Return copies of them, and a prepared repository over the parent."""
    for name in ("parent", "child", "grandchild"):
        shutil.copytree(seed / name, tmp_path / name)
    ours = repository(tmp_path / "state", tmp_path / "parent")
    ours.prepare()
    return Family(tmp_path, tmp_path / "state", ours, ours.fetch_base(None).sha)


def test_submodules_are_refused_with_the_key(family: Family) -> None:
    """Without a word of the operator a base with submodules is refused, and it is said which key changes that."""
    assert family.ours.unfit(family.base, update=True) is None
    unfit = family.ours.unfit(family.base, update=False)
    assert unfit == 'its base has submodules (libs/child): set git.submodules = "update" to have them checked out'
    family.ours.ensure("t-1", None, base_sha=None)
    with pytest.raises(WorktreeRefused, match=r"ticket t-1: .*git\.submodules = \"update\""):
        family.ours.fill("t-1", family.base, update=False)


def test_a_repository_without_submodules_needs_nothing(family: Family) -> None:
    """Where .gitmodules is not there, or names what is no link, there is nothing to refuse or fill."""
    ours = repository(family.root / "other", family.root / "grandchild")
    ours.prepare()
    assert ours.unfit(ours.fetch_base(None).sha, update=False) is None
    (family.root / "grandchild/.gitmodules").write_text('[submodule "a"]\n\tpath = file.txt\n\turl = ../child\n')
    git(family.root / "grandchild", "add", ".")
    git(family.root / "grandchild", "commit", "-q", "-m", "Name a file")
    tree = ours.ensure("t-1", None, base_sha=None)
    assert ours.fill("t-1", tree.base_sha, update=False) == ()


def test_a_worktree_is_filled_to_the_last_level(family: Family) -> None:
    """Submodules and theirs are there at the recorded commits, fetch from where they really are, and look unchanged."""
    tree = family.tree()
    child = tree.path / "libs/child"
    assert (child / "file.txt").read_text() == "child\n"
    assert (child / "deep/file.txt").read_text() == "grandchild\n"
    assert git(child, "remote", "get-url", "origin") == str(family.root / "child")
    facts = family.ours.facts("t-1", tree.base_sha)
    assert (facts.changed, facts.uncommitted) == (False, ())
    assert family.ours.fill("t-1", tree.base_sha, update=True) == ("libs/child",)


def test_what_a_kill_left_of_a_submodule_is_not_taken_for_all_of_it(family: Family) -> None:
    """Killed while the submodule of a submodule is fetched, the whole of it is there at the next claim."""
    tree = family.ours.ensure("t-1", None, base_sha=None)
    child, head = tree.path / "libs/child", family.root / "grandchild/.git/HEAD"
    said = head.read_text()
    head.unlink()
    os.mkfifo(head)  # whoever opens it waits
    filling = subprocess.Popen(
        [sys.executable, "-c", FILL, family.state, family.root / "parent", tree.base_sha], start_new_session=True
    )
    until((child / "file.txt").exists, "the submodule")
    until(lambda: (child / ".git").exists() and not list(family.admin.rglob("*.lock")), "all of the first level")
    os.killpg(filling.pid, signal.SIGKILL)
    assert filling.wait() == -signal.SIGKILL
    head.unlink()
    head.write_text(said)
    assert (child / "file.txt").exists()
    assert not (child / "deep/file.txt").exists()
    family.ours.fill("t-1", tree.base_sha, update=True)
    assert (child / "file.txt").read_text() == "child\n"
    assert (child / "deep/file.txt").read_text() == "grandchild\n"
    assert not (family.admin / "filling").exists()


def test_a_submodule_that_cannot_be_filled_leaves_nothing_and_takes_nothing(family: Family) -> None:
    """After a failure nothing is half there, and what an agent has put in the way of it is left alone."""
    tree = family.ours.ensure("t-1", None, base_sha=None)
    shutil.move(family.root / "grandchild", family.root / "gone")
    with pytest.raises(WorktreeRefused, match="cannot be checked out"):
        family.ours.fill("t-1", tree.base_sha, update=True)
    child = tree.path / "libs/child"
    assert not (child / ".git").exists()
    assert not (family.admin / "modules/libs/child").exists()
    child.mkdir(parents=True, exist_ok=True)
    (child / "work").write_text("work")
    with pytest.raises(WorktreeRefused):
        family.ours.fill("t-1", tree.base_sha, update=True)
    assert (child / "work").read_text() == "work"


def test_what_is_checked_out_is_not_touched_again(family: Family) -> None:
    """Filling again, as after a crash in the middle, fills what is missing and leaves an agent's commit in place."""
    tree = family.tree()
    made = commit(tree.path / "libs/child", "new.txt", "new\n")
    family.ours.fill("t-1", tree.base_sha, update=True)
    assert git(tree.path / "libs/child", "rev-parse", "HEAD") == made
    shutil.rmtree(tree.path / "libs/child")
    family.ours.fill("t-1", tree.base_sha, update=True)
    assert (tree.path / "libs/child/deep/file.txt").exists()


def test_a_pointer_to_what_the_submodules_origin_has_is_delivered(family: Family) -> None:
    """A ticket that moves a submodule to a newer commit of its origin is delivered with that commit."""
    newer = commit(family.root / "child", "newer.txt", "newer\n")
    tree = family.tree()
    git(tree.path / "libs/child", "fetch", "-q")
    git(tree.path / "libs/child", "checkout", "-q", newer)
    assert family.delivered() == newer


def test_a_pointer_to_what_only_the_worktree_has_is_not_delivered(family: Family) -> None:
    """A commit that an agent made in a submodule is not delivered until the submodule's origin has it on a branch."""
    tree = family.tree()
    child = tree.path / "libs/child"
    made = commit(child, "new.txt", "new\n")
    git(child, "update-ref", "refs/remotes/origin/mine", made)
    with pytest.raises(CommitRefused, match=f"libs/child: is a submodule at {made}, which nobody else may have"):
        family.delivered()
    assert git(family.root / "parent", "branch", "--list", "ticket/t-1") == ""
    git(child, "push", "-q", "origin", "HEAD:refs/heads/mine")
    assert family.delivered() == made


def test_a_new_submodule_is_delivered_when_it_can_be_had(family: Family) -> None:
    """A submodule that an agent adds is asked for at its URL; one that cannot be reached there is refused."""
    tree = family.tree()
    git(tree.path, *LOCAL, "submodule", "--quiet", "add", str(family.root / "grandchild"), "more")
    family.delivered()
    modules = tree.path / ".gitmodules"
    modules.write_text(modules.read_text().replace(str(family.root / "grandchild"), str(family.root / "nowhere")))
    with pytest.raises(CommitRefused, match=r"more: .*no git repository at .*/nowhere"):
        family.delivered()


def test_edits_in_a_submodule_are_not_lost_in_silence(family: Family) -> None:
    """What is uncommitted in a submodule is in no commit of ours, and refused; files that git does not know are not."""
    tree = family.tree()
    (tree.path / "libs/child/build.log").write_text("x\n")
    (tree.path / "new.txt").write_text("new\n")
    family.delivered()
    (tree.path / "libs/child/deep/file.txt").write_text("edited\n")
    with pytest.raises(CommitRefused, match="libs/child: is a submodule with uncommitted changes"):
        family.ours.commit_all("t-1", "x")


def test_a_worktree_with_submodules_goes_only_when_nothing_is_lost(family: Family, tmp_path: Path) -> None:
    """No edit, commit or stash in a submodule at any depth goes with its worktree; aside it is all there."""
    tree = family.tree()
    deep = tree.path / "libs/child/deep"
    (deep / "new.txt").write_text("new\n")
    assert family.ours.holds("t-1") == "holds uncommitted work in its submodule child"
    git(deep, "stash", "--include-untracked")
    assert family.ours.holds("t-1") == "holds commits of its submodule deep that are pushed nowhere"
    git(deep, "stash", "drop")
    made = commit(deep, "new.txt", "new\n")
    git(deep, "branch", "keep")
    git(deep, "checkout", "-q", "origin/main")
    assert family.ours.holds("t-1") == "holds commits of its submodule deep that are pushed nowhere"
    aside = family.ours.put_aside("t-1", "x")
    kept = aside.with_name(f"{aside.name}.git") / "modules/libs/child/modules/deep"
    assert git(tmp_path, "--git-dir", str(kept), "--work-tree", ".", "rev-parse", "keep") == made
    tree = family.tree()
    assert family.ours.holds("t-1") is None
    family.ours.leave("t-1", tmp_path)
    assert family.ours.forget("t-1")
    assert (family.tree("t-2").path / "libs/child/deep/file.txt").exists()


@pytest.mark.parametrize("command", ["rm -qf libs/child", "submodule --quiet deinit -f libs/child"])
def test_a_submodule_that_was_taken_out_is_looked_at(family: Family, command: str) -> None:
    """Commits of a submodule that is in the index, or checked out, no more keep its worktree from going."""
    tree = family.tree()
    commit(tree.path / "libs/child", "new.txt", "new\n")
    git(tree.path, *command.split())
    family.ours.commit_all("t-1", "x")
    pushed = family.ours.push("t-1")
    lost = "holds commits of its submodule child that are pushed nowhere"
    assert family.ours.holds("t-1", delivered=pushed.sha) == lost


def test_a_commit_that_is_gone_holds_the_ticket(family: Family) -> None:
    """Where a submodule's origin no longer has the recorded commit, the worktree is refused with what git said."""
    child = family.root / "child"
    git(child, "checkout", "-q", "--orphan", "anew")
    git(child, "rm", "-rqf", ".")
    commit(child, "file.txt", "rewritten\n")
    git(child, "branch", "-q", "-M", "anew", "main")
    with pytest.raises(WorktreeRefused, match="has submodules that cannot be checked out"):
        family.tree()


def test_an_origin_that_does_not_answer_is_weather(family: Family) -> None:
    """A submodule at a machine that cannot be reached is tried again later, and holds nothing."""
    git(family.root / "parent", "config", "-f", ".gitmodules", "submodule.libs/child.url", "http://127.0.0.1:9/child")
    git(family.root / "parent", "commit", "-qam", "Move")
    with pytest.raises(RepositoryUnreachable):
        family.tree()


@pytest.mark.parametrize("url", ["ext::sh -c touch% MARKER", "--upload-pack=touch MARKER", "-u", ""])
def test_a_url_that_is_no_repository_runs_nothing(family: Family, tmp_path: Path, url: str) -> None:
    """A transport that runs a command, or an option in the place of a URL, is refused before git sees it."""
    marker = tmp_path / "marker"
    hostile = url.replace("MARKER", str(marker))
    git(family.root / "parent", "config", "-f", ".gitmodules", "submodule.libs/child.url", hostile)
    git(family.root / "parent", "commit", "-qam", "Attack")
    with pytest.raises(WorktreeRefused, match="not a path, host:path, or URL"):
        family.tree()
    assert not marker.exists()


def test_a_directory_of_this_machine_is_not_for_repositories_elsewhere(tmp_path: Path) -> None:
    """A repository that is not on this machine cannot name one that is."""
    ours = repository(tmp_path / "state", "https://git.example/parent.git")
    for url in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(Exception, match="a directory of this machine"):
            ours._reached(url, ours.origin)
    assert ours._reached("../child.git", ours.origin) == "https://git.example/child.git"


def test_the_credential_is_for_its_host_alone(family: Family, tmp_path: Path) -> None:
    """What the repository is reached with goes to no other host that .gitmodules names."""
    seen = {}
    for url in ("https://git.example/child", "http://git.example/child", "https://other.example/child"):
        ours = repository(tmp_path / "state", "https://git.example/parent", credential_env={"GIT_X": "s3cret-token"})
        scoped = ours._outside_for(url)
        seen[url] = "s3cret-token" in scoped.values()
        assert scoped["GIT_CONFIG_VALUE_0"] == url
    assert [*seen.values()] == [True, False, False]
    assert family.base


def test_filling_runs_nothing_that_an_agent_planted(family: Family, tmp_path: Path) -> None:
    """Neither hooks nor programs in the clone's configuration run while submodules are checked out."""
    marker, script = tmp_path / "marker", tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    family.ours.ensure("t-1", None, base_sha=None)
    git(family.state / "clone", "config", "core.fsmonitor", str(script))
    (family.state / "clone/hooks").mkdir(exist_ok=True)
    shutil.copy(script, family.state / "clone/hooks/post-checkout")
    family.tree()
    assert not marker.exists()


@pytest.mark.parametrize(
    ("url", "origin", "means"),
    [
        ("https://h/x", "/srv/a", "https://h/x"),
        ("../x.git", "/srv/a/", "/srv/x.git"),
        ("./x", "/srv/a", "/srv/a/x"),
        ("../../x", "https://h/team/a.git", "https://h/x"),
        ("../x", "git@h:a", "git@h:x"),
        ("../x", "git@h:team/a", "git@h:team/x"),
    ],
)
def test_a_relative_url_is_beside_its_parent(url: str, origin: str, means: str) -> None:
    """A URL that begins with a dot is understood as git does."""
    assert resolved(url, origin) == means


@pytest.mark.proof
def test_a_submodule_that_contains_itself_ends(family: Family) -> None:
    """Submodules without an end are refused, not followed, and nothing is left of them."""
    child = family.root / "child"
    git(child, *LOCAL, "submodule", "--quiet", "add", "--name", "self", "../child", "self")
    git(child, "commit", "-qm", "Contain itself")
    head = git(child, "rev-parse", "HEAD")
    for _ in range(6):
        git(child, "update-index", "--cacheinfo", f"160000,{head},self")
        git(child, "commit", "-qm", "Again")
        head = git(child, "rev-parse", "HEAD")
    git(family.root / "parent", "update-index", "--cacheinfo", f"160000,{head},libs/child")
    git(family.root / "parent", "commit", "-qm", "Follow")
    with pytest.raises(WorktreeRefused, match="more than 5 deep"):
        family.tree()
    assert not os.path.lexists(family.state / "worktrees/t-1/libs/child/.git")
    assert not os.path.lexists(family.admin / "modules/libs/child")


@pytest.mark.timeout(120)  # two daemons, and one run of the real CLI
def test_a_ticket_costs_nothing_until_its_submodules_are_wanted(tmp_path: Path, seed: Path) -> None:
    """A ticket whose base has submodules is held unpaid with the key to set, and works in them once that is set."""
    with Site.at(tmp_path) as site:
        for name in ("child", "grandchild"):
            shutil.copytree(seed / name, tmp_path / name)
        site.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "../child", "libs/child")
        site.git(*ME, "commit", "-q", "-m", "Nest")
        site.plays(bash("cat libs/child/file.txt libs/child/deep/file.txt > out.txt"), say("Done."))
        site.add("t")
        assert site.works_once() == Exit.TICKET_HELD
        ticket = site.show("t").ticket
        assert (ticket.reason, site.calls) == ("worktree", [])
        assert "its base has submodules (libs/child): set git.submodules" in ticket.note
        site.configure(git={"submodules": "update"})
        site.tell("release", "t")
        assert site.works_once() == Exit.OK
        assert site.git("show", "ticket/t:out.txt") == "child\ngrandchild"
        assert Name.WORKTREE_FILLED in site.names("t")
