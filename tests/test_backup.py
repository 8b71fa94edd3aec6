"""What a backup holds, what comes back from it, and that a ticket goes on where it stood."""

import io
import json
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

import pytest

from runner import transcript
from runner.archive import NotABackup
from runner.backup import backup
from runner.errors import ConfigError, RunnerError
from runner.home import Home
from runner.offline import Reply, ToolUse, final_text_of
from runner.parts import local_copies
from runner.restore import restore
from runner.session import session_id
from runner.store import Store, effects, tickets
from runner.store.effects import EffectState, Wish
from tests.daemons import COST, Site, bash, say, wait_until_gone
from tests.homes import Place, configured, differences, git, opened, repaired

SECRET = "sk-ant-a-secret-of-the-operator"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A home."""
    yield from opened(tmp_path)


def members(file: Path) -> dict[str, bytes]:
    """Return what is in a backup."""
    with tarfile.open(file) as tar:
        return {each.name: content.read() for each in tar if (content := tar.extractfile(each)) is not None}


def said(lines: Iterator[str]) -> str:
    """Return all that a command says."""
    return "\n".join(lines)


def test_a_worktree_comes_back_as_it_was(here: Place, tmp_path: Path) -> None:
    """Commits, branches and every file that git does not ignore come back; nothing was changed by saving them."""
    tree = here.claim("t")
    (tree / "old.txt").write_text("old")
    (tree / "gone.txt").write_text("gone")
    (tree / ".gitignore").write_text("ignored/\n")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "-m", "Work")
    git(tree, "branch", "side")
    (tree / "old.txt").write_text("changed")
    git(tree, "add", "old.txt")
    (tree / "gone.txt").unlink()
    (tree / "new.sh").write_text("#!/bin/sh\n")
    (tree / "new.sh").chmod(0o755)
    (tree / "link").symlink_to("/etc/hostname")
    (tree / "ignored").mkdir()
    (tree / "ignored/big").write_text("big")
    status, index = git(tree, "status", "--porcelain"), (here.home.clone / "worktrees/t/index").read_bytes()
    said(backup(here.config, tmp_path / "b", {}))
    assert git(tree, "status", "--porcelain") == status
    assert (here.home.clone / "worktrees/t/index").read_bytes() == index
    assert list(here.home.clone.glob("refs/saved/*")) == []
    there = configured(tmp_path, "other")
    told = said(restore(there, tmp_path / "b"))
    assert f"what they have in {here.home.path} is in {Home.of(there).path}\n" in told
    moved = Home.of(there).worktrees / "t"
    assert git(moved, "log", "--format=%s %D", "-1") == "Work HEAD -> ticket/t, side"
    assert git(moved, "diff", "--name-status") == "D\tgone.txt\nM\told.txt"
    assert git(moved, "ls-files", "--others").split() == ["link", "new.sh"]
    assert (moved / "old.txt").read_text() == "changed"
    assert (moved / "link").readlink() == Path("/etc/hostname")
    assert os.access(moved / "new.sh", os.X_OK)
    assert not (moved / "ignored").exists()
    assert git(moved, "rev-parse", "--git-common-dir") == str(Home.of(there).clone)
    assert local_copies(there).ensure("t", None, base_sha=git(moved, "rev-parse", "HEAD~1")).made is False
    git(moved, "fsck", "--strict")


def test_what_is_left_out_is_said(here: Place, tmp_path: Path) -> None:
    """A repository in a worktree and a merge under way are not in a backup, which says so; HEAD is where it was."""
    tree = here.claim("t")
    (tree / "inner").mkdir()
    git(tree / "inner", "init", "--quiet")
    git(tree / "inner", "commit", "--quiet", "--allow-empty", "-m", "Inner")
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "Work")
    git(tree, "checkout", "--quiet", "--detach")
    (tree / "file").write_text("theirs")
    git(tree, "add", "file")
    git(tree, "commit", "--quiet", "-m", "Theirs")
    head = git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "--quiet", "--detach", "ticket/t~1")
    git(tree, "merge", "--quiet", "--no-ff", "--no-commit", head)
    here.claim("u")
    told = said(backup(here.config, tmp_path / "b", {}))
    assert "t: not in it: the repository inner/ in it, its MERGE_HEAD" in told
    assert "u: not in it" not in told
    there = configured(tmp_path, "there")
    said(restore(there, tmp_path / "b"))
    moved = Home.of(there).worktrees / "t"
    assert git(moved, "rev-parse", "HEAD") == git(tree, "rev-parse", "HEAD")
    assert git(moved, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert git(moved, "ls-files", "--others") == "file"
    assert git(moved, "log", "--format=%s", "ticket/t") == "Work\nBegin"


def test_a_shallow_repository_stays_one(tmp_path: Path) -> None:
    """What a clone of a shallow origin does not have is missing from its restored copy, and nothing else is."""
    configured(tmp_path)
    git(tmp_path / "repo", "commit", "--quiet", "--allow-empty", "-m", "Second")
    (tmp_path / "repo").rename(tmp_path / "whole")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{tmp_path}/whole", "repo")
    for here in opened(tmp_path):
        here.claim("t")
        said(backup(here.config, tmp_path / "b", {}))
    there = configured(tmp_path, "there")
    said(restore(there, tmp_path / "b"))
    for copy in ("clone", "outbox.git"):
        assert git(Home.of(there).path / copy, "log", "--all", "--format=%s") == "Second"
        git(Home.of(there).path / copy, "fsck", "--strict")


def test_what_is_written_meanwhile_agrees(here: Place, tmp_path: Path) -> None:
    """Of a home that tickets, transcripts and commits are written to all the time, every backup agrees with itself."""
    begun, over = Event(), Event()

    def write() -> None:
        for number in range(10_000):
            if over.is_set():
                return
            tree = here.claim(f"t{number}")
            run = here.converse(f"t{number}", {"type": "user"}, {"type": "cost-state", "totalCostUSD": 0.01})
            (tree / "work.txt").write_text(f"{number}")
            git(tree, "add", ".")
            git(tree, "commit", "--quiet", "-m", "Work")
            if number % 2:
                here.end(run, 10_000)
            begun.set()

    writing = Thread(target=write)
    writing.start()
    assert begun.wait(30)
    try:
        for number in range(3):
            said(backup(here.config, tmp_path / f"b{number}", {}))
    finally:
        over.set()
        writing.join()
    counts = []
    for number in range(3):
        there = configured(tmp_path, f"there-{number}")
        said(restore(there, tmp_path / f"b{number}"))
        repaired(there)
        assert differences(there) == []
        counts.append(len(list(Home.of(there).worktrees.iterdir())))
    assert sorted(counts) == counts
    assert counts[0] > 0
    assert counts[0] < counts[-1]


def test_a_backup_is_private_whole_and_without_secrets(here: Place, tmp_path: Path) -> None:
    """It is readable by its owner, replaces nothing, leaves nothing beside it and blots out the key in transcripts."""
    here.claim("t")
    before = {"type": "user", "text": f"echo {SECRET}"}
    here.converse("t", before, {"type": "cost-state", "totalCostUSD": 0})
    file = tmp_path / "b"
    told = said(backup(here.config, file, {"ANTHROPIC_API_KEY": SECRET}))
    assert "no secret is known" not in told
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    held = members(file)
    assert [name for name, content in held.items() if SECRET.encode() in content] == []
    (kept,) = [content for name, content in held.items() if name.startswith("transcripts/t/")]
    assert len(kept) == here.transcript("t").stat().st_size
    assert b"echo ***" in kept
    with pytest.raises(RunnerError, match="is there already"):
        said(backup(here.config, file, {}))
    assert members(file) == held
    assert "no secret is known here" in said(backup(here.config, tmp_path / "b2", {}))


def test_a_directory_that_is_not_there_is_named(here: Place, tmp_path: Path) -> None:
    """What keeps a backup from being written is said of its directory, and not of a file that was never there."""
    with pytest.raises(RunnerError, match=rf"^{tmp_path}/no/such: No such file or directory$"):
        said(backup(here.config, tmp_path / "no/such/b", {}))


def test_a_backup_goes_into_an_empty_directory_only(here: Place, tmp_path: Path) -> None:
    """Anything but empty directories in the way is left alone and refused; a queue of another place stays."""
    here.claim("t")
    (here.home.queue / "t.md").write_text("text")
    said(backup(here.config, tmp_path / "b", {}))
    there = configured(tmp_path, "there")
    Home.of(there).prepare()
    (Home.of(there).queue / "mine.md").write_text("mine")
    with pytest.raises(RunnerError, match="is not empty"):
        said(restore(there, tmp_path / "b"))
    assert not (Home.of(there).path / "clone").exists()
    (Home.of(there).queue / "mine.md").unlink()
    said(restore(there, tmp_path / "b"))
    assert (Home.of(there).queue / "t.md").read_text() == "text"
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "mine.md").write_text("mine")
    third = configured(tmp_path, "third", queue_directory=str(shared))
    assert "stays as it is" in said(restore(third, tmp_path / "b", tmp_path / "elsewhere"))
    assert [path.name for path in shared.iterdir()] == ["mine.md"]
    assert (tmp_path / "elsewhere/ticket-runner.sqlite3").exists()
    assert not Home.of(third).path.exists()


def test_what_was_wanted_is_looked_up_first(here: Place, tmp_path: Path) -> None:
    """What a working daemon was to do when the backup was made may be done by now; what waits for a person waits on."""
    here.claim("t")
    for operation, approval in (("deploy", False), ("drop", True)):
        wish = Wish(f"folder/t/1/{operation}", "t", 1, operation, operation, {}, needs_approval=approval)
        here.store.transact(effects.want, wish, limit=9)
    states = {}
    for name in ("idle", "working"):
        if name == "working":
            with here.home.lock():
                said(backup(here.config, tmp_path / name, {}))
        else:
            said(backup(here.config, tmp_path / name, {}))
        there = configured(tmp_path, f"of-{name}")
        assert ("see that it is stopped" in said(restore(there, tmp_path / name))) == (name == "working")
        with closing(Store.open(there.database_url, read_only=True)) as store:
            states[name] = {row.operation: row.state for row in store.read(effects.effects)}
            home = Home.of(there).name
            claims = store.read(effects.abandoned_claims, home=home, epoch=here.epoch + 1)
            assert [row.operation for row in claims] == (["deploy"] if name == "working" else [])
    wanted = EffectState.WANTED
    assert states == {
        "idle": {"deploy": wanted, "drop": wanted},
        "working": {"deploy": EffectState.CLAIMED, "drop": wanted},
    }


def rewritten(file: Path, to: Path, *more: tuple[tarfile.TarInfo, bytes], manifest: bytes | None = None) -> Path:
    """Write a backup again, with more members and perhaps another manifest."""
    with tarfile.open(to, "w:gz") as tar:
        for name, content in members(file).items():
            changed = manifest if manifest is not None and name == "manifest.json" else content
            info = tarfile.TarInfo(name)
            info.size = len(changed)
            tar.addfile(info, io.BytesIO(changed))
        for info, content in more:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return to


def link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    """Return a member that is no regular file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("queue/../../outside"),
        tarfile.TarInfo("/tmp/outside"),  # noqa: S108  nothing is written there
        tarfile.TarInfo("clone/config"),
        tarfile.TarInfo("queue"),
        link(tarfile.SYMTYPE, "queue/link", "/etc"),
        link(tarfile.LNKTYPE, "queue/link", "manifest.json"),
        link(tarfile.FIFOTYPE, "queue/pipe", ""),
    ],
    ids=lambda member: f"{member.type.decode()} {member.name}",
)
def test_a_member_that_no_backup_has_is_refused(here: Place, tmp_path: Path, member: tarfile.TarInfo) -> None:
    """Whatever would leave the directory, or is no regular file of a known name, is refused and nothing is filled."""
    said(backup(here.config, tmp_path / "b", {}))
    bad = rewritten(tmp_path / "b", tmp_path / "bad", (member, b""))
    there = configured(tmp_path, "there")
    with pytest.raises(NotABackup, match="no backup has"):
        said(restore(there, bad))
    assert [path.name for path in Home.of(there).path.iterdir()] == ["lock"]
    assert not (tmp_path / "outside").exists()
    said(restore(there, tmp_path / "b"))


def test_a_file_that_is_no_backup_is_refused(here: Place, tmp_path: Path) -> None:
    """A file that is cut off, of another kind, or of a later format is refused by name."""
    here.claim("t")
    file = tmp_path / "b"
    said(backup(here.config, file, {}))
    manifest = json.loads(members(file)["manifest.json"])
    whole = file.read_bytes()
    bad = {
        "cut": whole[: len(whole) // 2],
        "garbled": whole[:200] + bytes(200) + whole[400:],
        "text": b"no archive",
        "later": rewritten(file, tmp_path / "l", manifest=json.dumps(manifest | {"format": 2}).encode()).read_bytes(),
    }
    evil, outside = (
        json.dumps(manifest | {"worktrees": [manifest["worktrees"][0] | change]}).encode()
        for change in ({"ref": "--force"}, {"ticket": "../outside"})
    )
    bad["outside"] = rewritten(file, tmp_path / "o", manifest=outside).read_bytes()
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(NotABackup, match=name):
            said(restore(configured(tmp_path, f"of-{name}"), tmp_path / name))
    rewritten(file, tmp_path / "evil", manifest=evil)
    with pytest.raises(RunnerError, match="no branch"):
        said(restore(configured(tmp_path, "of-evil"), tmp_path / "evil"))
    with pytest.raises(RunnerError, match="No such file"):
        said(restore(configured(tmp_path, "of-none"), tmp_path / "none"))


def test_another_kind_of_database_is_refused(here: Place, tmp_path: Path) -> None:
    """A backup with a SQLite file does not go beside a PostgreSQL database."""
    said(backup(here.config, tmp_path / "b", {}))
    url = "postgresql+psycopg://nobody@localhost/nothing"
    with pytest.raises(ConfigError, match="another kind"):
        said(restore(configured(tmp_path, "there", database_url=url), tmp_path / "b"))


@pytest.mark.proof
def test_a_postgresql_database_is_dumped_by_its_own_tool(tmp_path: Path, postgresql: Callable[[], str]) -> None:
    """The backup says so and has all the rest; a database without the dump is refused, and with it is moved."""
    url = postgresql()
    here = Place(tmp_path, {"database_url": url})
    with closing(here.store):
        here.claim("t")
        here.end(here.converse("t", {"type": "user"}), 0)
        assert "dump it with pg_dump BEFORE" in said(backup(here.config, tmp_path / "b", {}))
        assert "database.sqlite3" not in members(tmp_path / "b")
        with pytest.raises(ConfigError, match="nothing has run"):
            said(restore(configured(tmp_path, "there", database_url=postgresql()), tmp_path / "b"))
        other = postgresql()
        Store.open(other).close()
        with pytest.raises(RunnerError, match="load the dump"):
            said(restore(configured(tmp_path, "there", database_url=other), tmp_path / "b"))
        there = configured(tmp_path, "there", database_url=url)
        said(restore(there, tmp_path / "b"))
        assert here.store.read(tickets.get, "t").home == Home.of(there).name
        assert differences(there) == []


@pytest.mark.timeout(180)
def test_a_ticket_goes_on_elsewhere(tmp_path: Path) -> None:
    """Backed up in a tool, killed and restored at another path, a ticket resumes its session and repeats nothing."""
    sent = tmp_path / "sent"
    deploys = {"description": "Deploy.", "command": f"cat >> {sent}; echo >> {sent}"}
    asked = Reply(
        (
            ToolUse("mcp__runner__comment", {"operation": "plan", "body": "I begin."}),
            ToolUse("mcp__runner__deploy", {"operation": "deploy", "version": "1"}),
        )
    )
    with Site.at(tmp_path) as site:
        settings = {"effects.deploy": deploys, "effects.deploy.input": {"version": "Which."}}
        site.configure(**settings)
        site.plays(
            bash("echo one > one.txt; git add one.txt; git commit -qm One; echo two > two.txt"),
            asked,
            bash("touch in-tool; sleep 60; touch too-late"),
            asked,
            bash("rm in-tool; echo three > three.txt; pwd > where.txt"),
            say("Done."),
        )
        site.add("t")
        daemon = site.start()
        site.waits_in_tool("t", "in-tool")
        site.tell("backup", str(tmp_path / "b"))
        old, left = site.home, site.processes("t")
        daemon.kill()
        wait_until_gone(left)
        shutil.move(old.path, tmp_path / "gone")
        site.configure(state_directory="elsewhere/new", **settings)
        site.home = Home.of(site.config)
        told = site.tell("restore", str(tmp_path / "b"))
        assert "see that it is stopped" in told
        assert "run t/1 is open" in site.tell("fsck", code=1)
        file = f"{session_id('folder', 't', 1)}.jsonl"
        assert (transcript.directory(site.home.claude, site.worktree("t")) / file).is_file()
        calls = len(site.calls)
        assert site.works_once() == 0
        shown = site.show("t")
        assert (shown.ticket.state, shown.kinds) == ("done", [("first", "orphaned"), ("resumed", "finished")])
        assert {call.session_id for call in site.calls} == {session_id("folder", "t", 1)}
        assert {run.session for run in shown.runs} == {session_id("folder", "t", 1)}
        assert f"it is `{site.worktree('t')}` now" in final_text_of(site.calls[calls].body)
        assert len(sent.read_text().splitlines()) == 1
        comments = [path.read_text() for path in (site.home.queue / "comments/t").iterdir()]
        assert sorted(comments) == ["Done on ticket/t.\n\nDone.", "I begin."]
        assert site.delivered("t") == ["Work on t", "One"]
        assert site.git("show", "ticket/t:two.txt", "ticket/t:three.txt") == "two\nthree"
        assert site.git("show", "ticket/t:where.txt") == str(site.worktree("t"))
        assert [run.cost.microusd for run in shown.runs if run.cost] == [3 * COST, 3 * COST]
        assert site.tell("fsck") == ""
        assert not old.path.exists()
