"""Worktrees, commits and pushes with real repositories, and with what an agent may leave in them."""

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.worktree import (
    BaseMissing,
    BranchInTheWay,
    CommitRefused,
    GitFailed,
    NoRoomForTickets,
    PushRefused,
    Repository,
    RepositoryDenied,
    RepositoryEmpty,
    RepositoryMismatch,
    RepositoryMissing,
    RepositoryOfOtherHash,
    RepositoryUnreachable,
    Tree,
    WorktreeLocked,
    WorktreeRefused,
)
from runner.worktree.clone import is_branch_name
from runner.worktree.command import Result
from runner.worktree.origin import why

ME = ("-c", "user.name=Person", "-c", "user.email=person@example.org")
LIMIT = 100_000


def git(where: Path, *arguments: str) -> str:
    """Run git as a person or an agent would, and return what it printed."""
    done = subprocess.run(["git", *ME, *arguments], cwd=where, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return os.fsdecode(done.stdout).strip()


def commit(where: Path, name: str, text: str, subject: str = "Change something") -> str:
    """Write and commit one file, and return the commit."""
    (where / name).write_text(text)
    git(where, "add", "--force", name)
    git(where, "commit", "-q", "--no-verify", "-m", subject)
    return git(where, "rev-parse", "HEAD")


def repository(state: Path, origin: Path | str, **more: object) -> Repository:
    """Return the repository of a daemon whose state is there."""
    env = more.get("credential_env")
    return Repository(
        state,
        str(origin),
        author_name='Runner "R" One',
        author_email="runner@example.org",
        credential_env=env if isinstance(env, dict) else None,
        timeout_s=30,
        retry_s=0,
    )


@dataclass(frozen=True)
class Place:
    """A person's checkout, the bare origin it pushes to, and our repository of that origin."""

    person: Path
    origin: Path
    state: Path
    ours: Repository
    base: str

    def tree(self, ticket: str = "t-1") -> Tree:
        """Return the ticket's worktree as a claim would."""
        return self.ours.ensure(ticket, None, base_sha=None)

    def at_origin(self, ticket: str = "t-1") -> str:
        """Return where the origin has the ticket's branch."""
        return git(self.origin, "rev-parse", f"refs/heads/ticket/{ticket}")


@pytest.fixture(scope="module")
def seed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout with one commit on `main`, to copy from."""
    person = tmp_path_factory.mktemp("seed") / "person"
    person.mkdir()
    git(person, "init", "-q", "-b", "main")
    (person / ".gitignore").write_text("*.o\n")
    (person / "CLAUDE.md").write_text("Be brief.\n")
    git(person, "add", ".")
    commit(person, "code.txt", "one\n", "Begin")
    return person


@pytest.fixture
def place(tmp_path: Path, seed: Path) -> Place:
    """Return a prepared repository over a bare origin."""
    person, origin, state = tmp_path / "person", tmp_path / "origin.git", tmp_path / "state"
    shutil.copytree(seed, person)
    git(tmp_path, "clone", "-q", "--bare", str(person), str(origin))
    git(person, "remote", "add", "origin", str(origin))
    ours = repository(state, origin)
    ours.prepare()
    return Place(person, origin, state, ours, git(person, "rev-parse", "HEAD"))


def tattle(path: Path, marker: Path, then: str = "") -> None:
    """Plant a program that leaves a marker when it runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nenv > {marker}\n{then}\n")
    path.chmod(0o755)


def test_prepare_makes_both_copies_and_again_needs_no_origin(place: Place) -> None:
    """A second start finds the copies and asks the origin for nothing."""
    before = git(place.state / "outbox.git", "rev-parse", "refs/remotes/origin/main")
    assert git(place.state / "clone", "rev-parse", "refs/remotes/origin/main") == before == place.base
    shutil.rmtree(place.origin / "objects")
    repository(place.state, place.origin).prepare()


def test_a_clone_that_was_killed_is_made_anew(tmp_path: Path, place: Place) -> None:
    """What a kill in the middle of cloning left is no repository of ours, and goes."""
    state = tmp_path / "other"
    for name in (".outbox.git.new", ".clone.new"):
        (state / name / "objects").mkdir(parents=True)
        (state / name / "config").write_text("[half a")
    ours = repository(state, place.origin)
    ours.prepare()
    assert ours.fetch_base(None).sha == place.base
    assert not [*state.glob(".*.new")]


def test_a_kill_between_the_two_copies_is_completed(place: Place) -> None:
    """With the outbox there and the clone missing, a start makes the clone."""
    shutil.rmtree(place.state / "clone")
    place.ours.prepare()
    assert place.tree().made


def test_a_missing_repository_is_named(tmp_path: Path) -> None:
    """A path that does not exist, or holds no repository, is in the message; a corrected one is taken."""
    for name in ("nowhere", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(RepositoryMissing, match=str(tmp_path / name)):
            repository(tmp_path / "state", tmp_path / name).prepare()
    person = tmp_path / "person"
    person.mkdir()
    git(person, "init", "-q", "-b", "main")
    commit(person, "a", "a")
    repository(tmp_path / "state", person).prepare()


def test_a_repository_of_another_hash_is_refused_as_such(tmp_path: Path) -> None:
    """A repository of SHA-256 is said to be one, and to be none that is supported."""
    git(tmp_path, "init", "-q", "--object-format=sha256", "person")
    commit(tmp_path / "person", "a", "a")
    with pytest.raises(RepositoryOfOtherHash, match=r"person names its commits by SHA-256, which is not supported"):
        repository(tmp_path / "state", tmp_path / "person").prepare()


def test_an_empty_repository_is_refused(tmp_path: Path) -> None:
    """A repository without a commit is said to have none, and is taken once it has one."""
    person = tmp_path / "person"
    person.mkdir()
    git(person, "init", "-q", "-b", "main")
    ours = repository(tmp_path / "state", person)
    with pytest.raises(RepositoryEmpty, match="no commits"):
        ours.prepare()
    sha = commit(person, "a", "a")
    ours.prepare()
    assert ours.fetch_base(None).sha == sha


def test_the_copies_of_another_repository_are_refused(tmp_path: Path, place: Place) -> None:
    """A state directory serves the repository it was made for, and no other."""
    git(tmp_path, "clone", "-q", "--bare", str(place.origin), "second.git")
    with pytest.raises(RepositoryMismatch, match=r"origin\.git, not to .*second\.git"):
        repository(place.state, tmp_path / "second.git").prepare()


@pytest.mark.parametrize("origin", ["ext::sh -c true", "-oProxyCommand=x", "", "ftp://h/x", "a\nb"])
def test_an_origin_that_is_code_or_an_option_is_refused(tmp_path: Path, origin: str) -> None:
    """Transports that run commands, options and control characters never reach git."""
    with pytest.raises(RepositoryMissing):
        repository(tmp_path, origin)


def test_the_base_is_fetched_freshly(place: Place) -> None:
    """What a person pushed a moment ago is what the next ticket starts from."""
    sha = commit(place.person, "code.txt", "two\n")
    git(place.person, "push", "-q", "origin", "main")
    assert place.ours.fetch_base(None) == place.ours.fetch_base("main")
    assert place.tree().base_sha == sha


def test_a_base_branch_replaced_by_a_folder_is_fetched(place: Place) -> None:
    """A branch that gave way to branches below its name does not block the fetch."""
    git(place.origin, "branch", "work", "main")
    place.ours.fetch_base("work")
    git(place.origin, "branch", "-D", "work")
    git(place.origin, "branch", "work/now", "main")
    assert place.ours.fetch_base("work/now").sha == place.base


@pytest.mark.parametrize("base", ["gone", "-f", "--upload-pack=x", "a..b", "main:x", "", "main^", "../heads/main"])
def test_a_missing_or_malformed_base_lists_what_there_is(place: Place, base: str) -> None:
    """A base that is no branch of the origin is refused with the branches that are, but for those of tickets."""
    git(place.origin, "branch", "ticket/t-9", "main")
    with pytest.raises(BaseMissing) as caught:
        place.ours.fetch_base(base)
    assert caught.value.existing == ("main",)


def test_without_a_default_branch_a_base_is_asked_for(place: Place) -> None:
    """An origin whose HEAD names no branch that exists needs `base`."""
    git(place.origin, "symbolic-ref", "HEAD", "refs/heads/gone")
    with pytest.raises(BaseMissing, match="no default branch; it has main"):
        place.ours.fetch_base(None)


def test_branch_names_are_judged_as_git_does() -> None:
    """Our rule for branch names and git's own agree."""
    names = "main a/b a.b -x a/-b @ a@b @{x a@{b a..b .a a/.b a.lock a.lock/b a// /a a/ a. a~b a^b a:b a?b a*b a[b"
    for name in [*names.split(), "a b", "a\\b", "a\x7fb", "a\tb", "ä", "x" * 200, "HEAD"]:
        answer = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)
        assert is_branch_name(name) == (answer.returncode == 0), name


@contextmanager
def flaky(serve: Callable[[int, socket.socket], None]) -> Iterator[tuple[str, list[int]]]:
    """Serve git:// on loopback by `serve(number of the connection, connection)`, and count connections."""
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    seen.append(len(seen) + 1)
                    serve(seen[-1], connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"git://127.0.0.1:{server.getsockname()[1]}/", seen
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_network_failure_is_tried_again(place: Place, tmp_path: Path) -> None:
    """A first connection that breaks costs a second one, and no error."""

    def serve(number: int, connection: socket.socket) -> None:
        if number > 1:
            subprocess.run(
                ["git", "daemon", "--inetd", "--export-all", f"--base-path={place.origin.parent}"],
                stdin=connection.fileno(), stdout=connection.fileno(), stderr=subprocess.DEVNULL, check=False,
            )  # fmt: skip

    with flaky(serve) as (url, seen):
        repository(tmp_path / "other", f"{url}origin.git").prepare()
    assert len(seen) == 2


def test_an_origin_that_never_answers_is_unreachable(tmp_path: Path) -> None:
    """After three broken connections the repository counts as unreachable."""
    with flaky(lambda _number, _connection: None) as (url, seen):
        with pytest.raises(RepositoryUnreachable, match=r"127\.0\.0\.1"):
            repository(tmp_path / "state", f"{url}x").prepare()
        assert len(seen) == 3


def test_a_refused_connection_shows_no_password(tmp_path: Path) -> None:
    """Password and token of a URL are in no message and in no file of ours."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = repository(tmp_path / "state", f"http://someone:hunter22@127.0.0.1:{port}/x.git")
    with pytest.raises(RepositoryUnreachable) as caught:
        ours.prepare()
    assert "hunter22" not in str(caught.value) + repr(caught.value) + ours.shown
    assert "someone" not in str(caught.value)
    assert all(b"hunter22" not in file.read_bytes() for file in (tmp_path / "state").rglob("*") if file.is_file())


def test_credentials_reach_the_origin_and_nothing_else(tmp_path: Path) -> None:
    """The transport program sees the credential and none of the daemon's environment."""
    seen = tmp_path / "seen"
    tattle(tmp_path / "ssh", seen, "echo 'Permission denied (publickey). s3cret-value' >&2; exit 255")
    os.environ["TEST_DAEMON_SECRET"] = "ours"
    try:
        ours = repository(
            tmp_path / "other",
            "someone@example.invalid:x.git",
            credential_env={"GIT_SSH_COMMAND": str(tmp_path / "ssh"), "TOKEN": "s3cret-value"},
        )
        with pytest.raises(RepositoryDenied) as caught:
            ours.prepare()
    finally:
        del os.environ["TEST_DAEMON_SECRET"]
    assert "TOKEN=s3cret-value" in seen.read_text()
    assert "TEST_DAEMON_SECRET" not in seen.read_text()
    assert "s3cret-value" not in str(caught.value)


def test_a_command_without_end_is_ended(tmp_path: Path) -> None:
    """A transport that hangs is killed after the time limit, and counts as unreachable."""
    tattle(tmp_path / "ssh", tmp_path / "seen", "exec sleep 600")
    ours = Repository(
        tmp_path / "state",
        "example.invalid:x.git",
        author_name="n",
        author_email="e",
        credential_env={"GIT_SSH_COMMAND": str(tmp_path / "ssh")},
        timeout_s=0.5,
        retry_s=0,
    )
    with pytest.raises(RepositoryUnreachable, match=r"no end after 0\.5 s"):
        ours.prepare()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="util-linux ends git with its daemon")
def test_git_and_what_it_started_end_with_the_daemon(tmp_path: Path) -> None:
    """A daemon that is killed in the middle of a fetch leaves no git behind, nor a child of git that reads no pipe."""
    talk = tmp_path / "talk"
    os.mkfifo(talk)
    transport = (
        "import signal, sys; from pathlib import Path; talk = Path(sys.argv[1]);"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); talk.write_text('here');"
        "signal.sigwait({signal.SIGTERM}); sys.stdin.read(); talk.write_text('gone')"  # git's end is closed
    )
    tattle(tmp_path / "ssh", tmp_path / "seen", f'exec {sys.executable} -c "{transport}" {talk}')
    code = (
        "import sys; from pathlib import Path; from runner.worktree import Repository;"
        "Repository(Path(sys.argv[1]), 'example.invalid:x.git', author_name='n', author_email='e',"
        "credential_env={'GIT_SSH_COMMAND': sys.argv[2]}).prepare()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "state"), str(tmp_path / "ssh")]) as daemon:
        assert talk.read_text() == "here"
        daemon.kill()
    assert talk.read_text() == "gone"


def test_a_new_worktree_is_on_its_branch_at_the_base(place: Place) -> None:
    """The first claim gets a fresh checkout of the base on `ticket/<id>`."""
    tree = place.tree()
    assert tree == Tree(place.state / "worktrees/t-1", "ticket/t-1", place.base, made=True, note="")
    assert git(tree.path, "status", "--porcelain", "--branch") == "## ticket/t-1"
    assert (tree.path / "code.txt").read_text() == "one\n"


def test_a_worktree_is_found_again_as_it_was(place: Place) -> None:
    """A later claim finds commits and uncommitted files untouched, without the origin."""
    tree = place.tree()
    head = commit(tree.path, "new.txt", "new\n")
    (tree.path / "code.txt").write_text("half\n")
    shutil.rmtree(place.origin)
    again = place.ours.ensure("t-1", None, base_sha=place.base)
    assert (again.made, again.base_sha, again.note) == (False, place.base, "")
    assert (git(tree.path, "rev-parse", "HEAD"), (tree.path / "code.txt").read_text()) == (head, "half\n")


def test_a_base_that_was_not_recorded_is_worked_out(place: Place) -> None:
    """A daemon killed before it recorded the base gets the commit that the branch left the base at."""
    tree = place.tree()
    commit(tree.path, "new.txt", "new\n")
    commit(place.person, "code.txt", "two\n")
    git(place.person, "push", "-q", "origin", "main")
    assert place.tree().base_sha == place.base


def test_the_recorded_base_is_used_when_the_branch_moved_on(place: Place) -> None:
    """A worktree that has to be made starts from the recorded base, not from a newer one."""
    commit(place.person, "code.txt", "two\n")
    git(place.person, "push", "-q", "origin", "main")
    tree = place.ours.ensure("t-1", None, base_sha=place.base)
    assert tree.base_sha == git(tree.path, "rev-parse", "HEAD") == place.base


def test_a_recorded_base_that_is_gone_is_refused(place: Place) -> None:
    """A recorded base that nobody has any more is not silently replaced."""
    with pytest.raises(WorktreeRefused, match="started from dddd"):
        place.ours.ensure("t-1", None, base_sha="d" * 40)


def test_ids_that_differ_in_a_sign_have_different_worktrees(place: Place) -> None:
    """`a_b`, `a-b` and `a.b` get a worktree and a branch each."""
    trees = [place.tree(ticket) for ticket in ("a_b", "a-b", "a.b")]
    for n, tree in enumerate(trees):
        commit(tree.path, "who.txt", str(n))
    assert [(tree.path / "who.txt").read_text() for tree in trees] == ["0", "1", "2"]
    assert len({tree.branch for tree in trees}) == 3


@pytest.mark.parametrize(
    "ticket", ["../x", "a/b", ".", "..", "", "-x", "a..b", "x.lock", "x.", "a b", "x\n", "é", "x" * 65]
)
def test_an_id_that_could_leave_the_directory_is_refused(place: Place, ticket: str) -> None:
    """An id that is no plain name never becomes a path or a branch."""
    with pytest.raises(ValueError, match="not a ticket id"):
        place.ours.ensure(ticket, None, base_sha=None)


def test_an_unregistered_directory_is_moved_aside(place: Place) -> None:
    """What lies at the path and is no worktree is kept elsewhere, each time."""
    for n in (1, 2):
        path = place.state / "worktrees/t-1"
        path.mkdir(parents=True)
        (path / "precious").write_text(str(n))
        tree = place.tree()
        assert tree.made
        assert (place.state / f"aside/t-1-{n}/precious").read_text() == str(n)
        assert f"t-1-{n}" in tree.note
        git(place.state / "clone", "worktree", "remove", "--force", str(path))


def test_a_worktree_whose_registration_is_gone_is_moved_aside(place: Place) -> None:
    """Without the clone's half a worktree is kept aside, and its commits are in the new one."""
    tree = place.tree()
    head = commit(tree.path, "new.txt", "new\n")
    (tree.path / "half.txt").write_text("half\n")
    shutil.rmtree(place.state / "clone/worktrees/t-1")
    again = place.ours.ensure("t-1", None, base_sha=place.base)
    assert (again.made, git(again.path, "rev-parse", "HEAD")) == (True, head)
    assert (place.state / "aside/t-1-1/half.txt").read_text() == "half\n"


def test_a_ticket_starts_from_no_branch_that_an_agent_made_for_it(place: Place) -> None:
    """Branches of its name that only the clone has are kept aside; one that was pushed is continued."""
    tree, clone = place.tree(), place.state / "clone"
    git(tree.path, "checkout", "-q", "-b", "ticket/t-2")
    foreign = commit(tree.path, "new.txt", "new\n")
    git(clone, "branch", "ticket/t-3/x", foreign)
    git(clone, "symbolic-ref", "refs/heads/ticket/t-4", "refs/heads/ticket/t-1")
    git(clone, "branch", "-f", "ticket/t-1", foreign)
    for ticket in ("t-2", "t-3", "t-4"):
        other = place.tree(ticket)
        assert git(other.path, "rev-parse", "HEAD") == other.base_sha == place.base
        assert "refs/aside/ticket/t-" in other.note
    asides = git(clone, "for-each-ref", "--format=%(objectname)", "refs/aside").splitlines()
    assert asides == [foreign] * 3
    git(tree.path, "checkout", "-q", "ticket/t-1")
    place.ours.push("t-1")
    shutil.rmtree(tree.path)
    again = place.tree()
    assert (git(again.path, "rev-parse", "HEAD"), "aside" in again.note) == (foreign, False)


def test_a_worktree_that_is_gone_is_made_again_on_its_branch(place: Place) -> None:
    """A deleted directory costs what was uncommitted, and no commit; other tickets keep their worktrees."""
    tree, other = place.tree(), place.tree("t-2")
    head = commit(tree.path, "new.txt", "new\n")
    shutil.rmtree(tree.path)
    shutil.move(other.path, place.state / "elsewhere")
    again = place.ours.ensure("t-1", None, base_sha=place.base)
    assert (again.made, git(again.path, "rev-parse", "HEAD")) == (True, head)
    shutil.move(place.state / "elsewhere", other.path)
    assert not place.ours.ensure("t-2", None, base_sha=place.base).made


@pytest.mark.parametrize("forked", [False, True])
def test_a_detached_commit_survives_its_directory(place: Place, forked: bool) -> None:
    """A commit that only the HEAD of a deleted worktree held is on a branch afterwards."""
    tree = place.tree()
    if forked:
        commit(tree.path, "a.txt", "a\n")
        git(tree.path, "checkout", "-q", "--detach", place.base)
    else:
        git(tree.path, "checkout", "-q", "--detach")
    head = commit(tree.path, "new.txt", "new\n")
    shutil.rmtree(tree.path)
    place.ours.ensure("t-1", None, base_sha=place.base)
    branches = git(place.state / "clone", "branch", "--format=%(refname:short)", "--contains", head).splitlines()
    assert branches == ([f"aside/t-1-{head[:12]}"] if forked else ["ticket/t-1"])


def test_a_checkout_that_was_killed_halfway_is_made_anew(place: Place) -> None:
    """Files that a killed `git worktree add` never wrote do not become deletions of the ticket."""
    tree = place.tree()
    (place.state / "clone/worktrees/t-1/locked").write_text("initializing")
    (tree.path / "code.txt").unlink()
    again = place.tree()
    assert again.made
    assert (again.path / "code.txt").exists()
    assert place.ours.commit_all("t-1", "x") is None


def test_a_symlink_in_its_place_is_refused(place: Place, tmp_path: Path) -> None:
    """A symlink at the path, or at the directory of all worktrees, is never followed."""
    (place.state / "worktrees").mkdir()
    (place.state / "worktrees/t-1").symlink_to(place.person)
    with pytest.raises(WorktreeRefused, match="symlink"):
        place.tree()
    (place.state / "worktrees/t-1").unlink()
    (place.state / "worktrees").rmdir()
    (place.state / "worktrees").symlink_to(tmp_path)
    with pytest.raises(WorktreeRefused, match="symlink"):
        place.tree()


def test_another_checkout_in_its_place_is_refused(place: Place) -> None:
    """A repository that somebody put at the path is left alone."""
    (place.state / "worktrees").mkdir()
    shutil.copytree(place.person, place.state / "worktrees/t-1")
    with pytest.raises(WorktreeRefused, match="another repository"):
        place.tree()
    assert not (place.state / "aside").exists()


def test_a_git_file_that_names_something_else_is_refused(place: Place) -> None:
    """A worktree redirected to another repository is not used; one that lost its link gets it back."""
    tree = place.tree()
    link = tree.path / ".git"
    link.write_text(f"gitdir: {place.person}/.git\n")
    for call in (place.tree, lambda: place.ours.commit_all("t-1", "x"), lambda: place.ours.push("t-1")):
        with pytest.raises(WorktreeRefused, match="not ours"):
            call()
    link.unlink()
    assert not place.tree().made
    assert git(tree.path, "status", "--porcelain") == ""


def test_a_detached_or_renamed_branch_is_put_back(place: Place) -> None:
    """Commits made beside the ticket's branch are on it afterwards, when the branch has none of its own."""
    tree = place.tree()
    git(tree.path, "checkout", "-q", "--detach")
    heads = [commit(tree.path, "a.txt", "a\n")]
    (tree.path / "half.txt").write_text("half\n")
    assert "detached" in place.tree().note
    git(tree.path, "checkout", "-q", "-b", "fix/it")
    heads.append(commit(tree.path, "b.txt", "b\n"))
    assert "fix/it" in place.tree().note
    git(tree.path, "branch", "-q", "-m", "renamed")
    heads.append(commit(tree.path, "c.txt", "c\n"))
    place.tree()
    assert git(tree.path, "log", "--format=%H", f"{place.base}..ticket/t-1").splitlines() == heads[::-1]
    assert git(tree.path, "status", "--porcelain", "--branch").splitlines() == ["## ticket/t-1", "?? half.txt"]


def test_an_older_commit_checked_out_goes_back_to_the_branch(place: Place) -> None:
    """A look at an older commit ends where the branch is, unless that would overwrite something."""
    tree = place.tree()
    head = commit(tree.path, "code.txt", "two\n")
    git(tree.path, "checkout", "-q", place.base)
    place.tree()
    assert (git(tree.path, "rev-parse", "HEAD"), (tree.path / "code.txt").read_text()) == (head, "two\n")
    git(tree.path, "checkout", "-q", place.base)
    (tree.path / "code.txt").write_text("mine\n")
    with pytest.raises(WorktreeRefused, match="changes that keep it"):
        place.tree()
    assert (tree.path / "code.txt").read_text() == "mine\n"


def test_a_head_and_a_branch_that_forked_are_refused(place: Place) -> None:
    """Where both have commits of their own, a person decides."""
    tree = place.tree()
    commit(tree.path, "a.txt", "a\n")
    git(tree.path, "checkout", "-q", "--detach", place.base)
    other = commit(tree.path, "b.txt", "b\n")
    with pytest.raises(WorktreeRefused, match="merge or reset by hand"):
        place.tree()
    assert git(tree.path, "rev-parse", "HEAD") == other


def test_an_orphan_branch_goes_back_with_its_files(place: Place) -> None:
    """A HEAD without a commit is put on the ticket's branch, and the files stay."""
    tree = place.tree()
    git(tree.path, "checkout", "-q", "--orphan", "empty")
    (tree.path / "new.txt").write_text("new\n")
    place.tree()
    assert git(tree.path, "status", "--porcelain", "--branch").splitlines() == ["## ticket/t-1", "?? new.txt"]


def test_a_rebase_under_way_is_left_to_the_agent_and_not_delivered(place: Place) -> None:
    """An interrupted rebase is noted at the claim, and refused at the commit and the push."""
    tree = place.tree()
    commit(tree.path, "code.txt", "mine\n")
    git(tree.path, "branch", "other", place.base)
    git(tree.path, "checkout", "-q", "other")
    commit(tree.path, "code.txt", "theirs\n")
    git(tree.path, "checkout", "-q", "ticket/t-1")
    assert subprocess.run(
        ["git", *ME, "rebase", "-q", "other"], cwd=tree.path, capture_output=True, check=False
    ).returncode
    assert place.tree().note == "a rebase is under way"
    for call in (lambda: place.ours.commit_all("t-1", "x"), lambda: place.ours.push("t-1")):
        with pytest.raises(WorktreeRefused, match="middle of a rebase"):
            call()


def test_locks_go_only_when_asked_to(place: Place) -> None:
    """Stale lock files stop a commit with a clear error, until the caller says that nothing lives."""
    tree = place.tree()
    (tree.path / "new.txt").write_text("new\n")
    clone = place.state / "clone"
    own = [clone / "worktrees/t-1/index.lock", clone / "worktrees/t-1/HEAD.lock", clone / "refs/heads/ticket/t-1.lock"]
    old, young, others = clone / "packed-refs.lock", clone / "shallow.lock", clone / "refs/heads/ticket/t-2.lock"
    for lock in (*own, old, young, others):
        lock.touch()
    os.utime(old, (0, 0))
    with pytest.raises(WorktreeLocked, match=r"index\.lock"):
        place.ours.commit_all("t-1", "x")
    assert set(place.ours.unlock("t-1")) == {*own, old}
    assert young.exists()
    assert others.exists()
    assert place.ours.commit_all("t-1", "x")


def test_what_an_agent_puts_in_the_place_of_git_s_files_stops_no_ticket(place: Place) -> None:
    """FIFOs, directories and files where the clone has something else hold up neither a start nor another ticket."""
    tree, clone = place.tree(), place.state / "clone"
    (clone / "worktrees/aaa").mkdir()
    (clone / "worktrees/t-1/index.lock").mkdir()
    for name in ("worktrees/aaa/gitdir", "packed-refs", "refs/heads/pipe", "worktrees/t-1/locked", "shallow"):
        (clone / name).unlink(missing_ok=True)
        os.mkfifo(clone / name)
    shutil.rmtree(clone / "info")
    (clone / "info").touch()
    (clone / "HEAD").unlink()
    (clone / "HEAD").mkdir()
    assert place.ours.shallow() == b""
    place.ours.unlock("t-1")
    place.ours.prepare()
    assert place.ours.survey().registered == (tree.path,)
    assert not place.tree().made
    (tree.path / "new.txt").write_text("new\n")
    assert place.ours.commit_all("t-1", "x")
    assert place.tree("t-2").made


def test_a_clone_without_a_directory_of_worktrees_gets_one(place: Place) -> None:
    """A file in the place of the directory that git keeps about worktrees gives way to it."""
    (place.state / "clone/worktrees").touch()
    assert place.tree().made


def test_locks_of_a_killed_fetch_or_push_go_at_the_start(place: Place) -> None:
    """The outbox is the daemon's alone, so a start frees it."""
    lock = place.state / "outbox.git/refs/remotes/origin/main.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    place.ours.prepare()
    assert not lock.exists()


def test_facts_show_commits_uncommitted_files_and_change(place: Place) -> None:
    """Facts list what was committed and what was not, whatever the names, and leave the index alone."""
    tree = place.tree()
    assert place.ours.facts("t-1", place.base).changed is False
    head = commit(tree.path, "a.txt", "a\n", "Add ä file")
    (tree.path / "näme mit\nZeile").write_text("x")
    (tree.path / "code.txt").unlink()
    (tree.path / "ignored.o").write_text("x")
    (tree.path / ".bashrc").touch()
    before = git(tree.path, "status", "--porcelain")
    facts = place.ours.facts("t-1", place.base)
    assert [(c.sha, c.subject) for c in facts.commits] == [(head, "Add ä file")]
    assert set(facts.uncommitted) == {"code.txt", "näme mit\nZeile"}
    assert facts.changed
    assert git(tree.path, "status", "--porcelain") == before


def test_line_ends_that_nobody_changed_are_no_work(place: Place) -> None:
    """Files committed before .gitattributes asked for other line ends stay as they were, unless an agent edits them."""
    names = [f"crlf-{n}.txt" for n in range(600)]
    for name in names:
        (place.person / name).write_bytes(b"a\r\nb\r\n")
    git(place.person, "add", *names)
    commit(place.person, ".gitattributes", "*.txt text eol=lf\n")
    git(place.person, "push", "-q", "origin", "main")
    tree = place.tree()
    for name in names:
        (tree.path / name).touch()  # so that git looks into each, as it does where its clock is coarse
    assert git(tree.path, "status", "--porcelain").count("crlf") == len(names)
    untouched = place.ours.facts("t-1", tree.base_sha)
    assert (untouched.uncommitted, untouched.changed) == ((), False)
    assert place.ours.commit_all("t-1", "Nothing") is None

    (tree.path / "new.txt").write_text("new\n")
    (tree.path / names[0]).write_bytes(b"a\r\nb\r\nc\r\n")
    (tree.path / names[1]).chmod(0o755)
    git(tree.path, "add", "--renormalize", names[2])
    edited = {names[0], names[1], names[2], "new.txt"}
    assert {*place.ours.facts("t-1", tree.base_sha).uncommitted} == edited
    assert place.ours.commit_all("t-1", "Edited")
    assert {*git(tree.path, "diff", "--name-only", tree.base_sha, "HEAD").splitlines()} == edited


def test_content_is_that_of_commit_and_files(place: Place) -> None:
    """The same commit and files are the same content, and another commit, file or byte is another one."""
    tree = place.tree()
    seen = [place.ours.content("t-1")]
    (tree.path / "ignored.o").write_text("x")
    assert place.ours.content("t-1") == seen[0]
    before = git(tree.path, "status", "--porcelain")
    for step in (
        lambda: (tree.path / "new.txt").write_text("one"),
        lambda: (tree.path / "new.txt").write_text("two"),
        lambda: git(tree.path, "add", "new.txt"),
        lambda: git(tree.path, "commit", "-q", "-m", "Add it"),
        lambda: git(tree.path, "commit", "-q", "--allow-empty", "-m", "Nothing"),
        lambda: git(tree.path.parent, "init", "-q", str(tree.path / "nested")),
        (tree.path / "code.txt").unlink,
    ):
        step()
        seen.append(place.ours.content("t-1"))
    assert [number for number, content in enumerate(seen) if content in seen[:number]] == [3], "staged is no difference"
    assert before == ""


def test_a_fifo_that_git_reads_costs_a_short_time(place: Place) -> None:
    """Git that waits for what an agent left in the worktree is ended long before a fetch would be."""
    tree = place.tree()
    (tree.path / "new.txt").touch()
    (tree.path / ".gitignore").unlink()
    os.mkfifo(tree.path / ".gitignore")
    impatient = Repository(
        place.state, str(place.origin), author_name="n", author_email="e", timeout_s=600, short_timeout_s=2
    )
    with pytest.raises(GitFailed, match="no end after 2 s"):
        impatient.facts("t-1", place.base)


def test_facts_are_bounded(place: Place) -> None:
    """Thousands of files and endless subjects do not fill a prompt."""
    tree = place.tree()
    commit(tree.path, "a.txt", "a\n", "x" * 5000)
    for n in range(250):
        (tree.path / f"f{n}").touch()
    facts = place.ours.facts("t-1", place.base)
    assert (len(facts.uncommitted), len(facts.commits[0].subject)) == (200, 200)


def test_work_that_undoes_itself_changed_nothing(place: Place) -> None:
    """A commit and its revert, or an empty commit, are no change relative to the base."""
    tree = place.tree()
    commit(tree.path, "code.txt", "two\n")
    git(tree.path, "revert", "--no-edit", "HEAD")
    git(tree.path, "commit", "-q", "--allow-empty", "-m", "Nothing")
    facts = place.ours.facts("t-1", place.base)
    assert (len(facts.commits), facts.changed) == (3, False)


def test_diff_has_everything_and_changes_nothing(place: Place) -> None:
    """The patch holds committed, uncommitted and untracked work; index and objects stay as they were."""
    tree = place.tree()
    commit(tree.path, "a.txt", "committed\n")
    (tree.path / "code.txt").write_text("uncommitted\n")
    (tree.path / "ü.txt").write_text("untracked\n")
    before = git(tree.path, "status", "--porcelain"), git(tree.path, "count-objects")
    patch = place.ours.diff("t-1", place.base, limit_bytes=LIMIT)
    assert all(f"+{word}" in patch for word in ("committed", "uncommitted", "untracked"))
    assert "b/ü.txt" in patch
    assert (git(tree.path, "status", "--porcelain"), git(tree.path, "count-objects")) == before
    assert not [*place.state.glob(".snapshot-*")]


def test_a_long_diff_is_cut(place: Place) -> None:
    """A patch over the limit ends with a word about it."""
    tree = place.tree()
    (tree.path / "big.txt").write_text("x" * 50_000)
    patch = place.ours.diff("t-1", place.base, limit_bytes=1000)
    assert len(patch) < 1100
    assert patch.endswith("[cut after 1000 bytes]\n")


def test_a_commit_takes_all_and_only_the_work(place: Place) -> None:
    """Untracked, changed and deleted files are committed as ours; ignored files and sandbox leftovers are not."""
    tree = place.tree()
    theirs = commit(tree.path, "a.txt", "a\n")
    for name in ("naïve ☃", "-dash", ":(top)x", "ignored.o"):
        (tree.path / name).write_text("x")
    (tree.path / os.fsdecode(b"latin-\xe9")).write_text("x")
    (tree.path / ".bashrc").touch()
    (tree.path / ".mcp.json").write_text("{}\n")
    (tree.path / "code.txt").unlink()
    os.mkfifo(tree.path / "pipe")
    sha = place.ours.commit_all("t-1", "#1: Do it\n\nBecause.\n")
    assert sha == git(tree.path, "rev-parse", "HEAD")
    files = set(git(tree.path, "-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", "-z", "HEAD").split("\0"))
    assert files >= {"naïve ☃", "-dash", ":(top)x", ".mcp.json"}
    assert files.isdisjoint({"ignored.o", ".bashrc", "code.txt", "pipe"})
    assert git(tree.path, "log", "-1", "--format=%an <%ae>|%cn|%B") == (
        'Runner "R" One <runner@example.org>|Runner "R" One|#1: Do it\n\nBecause.'
    )
    assert git(tree.path, "log", "-1", "--format=%an", theirs) == "Person"
    assert place.ours.commit_all("t-1", "x") is None


def test_an_agent_without_an_identity_commits_as_ours(place: Place) -> None:
    """The clone's configuration gives an agent's plain `git commit` the author of the daemon."""
    tree = place.tree()
    subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", "x"], cwd=tree.path, check=True)
    assert git(tree.path, "log", "-1", "--format=%an <%ae>") == 'Runner "R" One <runner@example.org>'


def test_an_agent_does_not_push_by_mistake(place: Place) -> None:
    """A plain `git push origin` of an agent says that it is not its turn."""
    tree = place.tree()
    done = subprocess.run(["git", "push", "origin", "HEAD"], cwd=tree.path, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "is pushed when its work is checked" in done.stderr


def test_no_agent_gets_the_stash_of_another(place: Place) -> None:
    """All worktrees have one stash, so `git stash` fails, leaves files and index alone, and has nothing to pop."""
    tree = place.tree()
    (tree.path / "code.txt").write_text("mine\n")
    (tree.path / "new.txt").write_text("new\n")
    git(tree.path, "add", "new.txt")
    place.ours.prepare()  # as the next start
    before = git(tree.path, "status", "--porcelain")
    for words in (("stash",), ("stash", "--include-untracked"), ("stash", "pop")):
        assert subprocess.run(["git", *ME, *words], cwd=tree.path, capture_output=True, check=False).returncode
    assert git(tree.path, "status", "--porcelain") == before
    assert git(tree.path, "stash", "list") == ""
    assert (tree.path / "code.txt").read_text() == "mine\n"


def test_a_branch_that_leaves_no_room_for_those_of_tickets_is_named(place: Place) -> None:
    """A branch `ticket`, or one below `ticket/<id>`, is refused before any work of that ticket, until it is gone."""
    git(place.person, "push", "-q", "origin", "HEAD:refs/heads/ticket")
    with pytest.raises(NoRoomForTickets, match=r"has a branch `ticket`.*`ticket/<id>`.*rename"):
        place.tree()
    git(place.origin, "branch", "-m", "ticket", "tickets")
    git(place.origin, "branch", "ticket/t-1/x", "main")
    git(place.origin, "branch", "ticket/t-10", "main")
    with pytest.raises(BranchInTheWay, match=r"has a branch `ticket/t-1/x`.*no `ticket/t-1` there.*rename"):
        place.tree()
    git(place.origin, "branch", "-m", "ticket/t-1/x", "x")
    assert place.tree().made


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("fatal: detected dubious ownership in repository at '/srv/r'", RepositoryDenied),
        ("fatal: unable to access 'https://h/r/': The requested URL returned error: 403", RepositoryDenied),
        ("fatal: unable to access 'https://h/r/': gnutls_handshake() failed: Error in the pull", RepositoryUnreachable),
        ("fatal: unable to access 'https://h/r/': SSL certificate problem: expired", RepositoryUnreachable),
        ("remote: Repository not found.\nfatal: repository 'https://h/r/' not found", RepositoryMissing),
        ("fatal: something new", GitFailed),
    ],
)
def test_what_git_says_of_the_origin_is_no_fault_of_a_ticket(said: str, error: type[Exception]) -> None:
    """An origin that does not trust us, breaks off or is gone is told from a failure that nobody knows."""
    told = why("there", "fetch", Result(128, b"", said))
    assert type(told) is error
    assert str(told).endswith(said), "in several lines: what to do comes before"


@pytest.mark.parametrize("commits", [0, 1])
def test_a_repository_inside_the_worktree_is_reported(place: Place, commits: int) -> None:
    """A nested repository is never recorded as a link to nothing; facts and diff still work."""
    tree = place.tree()
    (tree.path / "sub").mkdir()
    git(tree.path / "sub", "init", "-q")
    for _ in range(commits):
        commit(tree.path / "sub", "x", "x")
    (tree.path / "new.txt").write_text("new\n")
    with pytest.raises(CommitRefused, match="sub: is a repository of its own"):
        place.ours.commit_all("t-1", "x")
    facts = place.ours.facts("t-1", place.base)
    assert (set(facts.uncommitted), facts.changed) == ({"new.txt", "sub/"}, True)
    assert "+new" in place.ours.diff("t-1", place.base, limit_bytes=LIMIT)


def test_a_file_that_git_refuses_hides_no_other(place: Place) -> None:
    """Where git would add nothing at all for one file, the rest is seen, and that file is named."""
    tree = place.tree()
    (tree.path / ".gitattributes").write_text("*.wide working-tree-encoding=UTF-16\n")
    (tree.path / "no-mark.wide").write_bytes(b"abc")
    for name in ("a.py", "b.py", "z.py"):
        (tree.path / name).write_text("new\n")
    with pytest.raises(CommitRefused, match=r"no-mark\.wide"):
        place.ours.commit_all("t-1", "x")
    facts = place.ours.facts("t-1", place.base)
    assert set(facts.uncommitted) == {".gitattributes", "a.py", "b.py", "z.py", "no-mark.wide"}
    assert facts.changed
    assert place.ours.diff("t-1", place.base, limit_bytes=LIMIT).count("+new") == 3
    assert (place.ours.holds("t-1") or "").startswith("holds uncommitted work: ")
    seen = place.ours.content("t-1")
    (tree.path / "a.py").write_text("newer\n")
    assert place.ours.content("t-1") != seen


@pytest.mark.parametrize("committed", [False, True])
def test_a_link_to_nothing_is_neither_committed_nor_pushed(place: Place, committed: bool) -> None:
    """A repository that the agent itself added as a link is refused, whoever was to commit it."""
    tree = place.tree()
    (tree.path / "sub").mkdir()
    git(tree.path / "sub", "init", "-q")
    commit(tree.path / "sub", "x", "x")
    git(tree.path, "add", "sub")
    (tree.path / ".gitmodules").write_text('[submodule "sub"]\n\tpath = other\n\tignore = all\n')
    if committed:
        git(tree.path, "add", "--force", ".gitmodules")
        git(tree.path, "commit", "-q", "-m", "Link")
        with pytest.raises(CommitRefused, match="sub: is a repository of its own"):
            place.ours.push("t-1")
    with pytest.raises(CommitRefused, match="sub: is a repository of its own"):
        place.ours.commit_all("t-1", "x")


def test_a_link_that_the_base_has_is_left_alone(place: Place) -> None:
    """A ticket whose base has a link of which .gitmodules says nothing is delivered, unless it moves that link."""
    link = ("update-index", "--add", "--cacheinfo")
    git(place.person, *link, f"160000,{place.base},link")
    git(place.person, "commit", "-q", "-m", "Link")
    git(place.person, "push", "-q", "origin", "main")
    tree = place.tree()
    (tree.path / "new.txt").write_text("new\n")
    assert place.ours.commit_all("t-1", "x") == place.ours.push("t-1").sha
    git(tree.path, *link, f"160000,{git(tree.path, 'rev-parse', 'HEAD')},link")
    with pytest.raises(CommitRefused, match="link: is a repository of its own"):
        place.ours.commit_all("t-1", "x")


def test_conflicts_are_not_committed(place: Place) -> None:
    """A merge with conflicts is reported; a merge that is resolved is concluded."""
    tree = place.tree()
    commit(tree.path, "code.txt", "mine\n")
    git(tree.path, "branch", "-q", "other", place.base)
    git(tree.path, "checkout", "-q", "other")
    theirs = commit(tree.path, "code.txt", "theirs\n")
    git(tree.path, "checkout", "-q", "ticket/t-1")
    subprocess.run(["git", *ME, "merge", "-q", "other"], cwd=tree.path, capture_output=True, check=False)
    with pytest.raises(CommitRefused, match=r"code\.txt: is not merged"):
        place.ours.commit_all("t-1", "x")
    git(tree.path, "checkout", "-q", "--ours", "code.txt")
    git(tree.path, "add", "code.txt")
    sha = place.ours.commit_all("t-1", "x")
    assert theirs in git(tree.path, "log", "-1", "--format=%P", sha or "")


def everything(place: Place) -> None:
    """Call all that runs git on what an agent wrote."""
    place.tree()
    place.ours.facts("t-1", place.base)
    place.ours.diff("t-1", place.base, limit_bytes=LIMIT)
    place.ours.commit_all("t-1", "x")
    place.ours.push("t-1")
    place.tree("t-3")
    place.ours.holds("t-1")
    place.ours.put_aside("t-1", "is in the way")


def test_planted_hooks_do_not_run(place: Place, tmp_path: Path) -> None:
    """Hooks of any name, in the clone or by core.hooksPath, never run with our environment, and are gone."""
    tree, marker = place.tree(), tmp_path / "marker"
    names = ["pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-checkout", "pre-push", "update"]
    names += ["post-index-change", "reference-transaction", "pre-auto-gc", "post-rewrite", "pre-receive", "post-update"]
    for name in names:
        tattle(place.state / "outbox.git/hooks" / name, marker)  # ours alone; shows that git is told not to look
        tattle(place.state / "clone/hooks" / name, marker)
        tattle(tree.path / "evil" / name, marker)
    git(tree.path, "config", "core.hooksPath", str(tree.path / "evil"))
    marker.unlink(missing_ok=True)
    (tree.path / "new.txt").write_text("new\n")
    everything(place)
    assert not marker.exists()
    assert not (place.state / "clone/hooks").exists()


@pytest.mark.parametrize(
    ("key", "attributes"),
    [
        ("core.fsmonitor", ""),
        ("core.sshCommand", ""),
        ("core.pager", ""),
        ("core.editor", ""),
        ("core.alternateRefsCommand", ""),
        ("uploadpack.packObjectsHook", ""),
        ("diff.external", ""),
        ("gpg.program", ""),
        ("filter.evil.clean", "* filter=evil"),
        ("filter.evil.smudge", "* filter=evil"),
        ("filter.evil.process", "* filter=evil"),
        ("diff.evil.textconv", "* diff=evil"),
        ("diff.evil.command", "* diff=evil"),
        ("merge.evil.driver", "* merge=evil"),
    ],
)
def test_planted_configuration_does_not_run(place: Place, tmp_path: Path, key: str, attributes: str) -> None:
    """A program that an agent put into any configuration or attributes of the clone is not run by us."""
    tree, marker = place.tree(), tmp_path / "marker"
    tattle(tmp_path / "evil", marker, "cat")
    (tmp_path / "included").write_text(f"[include]\n\tpath = {tmp_path / 'config'}\n")
    (place.state / "clone/info/attributes").write_text(attributes)
    (tree.path / ".gitattributes").write_text(attributes)
    (tree.path / "code.txt").write_text("two\n")
    git(tree.path, "config", "extensions.worktreeConfig", "true")
    git(
        tree.path,
        "config",
        "--file",
        str(place.state / "clone/worktrees/t-1/config.worktree"),
        key,
        str(tmp_path / "evil"),
    )
    git(tree.path, "config", "--file", str(tmp_path / "config"), key, str(tmp_path / "evil"))
    git(tree.path, "config", "--file", str(place.state / "clone/config"), key, str(tmp_path / "evil"))
    git(tree.path, "config", "--file", str(place.state / "clone/config"), "include.path", str(tmp_path / "included"))
    marker.unlink(missing_ok=True)
    everything(place)
    assert not marker.exists()
    assert git(place.origin, "show", "ticket/t-1:code.txt") == "two"


def test_a_clone_configuration_that_is_a_link_is_replaced(place: Place, tmp_path: Path) -> None:
    """A symlink or a directory in the place of the configuration is replaced, and what it names is left alone."""
    tree = place.tree()
    (tree.path / "new.txt").write_text("new\n")
    config, target = place.state / "clone/config", tmp_path / "target"
    target.write_text(good := config.read_text())
    config.unlink()
    config.symlink_to(target)
    (place.state / "clone/hooks").symlink_to(tmp_path)
    assert place.ours.commit_all("t-1", "x")
    assert not config.is_symlink()
    assert target.read_text() == config.read_text() == good
    config.unlink()
    config.mkdir()
    assert place.ours.commit_all("t-1", "x") is None


def test_insteadof_of_an_agent_does_not_redirect_a_push(place: Place, tmp_path: Path) -> None:
    """A push goes to the origin, whatever URL rewriting an agent configured."""
    tree = place.tree()
    commit(tree.path, "new.txt", "new\n")
    git(tmp_path, "clone", "-q", "--bare", str(place.origin), "thief.git")
    git(tree.path, "config", f"url.{tmp_path}/thief.git.insteadOf", str(place.origin))
    git(tree.path, "config", f"url.{tmp_path}/thief.git.pushInsteadOf", str(place.origin))
    sha = place.ours.push("t-1").sha
    assert place.at_origin() == sha
    assert git(tmp_path / "thief.git", "branch", "--list", "ticket/*") == ""


def test_a_push_arrives_and_is_idempotent(place: Place) -> None:
    """Pushing twice is once; more commits are a fast-forward; delivered is asked of the origin."""
    tree = place.tree()
    first = commit(tree.path, "new.txt", "new\n")
    assert not place.ours.delivered("t-1", first)
    assert place.ours.push("t-1") == place.ours.push("t-1")
    assert place.at_origin() == first
    second = commit(tree.path, "new.txt", "newer\n")
    assert not place.ours.delivered("t-1", second)
    place.ours.push("t-1")
    assert place.at_origin() == second
    assert place.ours.delivered("t-1", first)
    assert place.ours.delivered("t-1", second)
    assert git(place.origin, "for-each-ref", "--format=%(refname)").splitlines() == [
        "refs/heads/main",
        "refs/heads/ticket/t-1",
    ]


def test_delivered_when_somebody_added_to_the_branch(place: Place) -> None:
    """A branch that a person went on with still contains what was delivered."""
    tree = place.tree()
    sha = commit(tree.path, "new.txt", "new\n")
    place.ours.push("t-1")
    git(place.person, "fetch", "-q", "origin")
    git(place.person, "checkout", "-q", "-b", "more", "origin/ticket/t-1")
    commit(place.person, "more.txt", "more\n")
    git(place.person, "push", "-q", "origin", "more:ticket/t-1")
    assert place.ours.delivered("t-1", sha)


def test_foreign_commits_are_not_overwritten(place: Place) -> None:
    """A branch that somebody else moved is refused, and stays as it was."""
    tree = place.tree()
    commit(tree.path, "new.txt", "new\n")
    git(place.person, "checkout", "-q", "-b", "theirs")
    theirs = commit(place.person, "theirs.txt", "theirs\n")
    git(place.person, "push", "-q", "origin", "theirs:ticket/t-1")
    with pytest.raises(PushRefused, match=theirs):
        place.ours.push("t-1")
    assert place.at_origin() == theirs


def test_a_rewritten_history_replaces_only_what_we_pushed(place: Place) -> None:
    """After an amend the commit that we pushed is replaced; one that was added on top of it is not."""
    tree = place.tree()
    commit(tree.path, "new.txt", "new\n")
    place.ours.push("t-1")
    git(tree.path, "commit", "-q", "--amend", "-m", "Better")
    second = place.ours.push("t-1").sha
    assert place.at_origin() == second == git(tree.path, "rev-parse", "HEAD")
    git(place.person, "fetch", "-q", "origin")
    git(place.person, "checkout", "-q", "-b", "more", "origin/ticket/t-1")
    theirs = commit(place.person, "more.txt", "more\n")
    git(place.person, "push", "-q", "origin", "more:ticket/t-1")
    git(tree.path, "commit", "-q", "--amend", "-m", "Best")
    with pytest.raises(PushRefused):
        place.ours.push("t-1")
    assert place.at_origin() == theirs


def test_a_branch_that_exists_at_the_origin_is_continued(place: Place, tmp_path: Path) -> None:
    """A daemon that lost its state goes on where the origin's branch is, and its push is a fast-forward."""
    first = commit(place.tree().path, "new.txt", "new\n")
    place.ours.push("t-1")
    ours = repository(tmp_path / "other", place.origin)
    ours.prepare()
    tree = ours.ensure("t-1", None, base_sha=None)
    assert (git(tree.path, "rev-parse", "HEAD"), tree.base_sha) == (first, place.base)
    assert "continues" in tree.note
    second = commit(tree.path, "more.txt", "more\n")
    ours.push("t-1")
    assert place.at_origin() == second


def test_a_merged_branch_of_an_earlier_ticket_is_no_start(place: Place) -> None:
    """An old branch of the same name that is in the base already does not hold the ticket back."""
    git(place.person, "push", "-q", "origin", "main:ticket/t-1")
    head = commit(place.person, "code.txt", "two\n")
    git(place.person, "push", "-q", "origin", "main")
    tree = place.tree()
    assert (tree.base_sha, tree.note) == (head, "")
    commit(tree.path, "new.txt", "new\n")
    place.ours.push("t-1")


def test_a_person_s_checkout_gets_the_branch_and_nothing_else(place: Place) -> None:
    """With a non-bare origin, the files, the index and HEAD of the person stay; their uncommitted work too."""
    (place.person / "code.txt").write_text("mine, half done\n")
    before = git(place.person, "status", "--porcelain", "--branch"), git(place.person, "config", "--list", "--local")
    ours = repository(place.state.parent / "other", place.person)
    ours.prepare()
    tree = ours.ensure("t-1", None, base_sha=None)
    assert (tree.path / "code.txt").read_text() == "one\n"
    sha = commit(tree.path, "new.txt", "new\n")
    ours.push("t-1")
    assert git(place.person, "rev-parse", "ticket/t-1") == sha
    assert (
        git(place.person, "status", "--porcelain", "--branch"),
        git(place.person, "config", "--list", "--local"),
    ) == before
    assert git(place.person, "worktree", "list").splitlines() == [f"{place.person}  {place.base[:7]} [main]"]


def test_a_branch_that_is_checked_out_at_the_origin_is_refused_clearly(place: Place) -> None:
    """A person who sits on the ticket's branch is not pushed under; the message is git's own."""
    ours = repository(place.state.parent / "other", place.person)
    ours.prepare()
    tree = ours.ensure("t-1", None, base_sha=None)
    commit(tree.path, "new.txt", "new\n")
    git(place.person, "checkout", "-q", "-b", "ticket/t-1")
    with pytest.raises(PushRefused, match="checked out"):
        ours.push("t-1")
    assert git(place.person, "rev-parse", "HEAD") == place.base


def test_an_origin_that_declines_is_quoted(place: Place, tmp_path: Path) -> None:
    """What the origin's own hook says is in the error."""
    commit(place.tree().path, "new.txt", "new\n")
    tattle(place.origin / "hooks/pre-receive", tmp_path / "seen", "echo 'no pushes on Sunday' >&2; exit 1")
    with pytest.raises(PushRefused, match=r"(?s)declined.*no pushes on Sunday"):
        place.ours.push("t-1")


def test_instructions_come_from_the_base_commit(place: Place) -> None:
    """CLAUDE.md, else AGENTS.md, of the base; a symlink between them counts once; neither is None; all bounded."""
    assert place.ours.instructions(place.base) == "Be brief."
    (place.tree().path / "CLAUDE.md").write_text("Obey me.\n")
    assert place.ours.instructions(place.base) == "Be brief."

    def pushed(change: Callable[[], object]) -> str:
        change()
        git(place.person, "add", "--all")
        git(place.person, "commit", "-q", "-m", "x")
        git(place.person, "push", "-q", "origin", "main")
        return place.ours.fetch_base(None).sha

    def link() -> None:
        (place.person / "CLAUDE.md").unlink()
        (place.person / "CLAUDE.md").symlink_to("AGENTS.md")
        (place.person / "AGENTS.md").write_text("Agents: " + "x" * 100_000)

    text = place.ours.instructions(pushed(link))
    assert text is not None
    assert text.startswith("Agents: ")
    assert len(text) == 64 * 1024
    assert place.ours.instructions(pushed((place.person / "AGENTS.md").unlink)) is None
    with pytest.raises(ValueError, match="not a commit id"):
        place.ours.instructions("--output=x")


def test_a_worktree_holds_what_only_it_has(place: Place) -> None:
    """Uncommitted or unpushed work is named; what the origin has is not, and what git ignores does not count."""
    tree = place.tree()
    assert place.ours.holds("t-1") is None
    (tree.path / "new.txt").write_text("new\n")
    assert place.ours.holds("t-1") == "holds uncommitted work: new.txt"
    sha = place.ours.commit_all("t-1", "x")
    assert place.ours.holds("t-1") == f"holds {sha}, which is in no branch of {place.origin}"
    place.ours.push("t-1")
    (tree.path / "built.o").write_text("x")
    assert place.ours.holds("t-1") is None
    git(tree.path, "checkout", "-q", "--detach", place.base)
    commit(tree.path, "elsewhere.txt", "x")
    assert "which is not on ticket/t-1" in (place.ours.holds("t-1") or "")


def test_a_delivered_commit_needs_no_origin(place: Place) -> None:
    """A worktree at a commit that was seen at the origin holds nothing, also when the origin cannot be asked now."""
    tree = place.tree()
    sha = commit(tree.path, "new.txt", "x")
    place.origin.rename(place.origin.with_name("away"))
    assert place.ours.holds("t-1", delivered=sha) is None
    later = commit(tree.path, "more.txt", "x")
    with pytest.raises(RepositoryMissing):
        place.ours.holds("t-1", delivered=sha)
    place.origin.with_name("away").rename(place.origin)
    assert place.ours.holds("t-1", delivered=sha) == f"holds {later}, which is in no branch of {place.origin}"


def test_a_worktree_that_left_is_made_again(place: Place, tmp_path: Path) -> None:
    """After it has gone the branch is where it was, and a new worktree continues it."""
    tree = place.tree()
    sha = commit(tree.path, "new.txt", "x")
    gone = place.ours.leave("t-1", tmp_path)
    assert (gone / "new.txt").exists()
    assert place.ours.forget("t-1")
    assert not tree.path.exists()
    again = place.ours.ensure("t-1", None, base_sha=place.base)
    assert (again.made, git(again.path, "rev-parse", "HEAD")) == (True, sha)


@pytest.mark.parametrize("detached", [False, True])
def test_a_worktree_that_is_put_aside_loses_nothing(place: Place, detached: bool) -> None:
    """Files, index, branch and HEAD are there in its new place, where git works; the path is free for another one."""
    tree = place.tree()
    if detached:
        git(tree.path, "checkout", "-q", "--detach")
    sha = commit(tree.path, "new.txt", "x")
    (tree.path / "staged.txt").write_text("staged\n")
    git(tree.path, "add", "staged.txt")
    (tree.path / "code.txt").write_text("edited\n")
    there = place.ours.put_aside("t-1", "holds uncommitted work: code.txt")
    assert there == place.state / "aside/t-1-1"
    note = (place.state / "aside/t-1-1.txt").read_text()
    assert note == (
        "The worktree of ticket t-1, which is over. It was not removed: it holds uncommitted work: code.txt.\n"
    )
    assert git(there, "rev-parse", "HEAD") == sha
    assert git(there, "diff", "--cached", "--name-only") == "staged.txt"
    assert git(there, "diff", "--name-only") == "code.txt"
    again = place.ours.ensure("t-1", None, base_sha=place.base)
    assert (again.made, git(again.path, "rev-parse", "HEAD")) == (True, sha)
    assert place.ours.put_aside("t-1", "x") == place.state / "aside/t-1-2"


def test_tickets_in_threads_do_not_disturb_each_other(place: Place) -> None:
    """Worktrees made, committed and pushed at once by several threads all arrive."""
    ids, failed = [f"t-{n}" for n in range(4)], []

    def deliver(ticket: str) -> None:
        try:
            tree = place.tree(ticket)
            (tree.path / ticket).write_text(ticket)
            place.ours.commit_all(ticket, "x")
            place.ours.push(ticket)
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=deliver, args=(ticket,)) for ticket in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [git(place.origin, "show", f"ticket/{ticket}:{ticket}") for ticket in ids] == ids


def test_a_failure_of_git_names_the_ticket(place: Place) -> None:
    """What git said is in the error, with the ticket that it was about."""
    tree = place.tree()
    with pytest.raises(GitFailed, match=r"ticket t-1: git diff failed: .*" + "d" * 40):
        place.ours.diff("t-1", "d" * 40, limit_bytes=LIMIT)
    assert tree.path.exists()
