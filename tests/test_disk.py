"""`disk`: what the home holds, told without harm, and what is due removed on demand."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from runner import disk
from runner.disk import Usage, size
from runner.events import Name
from runner.retention import Kept
from runner.store import tickets
from tests.daemons import Site
from tests.homes import Place, opened
from tests.shell import PROGRAM, Shell
from tickets.ticket import Finished, Held, Reason

DAY_US = 24 * 3600 * 1_000_000
MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Place]:
    """A home with a done and a held ticket, and 1 MiB in the worktree of each."""
    for place in opened(tmp_path):
        for ticket, fact in (("done", Finished(1)), ("held", Held(1, Reason.OPERATOR))):
            (place.claim(ticket) / "large").write_bytes(b"x" * MIB)
            place.end(place.converse(ticket, {"type": "user"}), 1)
            place.store.transact(tickets.apply, ticket, fact)
        yield place


def look(here: Place) -> Usage:
    """Return what there is."""
    return disk.usage(here.config, *here.store.read(disk.rows_here, here.home.name))


def test_all_of_the_home_is_told(here: Place) -> None:
    """The parts add up to what the directory takes, each ticket has its own, and its end in time."""
    (here.home.path / "unknown.tar").write_bytes(b"x" * 4096)
    view = look(here)
    parts = {part.name: part.size_bytes for part in view.parts}
    assert parts["worktrees"] >= 2 * MIB
    assert abs(sum(parts.values()) + 4096 - size(here.home.path)) < 64 * 1024
    assert view.other == ["unknown.tar"]
    lefts = {left.ticket: left for left in view.tickets}
    assert lefts.keys() == {"done", "held"}
    assert lefts["done"].size_bytes.keys() == {Kept.WORKTREE, Kept.TRANSCRIPTS}
    assert lefts["done"].size_bytes[Kept.WORKTREE] >= MIB
    since_us = here.store.read(tickets.get, "done").changed_at_us
    assert lefts["done"].removed_us == {"worktree": since_us + 7 * DAY_US, "transcripts": since_us + 30 * DAY_US}
    assert lefts["held"].removed_us == {}
    assert view.free_bytes is not None


def test_links_pipes_and_many_names(tmp_path: Path) -> None:
    """A symlink counts as itself, a pipe is not opened, a file with two names counts once, what is gone as nothing."""
    outside, place = tmp_path / "outside", tmp_path / "place"
    place.mkdir()
    outside.write_bytes(b"x" * MIB)
    before = size(place)
    (place / "link").symlink_to(outside)
    (place / "up").symlink_to(tmp_path)
    os.mkfifo(place / "pipe")
    assert size(place) < before + 64 * 1024
    (place / "one").write_bytes(b"x" * MIB)
    (place / "two").hardlink_to(place / "one")
    assert MIB <= size(place) - before < MIB + 64 * 1024
    assert size(tmp_path / "nowhere") == 0


@pytest.fixture
def shell(here: Place) -> Shell:
    """Return the command line of the home, whose worktrees go at once."""
    return Shell(here.root, '[keep]\nworktrees_days = 0\ntranscripts_days = "forever"')


def test_the_command_tells_it_and_removes_what_is_due(here: Place, shell: Shell) -> None:
    """With the daemon down `disk` tells what is large and when it goes, and `--clean` removes it, work put aside."""
    precious = here.home.worktrees / "done/precious\x1b[31m.txt"
    precious.touch()
    said = shell("disk").out
    assert re.search(r"^  worktrees +2\.\d MiB$", said, re.MULTILINE)
    assert re.search(r"^  done, done: worktree 1\.\d MiB \(due\), transcripts [\d.]+ KiB \(kept\)$", said, re.MULTILINE)
    assert re.search(r"^  held, held: worktree 1\.\d MiB, transcripts [\d.]+ KiB$", said, re.MULTILINE)
    assert "no ticket starts below 1.0 GiB" in said
    (here.home.make_tmp("done") / "large").write_bytes(b"x" * 2 * MIB)
    said = shell("disk", "--clean").out
    assert re.search(r"^freed 2\.\d MiB\n/", said, re.MULTILINE)
    assert "done: worktree put aside, since it holds uncommitted work: " in said
    assert f"put aside: {here.home.aside}/done-1: The worktree of ticket done, which is over." in said
    assert "\x1b" not in said
    assert "nothing is due" in shell("disk", "--clean").out
    view = json.loads(shell("disk", "--json").out)
    assert [left["ticket"] for left in view["tickets"]] == ["held", "done"]
    assert view["aside"][0].startswith(f"{here.home.aside}/done-1: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_what_belongs_to_another_user_keeps_nothing_else(here: Place, shell: Shell) -> None:
    """What a container left cannot be removed, is told each time, and keeps nothing else from being removed."""
    theirs = here.home.make_tmp("done") / "theirs"
    theirs.mkdir()
    (theirs / "cache").touch()
    os.chown(theirs, 65_534, 65_534)
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    clean = [*powerless, str(PROGRAM), "disk", "--clean", "--config", str(shell.file)]
    for _ in range(2):
        said = subprocess.run(clean, capture_output=True, text=True, check=True).stdout
        (left,) = here.home.trash.iterdir()
        assert f"{left} cannot be removed, since some of it belongs to another user" in said
        assert not here.home.tmp_of("done").exists()
        (here.home.make_tmp("done") / "ours").touch()


def test_another_holder_of_the_home_is_left_alone(here: Place, shell: Shell) -> None:
    """What holds the home and answers nobody is not worked beside: nothing is removed."""
    with here.home.lock():
        ended = shell("disk", "--clean")
    assert (ended.code, f"held by process {os.getpid()}" in ended.err) == (75, True)
    assert (here.home.worktrees / "done").exists()


def test_nothing_has_run_yet(tmp_path: Path) -> None:
    """Before any start there is little to tell, and it is told."""
    said = Shell(tmp_path)("disk")
    assert said.code == 0
    assert "free on this disk" in said.out


def test_looking_needs_neither_the_sdk_nor_git(tmp_path: Path) -> None:
    """The command imports nothing that takes long."""
    shell = Shell(tmp_path)
    script = "import sys; from runner.cli import main\ntry: main()\nexcept SystemExit: pass\n"
    script += "print(sorted({'claude_agent_sdk', 'git', 'runner.worktree'} & sys.modules.keys()))"
    command = [sys.executable, "-c", script, "disk", "--config", str(shell.file)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1] == "[]"


@pytest.mark.timeout(120)  # a daemon's start
def test_a_daemon_removes_at_its_start_and_when_it_is_told(tmp_path: Path) -> None:
    """A daemon looks when it starts, and once more for `--clean`, which tells what is there then, while it goes on."""
    with Site.at(tmp_path, keep={"worktrees_days": 0}) as site:
        here = Place(tmp_path)
        with closing(here.store) as store:
            here.claim("done")
            store.transact(tickets.apply, "done", Finished(1))
        site.start()
        site.wait_for(Name.WORKTREE_REMOVED, "done")
        assert not (site.home.worktrees / "done").exists()
        own = site.home.make_tmp("done")
        (own / "large").write_bytes(b"x" * MIB)
        first, second, *_ = site.tell("disk", "--clean").splitlines()
        assert (first, second) == ("freed 1.0 MiB", str(site.home.path))
        assert not own.exists()
        assert site.tell("disk", "--clean").startswith("nothing is due\n")
