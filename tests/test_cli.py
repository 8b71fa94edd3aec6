"""The command line: what is refused, in which words, with which exit code, and that nothing accepted is lost."""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runner.config import Config
from tests.shell import PROGRAM, TEXT, Shell

OTHER_UID = 65_534
KEY = "sk-ant-made-up"
AS_OTHER = """
import os, sys
import runner.render, runner.steering, runner.store.effects
from runner.cli import main
if os.geteuid() == 0:
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
del sys.argv[1]
main()
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a command line over a repository that nothing has run with."""
    return Shell(tmp_path)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the daemon a key."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Usage: ticket-runner"),
        (["bogus"], "No such command 'bogus'"),
        (["status", "--bogus"], "No such option: --bogus"),
        (["show"], "Missing argument 'TICKET'"),
        (["show", "a", "b"], "unexpected extra argument"),
        (["events", "--since", "yesterday"], "Invalid value for '--since'"),
        (["status", "--since", "yesterday"], "--since 'yesterday': say 30m, 2h, 3d, or a date as 2026-01-31"),
        (["status", "--since", "99999999999d"], "--since '99999999999d': say"),
        (["status", "--since", "2026-02-30"], "--since '2026-02-30': say"),
        (["add", "-"], "a ticket from standard input needs --id"),
        (["add", "a.md", "--id", ""], "--id is empty"),
        (["release", "a", "--budget-usd", "0"], "release a --budget-usd 0: must be above 0"),
        (["release", "a", "--budget-usd", "-1"], "release a --budget-usd -1: must be above 0"),
        (["release", "a", "--budget-usd", "nan"], "release a --budget-usd nan: must be above 0"),
        (["release", "a", "--budget-usd", "lots"], "release a --budget-usd lots: must be a number of dollars"),
    ],
)
def test_misused_words_are_answered_with_64(shell: Shell, words: list[str], said: str) -> None:
    """A command that makes no sense ends with 64 and one message, and makes nothing."""
    ended = shell(*words)
    assert ended.code == 64
    assert said in ended.err
    assert not shell.state.exists()


@pytest.mark.parametrize("words", [["status"], ["events"], ["events", "--json"], ["check", "--help"]])
def test_a_reader_that_has_gone_ends_a_command_in_silence(shell: Shell, words: list[str]) -> None:
    """What prints into a pipe that nobody reads any more ends as other programs do, by a signal and without a word."""
    shell.know("a")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing) as pipe:
        ended = subprocess.run(
            [PROGRAM, *words], cwd=shell.repository, stdout=pipe, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, b"")


def test_the_installed_program_is_this_one(shell: Shell) -> None:
    """The program that is installed ends like the function, without a traceback."""
    ended = shell.process("status", "--bogus")
    assert (ended.code, ended.out) == (64, "")
    assert ended.err.endswith("Error: No such option: --bogus\n")


@pytest.mark.parametrize("command", ["status", "show a", "events", "diff a", "cancel a", "pause", "check", "start"])
def test_an_unknown_key_stops_every_command(shell: Shell, command: str) -> None:
    """A key that is not known is refused by every command with file, key and the one that was meant."""
    shell.configure("[limits]\ntiket_usd = 5")
    ended = shell(*command.split())
    assert (ended.code, ended.out) == (78, "")
    assert ended.err.startswith("ticket-runner: ticket-runner.toml: limits.tiket_usd: ")
    assert "ticket_usd" in ended.err.partition("tiket_usd")[2]


def test_without_a_configuration_a_way_is_told(shell: Shell) -> None:
    """Where there is no configuration the message says how to make one."""
    shell.file.unlink()
    ended = shell("status")
    assert ended.code == 78
    assert "make one with `ticket-runner init`" in ended.err


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("broken", ["key", "cli", "repository", "database", "directory", "owner"])
def test_what_cannot_work_is_found_by_check_and_stops_the_start(
    shell: Shell, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a start needs and does not have ends `check` and `start` with 78, and the queue stays as it is."""
    assert shell("add", shell.ticket("fix")).code == 0
    wrong, said = break_it(shell, broken, monkeypatch)
    checked = shell("check")
    lines = [line for line in checked.out.splitlines() if line.startswith("WRONG")]
    assert checked.code == 78
    assert any(line.split(maxsplit=1)[1].startswith(wrong) and said in line for line in lines), checked.out
    started = shell("start", "--once")
    assert started.code == 78
    assert said in started.err.splitlines()[-1]
    assert shell.files() == {"fix.md": TEXT.encode()}
    assert KEY not in checked.out + checked.err + started.out + started.err


def break_it(shell: Shell, what: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Take away what a start needs; return which finding of `check` says so, and in which words."""
    match what:
        case "key":
            monkeypatch.delenv("ANTHROPIC_API_KEY")
            return "credential", "no key for Claude: looked at $ANTHROPIC_API_KEY"
        case "cli":
            shell.configure('[agent]\ncli_path = "/nowhere/claude"')
            return "claude code", "/nowhere/claude (agent.cli_path): there is no such program"
        case "repository":
            shell.configure(repository="/nowhere/repo")
            return "repository", "no git repository at /nowhere/repo: correct `repository`: no such path"
        case "database":
            shell.know()
            with sqlite3.connect(shell.home.database) as database:
                database.execute("UPDATE alembic_version SET version_num = '9999'")
            database.close()
            return "database", "the database has schema 9999 and this version of ticket-runner knows up to "
        case "directory":
            (shell.state / "worktrees").touch()
            return "state directory", f"{shell.state}/worktrees cannot be made: File exists"
        case _:
            place = shell.state / "claude"
            place.mkdir()
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory away")
            os.chown(place, OTHER_UID, OTHER_UID)
            return "state directory", f"{place} belongs to user "


@pytest.mark.usefixtures("key")
def test_a_configured_base_that_is_not_there_is_found(shell: Shell) -> None:
    """A base branch that the repository does not have is told with those that it has."""
    shell.configure('[git]\nbase = "trunk"')
    checked = shell("check")
    assert checked.code == 78
    assert "has no branch 'trunk'; it has main: set `base` to one of these" in checked.out


def test_a_configured_base_that_is_not_there_ends_the_start(shell: Shell) -> None:
    """A daemon whose configured base is not there ends with 78 and the key, before it touches a ticket."""
    shell.configure('[git]\nbase = "trunk"')
    shell("add", shell.ticket("fix"))
    started = shell.process("start", "--once", environ={"ANTHROPIC_API_KEY": KEY})
    assert started.code == 78
    assert "ticket-runner: git.base: " in started.err
    assert "has no branch 'trunk'; it has main" in started.err
    assert shell.files() == {"fix.md": TEXT.encode()}


def test_a_ticket_without_a_base_is_held_and_kept(shell: Shell) -> None:
    """A ticket whose own base branch is not there is held with the branch's name, and what can be done about it."""
    own = "---\nbase: gone\n---\n" + TEXT
    shell("add", shell.ticket("own", own))
    assert shell.process("start", "--once", environ={"ANTHROPIC_API_KEY": KEY}).code == 4
    assert shell.files() == {"held/own.md": own.encode()}
    assert "has no branch 'gone'; it has main: make that branch, or `cancel` this" in shell("explain", "own").out


@pytest.mark.usefixtures("key")
def test_a_second_daemon_ends_with_75_and_names_the_first(shell: Shell) -> None:
    """While a process holds the state directory a start ends with 75 and its pid; `check` and `add` go on."""
    shell.home.prepare()
    with shell.home.lock():
        started = shell("start", "--once")
        assert started.code == 75
        assert f"{shell.state} is held by process {os.getpid()}: one daemon at a time" in started.err
        assert f"held by the daemon with pid {os.getpid()}" in shell("check").out
        assert "no daemon runs" not in shell("add", shell.ticket("fix")).out
    assert shell.files() == {"fix.md": TEXT.encode()}


@pytest.mark.parametrize(
    "command", ["show", "events", "effects", "diff", "cancel", "hold", "release", "retry", "answer"]
)
def test_an_unknown_ticket_is_told_with_a_close_one(shell: Shell, command: str) -> None:
    """Every command that takes a ticket refuses an unknown one and names one that may be meant."""
    shell.know("fix-login", "else")
    more = ["some text"] if command == "answer" else []
    ended = shell(command, "fix-logn", *more)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == "ticket-runner: there is no ticket 'fix-logn': did you mean fix-login?\n"
    assert shell(command, "zzz", *more).err.endswith(
        "there is no ticket 'zzz': `ticket-runner status --done` lists all\n"
    )
    assert "\x1b" not in shell(command, "\x1b[31m", *more).err


@pytest.mark.parametrize("command", ["cancel", "hold", "release", "retry", "answer"])
def test_a_file_that_is_no_ticket_yet_cannot_be_steered(shell: Shell, command: str) -> None:
    """A command about a file that nothing has taken in says so, and what to do about it."""
    shell.queue.mkdir(parents=True)
    (shell.queue / "new.md").write_text(TEXT)
    (shell.queue / "bad.md").write_text("---\nbudgt: 1\n---\nDo it.\n")
    more = ["some text"] if command == "answer" else []
    away = f"or move {shell.queue}/new.md away\n"
    waits = "its file is no ticket yet (waits in the folder: nothing has taken it in): `ticket-runner start`, "
    ended = shell(command, "new", *more)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == f"ticket-runner: cannot {command} ticket new: {waits}{away}"
    assert "(not taken: bad.md:2: unknown key `budgt`: did you mean" in shell(command, "bad", *more).err


def test_a_command_that_the_state_does_not_allow_says_what_does(shell: Shell) -> None:
    """A command that is not possible ends with 1 and says what is, and the ticket stays where it is."""
    shell.know("fix")
    assert shell("hold", "fix").out == "fix is held\n"
    assert shell("hold", "fix").err == "ticket-runner: cannot hold ticket fix: it is held already\n"
    assert shell("release", "fix").out == "fix is ready\n"
    assert shell("cancel", "fix").out == "fix is cancelled\n"
    ended = shell("release", "fix")
    assert ended.code == 1
    assert ended.err == "ticket-runner: cannot release ticket fix: it is cancelled; `retry` takes it up again\n"
    assert shell("retry", "fix", "--fresh").out == "fix is ready\n"


def test_before_anything_has_run_the_queue_is_empty(shell: Shell) -> None:
    """Without a database the queue and the log are empty, no ticket is known, and looking makes nothing."""
    status, events, show = shell("status"), shell("events"), shell("show", "fix")
    assert (status.code, events.code, show.code) == (0, 0, 1)
    assert "no tickets" in status.out
    assert events.out == ""
    for ended in (status, events, show):
        assert ended.err.startswith("ticket-runner: nothing has run with this configuration yet: there is no database ")
        assert ended.err.endswith("; `ticket-runner start` begins\n")
    assert shell("diff", "fix").code == 1
    assert shell("effects", "--json").out == "[]\n"
    assert '"lines": []' in shell("status", "--json").out
    assert not shell.state.exists()


def test_another_users_queue_is_told_and_not_shown() -> None:
    """Whoever may not read the state directory is told so, reading and steering, without a traceback."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        shell = Shell(place)
        shell.know("fix")
        shell.state.chmod(0o000 if os.geteuid() else 0o700)
        for words in (["status"], ["cancel", "fix"]):
            child = subprocess.run(
                [sys.executable, "-c", AS_OTHER, str(OTHER_UID), *words, "--config", str(shell.file)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert (child.returncode, child.stdout) == (78, "")
            assert child.stderr.startswith(f"ticket-runner: {shell.state}"), child.stderr
            assert len(child.stderr.splitlines()) == 1
        shell.state.chmod(0o700)


def test_init_makes_what_is_needed_and_no_more(shell: Shell) -> None:
    """`init` writes a configuration that can be read and a sample that can be added, from any place of the checkout."""
    shell.file.unlink()
    inside = shell.repository / "src"
    inside.mkdir()
    ended = shell("init", where=inside)
    assert (ended.code, ended.err) == (0, "")
    config = Config.load(shell.file)
    assert config.repository_path == shell.repository
    assert shell("add", config.state_directory / "sample.md").code == 0
    assert (config.queue_directory / "sample.md").is_file()
    assert sorted(path.name for path in shell.repository.iterdir()) == [".git", "src", "ticket-runner.toml"]


def test_init_writes_over_nothing_unless_told(shell: Shell) -> None:
    """A configuration that is there stays, until `--force` is given."""
    before = shell.file.read_text()
    ended = shell("init")
    assert ended.code == 64
    assert ended.err == f"ticket-runner: {shell.file} exists already: `init --force` writes over it\n"
    assert shell.file.read_text() == before
    assert shell("init", "--force").code == 0
    assert shell.file.read_text() != before


def test_init_wants_a_repository(shell: Shell) -> None:
    """Outside of a checkout `init` says what to do, and makes nothing."""
    ended = shell("init", where=shell.place)
    assert ended.code == 78
    assert f"{shell.place} is in no git repository" in ended.err
    assert [path.name for path in shell.place.iterdir()] == ["repo"]


def test_init_takes_a_url(shell: Shell) -> None:
    """For a URL the configuration is written where one stands; one with a password is refused, and not shown."""
    ended = shell("init", "https://user:made-up@example.com/x.git", where=shell.place)
    assert (ended.code, ended.out) == (64, "")
    assert ended.err.startswith("ticket-runner: the repository has a password in it: name variables")
    assert "made-up" not in ended.err
    assert [path.name for path in shell.place.iterdir()] == ["repo"]
    assert shell("init", "https://example.com/x.git", where=shell.place).code == 0
    assert Config.load(shell.place / "ticket-runner.toml").repository == "https://example.com/x.git"


def test_init_says_that_a_path_is_not_there(shell: Shell) -> None:
    """A path that is not there is told as that."""
    ended = shell("init", shell.place / "nope")
    assert (ended.code, ended.err) == (78, f"ticket-runner: {shell.place / 'nope'}: there is no such path\n")


def test_init_tells_what_it_cannot_write(shell: Shell) -> None:
    """A file that cannot be written is named with the reason."""
    shell.file.unlink()
    shell.file.mkdir()
    assert shell("init", "--force").err == f"ticket-runner: {shell.file} cannot be written: Is a directory\n"
