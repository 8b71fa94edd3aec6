"""`add`: what is put into the queue is there, what is refused is said with its line, and no id is given twice."""

from pathlib import Path

import pytest

from runner.store import tickets
from tests.shell import TEXT, Shell
from tickets.folder import Folder
from tickets.ticket import Spec, State

LIMIT = 262_144


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a command line over a repository that nothing has run with."""
    return Shell(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("---\ntitle: Fix\nbuget_usd: 1\n---\nText\n", "t.md:3: unknown key `buget_usd`: did you mean `budget_usd`?"),
        ("---\ntitle: [a\n---\nText\n", "t.md:2: the front matter is not YAML"),
        ("---\ntitle: a\nText\n", "t.md:1: the front matter that begins here has no closing line"),
        ("", "t.md: there is no text: write what is to be done"),
        ("---\ntitle: a\n---\n \n", "t.md: there is no text: write what is to be done"),
        (b"caf\xe9\n", "t.md:1: not UTF-8: byte 3 is 0xe9"),
        ("a" * (LIMIT + 1), "t.md: larger than 262,144 bytes, the most that a ticket has: put the rest into the"),
        ("a" * 3_000_000, "t.md: larger than 262,144 bytes"),
        ("---\nbudget_usd: 0\n---\nText\n", "t.md:2: budget_usd: must be above 0"),
        ("---\nbudget_usd: -1\n---\nText\n", "t.md:2: budget_usd: must be above 0"),
        ("---\nbudget_usd: nan\n---\nText\n", "t.md:2: budget_usd: must be above 0"),
        ("---\nbudget_usd: lots\n---\nText\n", "t.md:2: budget_usd: must be a number of dollars"),
    ],
)
def test_what_is_no_ticket_is_not_added(shell: Shell, content: str | bytes, said: str) -> None:
    """A file that cannot be a ticket is refused with its name, line and reason, and the queue has nothing of it."""
    ended = shell("add", shell.ticket("t", content))
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"ticket-runner: {said}")
    assert shell.files() == {}


def test_a_tool_that_does_not_exist_is_told_when_it_is_asked_for(shell: Shell) -> None:
    """A ticket with a tool that does not exist is added, and where it asks for it is told; `show` tells it, too."""
    ended = shell("add", shell.ticket("t", "---\ntitle: Fix\ntools: [Raed, Bash, mcp__docs__find]\n---\nText\n"))
    meant = "Raed, did you mean Read?"
    said = "no tool of Claude Code's has this name, and none is given for it"
    assert (ended.code, ended.err) == (0, f"look  t.md:3: {said}: {meant}\n")
    assert shell("add", shell.ticket("u", "---\ntools: [Read]\n---\nText\n")).err == ""
    place = shell.database()
    place.store.transact(tickets.take_in, "folder", Spec("t", "Text", tools=("Raed", "Bash")))
    place.store.close()
    assert f"tools  Raed, Bash (no tool has this name: {meant})" in shell("show", "t").out


@pytest.mark.parametrize("ticket", ["../x", "-rf", "a" * 300, "a/b", ".a", "a..b", "a.lock", "a b", "\x1b[31m", "é"])
def test_an_id_that_is_no_name_is_refused(shell: Shell, ticket: str) -> None:
    """An id that could leave its directory, be an option or fool a terminal is refused, as an option and as a name."""
    ended = shell("add", shell.ticket("t"), f"--id={ticket}")
    assert ended.code == 1
    assert "an id " in ended.err
    assert "\x1b" not in ended.err
    assert shell.files() == {}


def test_a_file_that_is_not_there_is_named(shell: Shell) -> None:
    """A file that cannot be read is refused with its name and the reason."""
    assert shell("add", "no.md").err == "ticket-runner: no.md: No such file or directory\n"
    assert shell("add", shell.place, "--id", "a").err == f"ticket-runner: {shell.place}: Is a directory\n"


def test_a_queue_that_cannot_be_made_is_told(shell: Shell) -> None:
    """A ticket that cannot be put into the queue is refused with the directory and the reason."""
    shell.state.touch()
    ended = shell("add", shell.ticket("t"))
    assert ended.code == 1
    assert ended.err == f"ticket-runner: {shell.queue}: Not a directory\n"


def test_a_ticket_is_added_as_it_is(shell: Shell) -> None:
    """A ticket is in the queue byte by byte, under its file's name or the given id, also from standard input."""
    text = b"\xef\xbb\xbf---\r\ntitle: yes\r\n---\r\n\r\n \xc3\xa9\r\n"
    ended = shell("add", shell.ticket("fix", text))
    assert (ended.code, ended.out.splitlines()[0]) == (0, f"added {shell.queue}/fix.md")
    assert "no daemon runs: `ticket-runner start` works on it" in ended.out
    assert shell("add", shell.ticket("fix", text), "--id", "other").code == 0
    shell.know("fix")
    plain = shell.place / "fix.txt"
    plain.write_bytes(text)
    assert shell("add", plain).code == 0
    assert shell.process("add", "-", "--id", "piped", stdin=text).code == 0
    assert shell.files() == dict.fromkeys(["fix.md", "other.md", "piped.md", "fix.txt.md"], text)


@pytest.mark.parametrize("other", ["fix.it", "FIX.it", "fix-it", "fix_it"])
def test_an_id_is_given_once(shell: Shell, other: str) -> None:
    """The same id, or one that differs in case or punctuation only, is refused and the first ticket stays."""
    shell("add", shell.ticket("fix.it"))
    ended = shell("add", shell.ticket("again", "Other.\n"), "--id", other)
    assert ended.code == 1
    assert ("exists already" if other == "fix.it" else "differs from ticket fix.it in case or punctuation") in ended.err
    assert shell.files() == {"fix.it.md": TEXT.encode()}


@pytest.mark.parametrize("state", [State.DONE, State.CANCELLED, State.HELD])
def test_an_id_stays_given_when_its_ticket_is_over(shell: Shell, state: State) -> None:
    """The id of a ticket whose file was moved aside is not given again."""
    shell("add", shell.ticket("fix"))
    Folder(shell.queue).mirror("fix", state)
    ended = shell("add", shell.ticket("fix"))
    assert ended.code == 1
    assert ended.err == f"ticket-runner: fix: {state}/fix.md exists already: choose another id\n"


def test_an_id_stays_given_when_its_file_is_gone(shell: Shell) -> None:
    """The id of a ticket that the database knows is not given again, nor one that differs in case only."""
    shell.know("fix")
    for other in ("fix", "FIX"):
        ended = shell("add", shell.ticket(other))
        assert (ended.code, ended.err) == (
            1,
            f"ticket-runner: {other}: ticket fix is known and ready: choose another id\n",
        )
    assert shell.files() == {}
