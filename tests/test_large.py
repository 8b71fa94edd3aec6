"""Files that git-lfs keeps, with the real git-lfs where it is installed: had, worked on and sent."""

import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.worktree import Repository, WorktreeRefused
from tests.test_worktree import commit, git, repository

needs_lfs = pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed here")
CONFIGURED = {"clean": "git-lfs clean -- %f", "smudge": "git-lfs smudge -- %f", "required": "true"}
ATTRIBUTES = "*.bin filter=lfs diff=lfs merge=lfs -text\n"
LARGE = b"large " * 10_000


@dataclass(frozen=True)
class Here:
    """A repository with a large file, and ours of it."""

    origin: Path
    state: Path
    ours: Repository
    base: str


@pytest.fixture
def here(tmp_path: Path) -> Here:
    """Return a repository whose .gitattributes, in a folder, gives files to git-lfs."""
    origin = tmp_path / "origin"
    (origin / "assets").mkdir(parents=True)
    git(origin, "init", "-q", "-b", "main")
    if shutil.which("git-lfs"):
        for name, line in CONFIGURED.items():
            git(origin, "config", f"filter.lfs.{name}", line)
    (origin / "assets/one.bin").write_bytes(LARGE)
    (origin / "assets/.gitattributes").write_text(ATTRIBUTES)
    git(origin, "add", ".")
    git(origin, "commit", "-qm", "Begin")
    ours = repository(tmp_path / "state", origin)
    ours.prepare()
    return Here(origin, tmp_path / "state", ours, ours.fetch_base(None).sha)


def kept(where: Path, content: bytes) -> bool:
    """Say whether git-lfs of a repository has a content."""
    oid = hashlib.sha256(content).hexdigest()
    return (where / "lfs/objects" / oid[:2] / oid[2:4] / oid).is_file()


@needs_lfs
def test_large_files_are_had_before_work_and_sent_before_the_branch(here: Here) -> None:
    """A worktree has contents and not pointers, looks unchanged, and what is made in it arrives with its branch."""
    tree = here.ours.ensure("t-1", None, base_sha=None)
    assert here.ours.fill("t-1", tree.base_sha, update=False) == ("files of git-lfs",)
    assert (tree.path / "assets/one.bin").read_bytes() == LARGE
    assert here.ours.facts("t-1", tree.base_sha).changed is False
    (tree.path / "assets/two.bin").write_bytes(LARGE * 2)
    (tree.path / "assets/three.bin").write_bytes(LARGE * 3)
    git(tree.path, "add", "assets/two.bin")
    subprocess.run(["git", "commit", "-qm", "As an agent"], cwd=tree.path, check=True)
    here.ours.commit_all("t-1", "As the daemon")
    here.ours.push("t-1")
    for name, count in (("two", 2), ("three", 3)):
        assert git(here.origin, "show", f"ticket/t-1:assets/{name}.bin").startswith("version https://git-lfs")
        assert kept(here.origin / ".git", LARGE * count)


@needs_lfs
def test_filling_again_leaves_work_alone(here: Here) -> None:
    """What an agent has changed is not put back by a second look."""
    tree = here.ours.ensure("t-1", None, base_sha=None)
    here.ours.fill("t-1", tree.base_sha, update=False)
    (tree.path / "assets/one.bin").write_bytes(b"edited")
    here.ours.fill("t-1", tree.base_sha, update=False)
    assert (tree.path / "assets/one.bin").read_bytes() == b"edited"


@needs_lfs
def test_what_the_origin_has_lost_holds_the_ticket(here: Here) -> None:
    """A content that cannot be had refuses the worktree, with what git-lfs said."""
    shutil.rmtree(here.origin / ".git/lfs")
    tree = here.ours.ensure("t-1", None, base_sha=None)
    with pytest.raises(WorktreeRefused, match="has files of git-lfs that cannot be had"):
        here.ours.fill("t-1", tree.base_sha, update=False)


def test_without_git_lfs_no_ticket_is_worked_on(tmp_path: Path, here: Here) -> None:
    """Where git-lfs is missing a base that needs it is refused before any work, and it is said what to install."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("git", "env", "timeout", "setpriv", "sh", "true"):
        if (found := shutil.which(name)) is not None:
            (programs / name).symlink_to(found)
    script = (
        "import sys; from tests.test_worktree import repository; from pathlib import Path;"
        " ours = repository(Path(sys.argv[1]), sys.argv[2]); print(ours.unfit(sys.argv[3], update=True))"
    )
    command = [sys.executable, "-c", script, str(here.state), str(here.origin), here.base]
    done = subprocess.run(command, env=os.environ | {"PATH": str(programs)}, capture_output=True, text=True, check=True)
    assert done.stdout == "its base keeps files with git-lfs, which is not installed here: install it\n"


def test_large_files_that_come_with_a_merge_are_had(tmp_path: Path) -> None:
    """Where the base begins to keep files with git-lfs, those of what was merged are fetched and checked out."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    commit(origin, "README.md", "x\n")
    ours = repository(tmp_path / "state", origin)
    ours.prepare()
    ours.ensure("t-1", None, base_sha=None)
    base = commit(origin, ".gitattributes", ATTRIBUTES)
    stand_in = tmp_path / "programs/git-lfs"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    stand_in.chmod(0o755)
    script = (
        "import sys; from tests.test_worktree import repository; from pathlib import Path;"
        " repository(Path(sys.argv[1]), sys.argv[2]).merge_base_into('t-1', None, 'x')"
    )
    path = f"{stand_in.parent}:{os.environ['PATH']}"
    command = [sys.executable, "-c", script, str(tmp_path / "state"), str(origin)]
    subprocess.run(command, env=os.environ | {"PATH": path}, check=True)
    assert (tmp_path / "asked").read_text().splitlines() == [f"fetch origin {base}", "checkout"]


def test_a_repository_without_large_files_needs_no_git_lfs(tmp_path: Path) -> None:
    """Another filter, or the words in another file, are none of ours."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    (origin / ".gitattributes").write_text("*.txt filter=other\n")
    commit(origin, "README.md", "filter=lfs\n")
    ours = repository(tmp_path / "state", origin)
    ours.prepare()
    base = ours.fetch_base(None).sha
    assert ours.unfit(base, update=False) is None
    ours.ensure("t-1", None, base_sha=None)
    assert ours.fill("t-1", base, update=False) == ()
