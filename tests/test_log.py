"""The log of the process: how a line looks for a program, for the journal and for a person, and what is never in it."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner import log
from runner.errors import Exit
from runner.events import Event, Name
from runner.redact import MARK, Redactor
from runner.store import Store, Tx
from tests.shell import PROGRAM, Shell, read_back, text_stream

SECRET = "s3cret-and-long"
EVENT = Event(Name.RUN_ENDED, "fix", 3, 1_000_000, "fix/1", {"outcome": "finished", "cost_microusd": 5, "gone": None})


@dataclass(frozen=True)
class Opaque:
    """A value that JSON has no form for."""

    text: str


@pytest.fixture(autouse=True)
def _no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing say that standard error is the journal."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)


def lines(say: Callable[[], None], *secrets: str) -> list[str]:
    """Return what is logged to a stream that is no terminal."""
    stream = text_stream()
    log.configure(Redactor.of(secrets), stream)
    say()
    return read_back(stream).splitlines()


def on_a_terminal(say: Callable[[], None], *secrets: str) -> str:
    """Return what is logged to a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        log.configure(Redactor.of(secrets), stream)
        say()
        stream.write("\0")
        stream.flush()
        seen = b""
        while not seen.endswith(b"\0"):
            seen += os.read(ours, 65_536)
    os.close(ours)
    return seen.decode()


def fail(value: object) -> None:
    """Log a defect whose exception has `value` in it, and in a variable around it."""
    try:
        cannot(value)
    except ValueError:
        log.defect("claim.failed", ticket="fix", near={"inner": [[value], Opaque(str(value))]})


def cannot(value: object) -> None:
    """Fail because of `value`."""
    raise ValueError(f"cannot do {value}")


def test_an_event_is_one_line_of_json() -> None:
    """An event is a line with its name, ids, payload, level and the time; the values keep their types."""
    (line,) = lines(lambda: log.show(EVENT))
    told = json.loads(line)
    assert told.pop("timestamp").endswith("Z")
    assert told == {
        "event": "run.ended",
        "level": "info",
        "ticket": "fix",
        "run": "fix/1",
        "outcome": "finished",
        "cost_microusd": 5,
        "gone": None,
    }


def test_what_concerns_no_ticket_names_none() -> None:
    """An event of the daemon has neither ticket nor run."""
    (line,) = lines(lambda: log.show(Event(Name.DAEMON_STARTED, "", 1, 1, None, {"pid": 1})))
    assert json.loads(line).keys() == {"event", "level", "timestamp", "pid"}


@pytest.mark.parametrize("name", Name)
def test_what_a_person_may_want_to_look_at_is_a_warning(name: Name) -> None:
    """An event is a warning when it is among those, else information; never an error."""
    (line,) = lines(lambda: log.show(Event(name, "fix", 1, 1)))
    assert json.loads(line)["level"] == ("warning" if name in log.WARNINGS else "info")


def test_a_line_break_makes_no_second_line() -> None:
    """Whatever is in a value, an event stays one line, and no control character is in it."""
    (line,) = lines(lambda: log.warn("store.unavailable", error="a\n<0>{}\r\x1b[2J\u2028b"))
    assert json.loads(line)["error"] == "a\n<0>{}\r\x1b[2J\u2028b"
    assert line.isascii()
    assert line.isprintable()


def test_the_journal_gets_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the journal each line begins with its syslog priority, and JSON follows."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")

    def say() -> None:
        log.show(EVENT)
        log.show(Event(Name.TICKET_HELD, "fix", 4, 1))
        log.warn("lease.not_renewed")
        fail("x")

    told = lines(say)
    assert [line[:3] for line in told] == ["<6>", "<4>", "<4>", "<3>"]
    assert [json.loads(line[3:])["level"] for line in told] == ["info", "warning", "warning", "error"]


def test_a_terminal_gets_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal an event is text with its values, without a priority even when the journal is near."""
    monkeypatch.setenv("JOURNAL_STREAM", "8:12345")
    seen = on_a_terminal(lambda: log.show(EVENT))
    assert "run.ended" in seen
    assert "cost_microusd" in seen
    assert "<6>" not in seen
    assert "{" not in seen


def test_a_terminal_obeys_nothing_of_a_value() -> None:
    """A control character in a value reaches a terminal as text."""
    seen = on_a_terminal(lambda: log.warn("agent.said", text="\x1b]0;owned\x07", word="\x9b2J\u202e"))
    assert "\x1b]0;owned" not in seen
    assert not {"\x07", "\x9b", "\u202e"} & set(seen)
    assert "owned" in seen


@pytest.mark.parametrize("where", [lambda say, secret: "\n".join(lines(say, secret)), on_a_terminal])
def test_a_secret_is_nowhere(where: Callable[..., str]) -> None:
    """A known secret is taken out of values, nested ones and unknown kinds too, of keys, tracebacks and variables."""

    def say() -> None:
        log.warn("a", plain=SECRET, nested={"deep": [{SECRET: (f"Bearer {SECRET}",)}]}, opaque=Opaque(SECRET))
        log.show(Event(Name.CHECK_FAILED, "fix", 1, 1, None, {"command": f"curl -u {SECRET}", "all": [SECRET]}))
        fail(SECRET)

    told = where(say, SECRET)
    assert SECRET not in told
    assert told.count(MARK) >= 7
    assert "ValueError: cannot do" in told
    assert "Traceback (most recent call last)" in told


def test_a_defect_is_one_line_with_its_traceback() -> None:
    """A defect is an error in one line that has the exception and where it was raised."""
    (line,) = lines(lambda: fail("x"))
    told = json.loads(line)
    assert (told["event"], told["level"], told["ticket"]) == ("claim.failed", "error", "fix")
    assert told["exception"].endswith("ValueError: cannot do x")
    assert Path(__file__).name in told["exception"]


def test_standard_error_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless told otherwise the log goes to standard error and leaves standard output to the commands."""
    log.configure(Redactor.of([]))
    log.show(EVENT)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert json.loads(seen.err)["event"] == "run.ended"
    log.configure(Redactor.of([]), sys.__stderr__)


def test_a_log_that_cannot_be_written_ends_nothing() -> None:
    """On a full disk and with a reader that left, events, warnings and defects are lost and nothing is raised."""
    reading, writing = os.pipe()
    os.close(reading)
    with Path("/dev/full").open("w") as full, os.fdopen(writing, "w") as closed:
        for stream in (full, closed):
            log.configure(Redactor.of([]), stream)
            log.show(EVENT)
            log.warn("lease.not_renewed")
            fail("x")
    log.configure(Redactor.of([]), sys.__stderr__)


def test_a_daemon_whose_log_is_on_a_full_disk_ends_as_it_should(tmp_path: Path) -> None:
    """With nothing to do and its standard error on a full disk, `start --once` works and returns just that."""
    shell = Shell(tmp_path)
    with Path("/dev/full").open("w") as full:
        environ = os.environ | {"ANTHROPIC_API_KEY": "none"}
        command = [str(PROGRAM), "start", "--once"]
        ended = subprocess.run(command, cwd=shell.repository, env=environ, stderr=full, check=False)
    assert ended.returncode == Exit.NOTHING_TO_DO


def test_a_daemon_without_standard_streams_works(tmp_path: Path) -> None:
    """Started with all three closed, as some do, `start --once` works and returns just that."""
    shell = Shell(tmp_path)
    environ = os.environ | {"ANTHROPIC_API_KEY": "none"}
    command = ["sh", "-c", 'exec "$0" start --once <&- >&- 2>&-', str(PROGRAM)]
    ended = subprocess.run(command, cwd=shell.repository, env=environ, check=False)
    assert ended.returncode == Exit.NOTHING_TO_DO


def test_an_observer_that_fails_leaves_the_write_and_the_other_events(tmp_path: Path) -> None:
    """Whatever an observer raises, the write was done, returns its value and tells of each of its events."""
    told: list[Name] = []

    def observe(event: Event) -> None:
        told.append(event.name)
        raise RuntimeError(event.name)

    def begin(tx: Tx) -> str:
        tx.log("", Name.DAEMON_STARTED)
        tx.log("", Name.DAEMON_STOPPED)
        return "done"

    store = Store.open(f"sqlite:///{tmp_path}/db", on_event=observe)
    returned: list[str] = []
    said = lines(lambda: returned.append(store.transact(begin)))
    store.close()
    assert (returned, told) == (["done"], [Name.DAEMON_STARTED, Name.DAEMON_STOPPED])
    assert [json.loads(line)["of"] for line in said] == ["daemon.started", "daemon.stopped"]
