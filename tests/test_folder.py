"""The folder of tickets: what is taken, what is refused in which words, and what is never touched."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickets.files import write_and_rename, write_new
from tickets.folder import Folder, add
from tickets.front_matter import MAX_BYTES, NotATicket, parse
from tickets.source import Intake, Known, Source
from tickets.ticket import Expects, Spec, State, canonical_id


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class Queue:
    """A folder, its clock, and the tickets that a store would know."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, Clock()
        self.known: dict[str, Known] = {}
        self.folder = Folder(root, self.clock)

    def write(self, name: str, content: str | bytes = "Do it.\n") -> Path:
        """Write a file into the folder."""
        path = self.root / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def look(self, later_s: float = 0.0) -> Intake:
        """Look, so much later."""
        self.clock.now_s += later_s
        return self.folder.take(lambda ticket_id: self.known.get(canonical_id(ticket_id)))

    def ripe(self) -> Intake:
        """Look twice, a second apart."""
        self.look()
        return self.look(1.0)

    def know(self, spec: Spec, state: State = State.READY) -> None:
        """Have the ticket in the store."""
        self.known[canonical_id(spec.id)] = Known(spec, state)

    def taken(self, name: str, content: str = "Do it.\n") -> Spec:
        """Write a ticket and take it in."""
        self.write(name, content)
        (spec,) = self.ripe().found
        self.know(spec)
        return spec

    def moved(self, ticket_id: str, state: State) -> None:
        """Change a ticket's state and mirror it."""
        self.know(self.known[canonical_id(ticket_id)].spec, state)
        self.folder.mirror(ticket_id, state)

    def files(self) -> dict[str, str]:
        """Return what is in the folder but for comments."""
        return {
            str(path.relative_to(self.root)): path.read_text()
            for path in self.root.rglob("*")
            if path.is_file() and "comments" not in path.parts
        }


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    """Return an empty folder."""
    return Queue(tmp_path)


def refusals(intake: Intake) -> list[str]:
    """Return what `intake` refuses as a person reads it."""
    return [str(refused) for refused in intake.refused]


def refusal(content: str | bytes) -> str:
    """Return why a file `fix.md` with `content` is no ticket."""
    with pytest.raises(NotATicket) as caught:
        parse("fix.md", "fix", content.encode() if isinstance(content, str) else content)
    return str(caught.value)


def test_a_folder_is_a_source(tmp_path: Path) -> None:
    """A Folder can be used wherever a Source is asked for."""
    source: Source = Folder(tmp_path)
    assert source.name == "folder"


def test_text_is_taken_verbatim(queue: Queue) -> None:
    """All that follows the front matter is the text, with its line ends and spaces, and the id is the file's name."""
    text = "\r\n  Fix @/etc/passwd\r\n---\r\n/clear\n\ttabs \n\n"
    queue.write("fix-1.2.md", "---\r\ntitle: Fix it\r\n---\r\n" + text)
    queue.write("plain.md", "---- not front matter\n" + text)
    assert queue.ripe().found == (
        Spec("fix-1.2", text, title="Fix it"),
        Spec("plain", "---- not front matter\n" + text),
    )


def test_every_key_is_read() -> None:
    """Each key of the front matter ends up in its field, money as exact micro-dollars and time as UTC microseconds."""
    content = (
        "---\ntitle: yes\npriority: -3\nbudget_usd: 0.29\nbase: release/2\nmodel: claude-sonnet-4-5[1m]\n"
        "tools: [Read, Bash]\nverify:\n- make test\n- |\n  a\n  b\nexpects: nothing\n"
        "not_before: 2026-12-01T08:00:00.000001+01:00\n---\nDo it."
    )
    assert parse("fix.md", "fix", content.encode()) == Spec(
        "fix",
        "Do it.",
        title="yes",
        priority=-3,
        budget_microusd=290_000,
        base="release/2",
        model="claude-sonnet-4-5[1m]",
        tools=("Read", "Bash"),
        verify=("make test", "a\nb\n"),
        expects=Expects.NOTHING,
        not_before_us=1_796_108_400_000_001,
    )


def test_all_that_is_wrong_is_told_at_once() -> None:
    """A file with several mistakes names each with its line, as far as the front matter can be read."""
    front = "budgt: 1\npriority: x\ntitle: a\ntitle: b\nmodel: 'x"
    with pytest.raises(NotATicket) as wrong:
        parse("fix.md", "fix", f"---\n{front}\n---\n".encode())
    told = str(wrong.value).split("; ")
    assert told[0] == "fix.md:2: unknown key `budgt`: did you mean `budget_usd`?"
    assert told[1].startswith("line 3: priority: must be a whole number")
    assert told[-3] == "line 5: `title` is given twice, first in line 4"
    assert told[-2].startswith("line 6: the front matter is not YAML")
    assert told[-1] == "there is no text: write what is to be done below the front matter"


def test_what_is_told_of_mistakes_is_bounded() -> None:
    """Of many mistakes the first ten are told."""
    front = "\n".join(f"key{number}: 1" for number in range(5_000))
    with pytest.raises(NotATicket, match=r"line 11: unknown key `key9`.*; and 4990 more$"):
        parse("fix.md", "fix", f"---\n{front}\n---\nDo it.".encode())


def test_short_forms_are_read() -> None:
    """A single command, a date without a time, a byte order mark and an empty front matter are understood."""
    spec = parse("fix.md", "fix", b"\xef\xbb\xbf---\nverify: make\nnot_before: 1970-01-02\n---\nDo it.")
    assert (spec.verify, spec.not_before_us, spec.text) == (("make",), 86_400_000_000, "Do it.")
    assert parse("fix.md", "fix", b"---\n# nothing\n---\nDo it.") == Spec("fix", "Do it.")


@pytest.mark.parametrize(
    ("front", "said"),
    [
        ("title: a\nbudgt: 1", "fix.md:3: unknown key `budgt`: did you mean `budget_usd`?"),
        ("title: a\n\n'x\\e[1m': 1", "fix.md:4: unknown key"),
        ("title: a\ntitle: b", "fix.md:3: `title` is given twice, first in line 2"),
        ("title: a\nmodel: 'x", "fix.md:3: the front matter is not YAML: while scanning a quoted scalar"),
        ("title: a\nbase", "fix.md:3: the front matter is not YAML: while scanning a simple key"),
        ("title: a\ntools: [a\nbase: x", "fix.md:3: the front matter is not YAML: while parsing a flow sequence"),
        ("title: a\n- b", "fix.md:3: the front matter is not YAML: while parsing a block mapping"),
        ("title: a\nbase: @x", "fix.md:3: the front matter is not YAML: while scanning for the next token"),
        ("title: a: b", "fix.md:2: the front matter is not YAML: mapping values are not allowed here"),
        ("title: a\n\x07", "fix.md:3: a character that YAML does not allow"),
        ('title: "\\U99999999"', "fix.md:1: the front matter is not YAML"),
        ('title: "\\U00110000"', "fix.md:1: the front matter is not YAML"),
        ("- a", "fix.md:2: lines of `key: value` are expected"),
        ("title:", "fix.md:2: a value is missing"),
        ("title: a\n...\n--- b", "fix.md:4: nothing may follow the keys"),
        ("title: &a b\nmodel: *a", "fix.md:2: a value is text or a list of text: nothing nested, no anchor"),
        ("title: !!python/object/apply:os.getpid []", "fix.md:2: a value is text or a list of text"),
        ("title: " + "[" * 50_000, "fix.md:2: a value is text or a list of text"),
        ("tools: [" + "a," * 50_000 + "]", "fix.md:2: a list has at most 100 items"),
        ("title: [a]", "fix.md:2: title: must be one value"),
        ('title: "a\\nb"', "fix.md:2: title: must be one line"),
        ('title: "\\ud800"', "fix.md:2: title: must be one line"),
        ("priority: 1.5", "fix.md:2: priority: must be a whole number"),
        ("priority: true", "fix.md:2: priority: must be a whole number"),
        ("priority: 99999999999999999999", "fix.md:2: priority: must be a whole number"),
        ("base: --upload-pack=x", "fix.md:2: base: must be one word that does not start with `-`"),
        ("tools: Bash", "fix.md:2: tools: must be a list of tool names"),
        ("verify: ['']", "fix.md:2: verify: must be a shell command"),
        ("expects: much", "fix.md:2: expects: must be `change`, or `nothing`"),
        ("not_before: tomorrow", "fix.md:2: not_before: must be a date (midnight UTC) or a time"),
        ("not_before: 2026-12-01T08:00", "fix.md:2: not_before: must have a zone"),
    ],
)
def test_broken_front_matter_is_refused_with_its_line(front: str, said: str) -> None:
    """What is wrong with the front matter is said with the file and the line."""
    assert refusal(f"---\n{front}\n---\nDo it.\n").startswith(said)


@pytest.mark.parametrize("budget", ["0", "-1", "nan", ".nan", "inf", ".inf", "-.inf", "true", "1e7", "0.0000001", "x"])
def test_a_budget_is_a_real_amount(budget: str) -> None:
    """A budget of zero or less, none that is a number, or one beyond a million is refused with its line."""
    assert refusal(f"---\ntitle: a\nbudget_usd: {budget}\n---\nDo it.").startswith("fix.md:3: budget_usd: must be ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "fix.md: there is no text"),
        (" \n\t\n", "fix.md: there is no text"),
        ("---\ntitle: a\n---\n \r\n", "fix.md: there is no text"),
        ("---\ntitle: a\n", "fix.md:1: the front matter that begins here has no closing line `---`"),
        (b"Do\nit\n\xff", "fix.md:3: not UTF-8: byte 6 is 0xff"),
        ("Do it.".encode("utf-16"), "fix.md:1: not UTF-8: byte 0 is 0xff"),
        ("Do\nit\0", "fix.md:2: a NUL character"),
        ("x" * (MAX_BYTES + 1), "fix.md: larger than 262,144 bytes, the most that a ticket has: put "),
    ],
)
def test_what_is_no_ticket_is_refused(content: str | bytes, said: str) -> None:
    """A file without text, not in UTF-8 or too large is refused with file and line or byte."""
    assert refusal(content).startswith(said)


@given(
    st.one_of(
        st.binary(max_size=80), st.text(alphabet="-:[]{}&*!|>'\"\\%#?,\n \r\tatilevrfy\U0001f600\x85", max_size=80)
    )
)
def test_any_bytes_are_a_ticket_or_refused(content: bytes | str) -> None:
    """No content makes the reader fail in any way but by refusing it, and no text of a ticket is unfit for UTF-8."""
    data = b"---\n" + (content.encode() if isinstance(content, str) else content) + b"\n---\nDo it."
    try:
        spec = parse("fix.md", "fix", data)
    except NotATicket:
        return
    (spec.text + spec.title).encode()
    assert spec.id == "fix"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (".md", ".md: the id is empty"),
        ("-rf.md", "-rf.md: an id is 1 to 64 of"),
        ("a" * 250 + ".md", "a" * 200 + ": an id is 1 to 64 of"),
        ("a b.md", "a b.md: an id is 1 to 64 of"),
        ("a..b.md", "a..b.md: an id has no '..'"),
        ("a.lock.md", "a.lock.md: an id has no"),
        ("x\n\x1b[31m.md", r"x\n\x1b[31m.md: an id is 1 to 64 of"),
        ("\u202egpj.md", r"\u202egpj.md: an id is 1 to 64 of"),
        (os.fsdecode(b"\xff.md"), r"\udcff.md: an id is 1 to 64 of"),
    ],
)
def test_a_hostile_name_is_refused_and_shown_escaped(queue: Queue, name: str, said: str) -> None:
    """A name that is no id is refused, in one printable line."""
    (queue.root / name).write_text("Do it.")
    (line,) = refusals(queue.ripe())
    assert line.startswith(said)
    assert line.isprintable()


def test_other_files_are_not_looked_at(queue: Queue) -> None:
    """Hidden files, backups and files of other kinds are no tickets and no problem."""
    for name in (".fix.md", ".fix.md.swp", "fix.md~", "#fix.md#", "fix.txt", "4913"):
        queue.write(name)
    assert queue.ripe() == Intake()


def test_only_regular_files_are_opened(queue: Queue) -> None:
    """A link, a pipe, a socket and a directory are refused by name, and the look does not wait for them."""
    secret = queue.write("secret.txt")
    (queue.root / "link.md").symlink_to(secret)
    os.mkfifo(queue.root / "pipe.md")
    (queue.root / "room.md").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(queue.root / "socket.md"))
        intake = queue.ripe()
    assert intake.found == ()
    assert [line.partition(":")[0] for line in refusals(intake)] == ["link.md", "pipe.md", "room.md", "socket.md"]
    assert "symbolic link" in refusals(intake)[0]


def test_a_large_file_is_refused_by_its_size(queue: Queue) -> None:
    """A file of a terabyte is refused without being read."""
    with (queue.root / "fix.md").open("wb") as file:
        file.truncate(2**40)
    assert refusals(queue.look())[0].startswith("fix.md: larger than 262,144 bytes")


def test_a_half_written_file_is_not_taken(queue: Queue) -> None:
    """A file is taken, or refused, only when it has been the same for a second, counted from its last change."""
    path = queue.write("fix.md", "---\ntitle: a\n")
    assert queue.look() == Intake(ripens_in_s=1.0)
    assert queue.look(0.75) == Intake(ripens_in_s=0.25)
    with path.open("a") as file:
        file.write("---\nDo it.\n")
    assert queue.look(0.75) == Intake(ripens_in_s=1.0)
    assert queue.look(0.75) == Intake(ripens_in_s=0.25)
    (spec,) = queue.look(0.25).found
    assert (spec.title, spec.text) == ("a", "Do it.\n")


def test_a_file_replaced_by_another_of_its_size_and_time_is_new(queue: Queue) -> None:
    """A file renamed over another, with the same size and time, has to be unchanged for a second again."""
    path = queue.write("fix.md", "One.")
    queue.look()
    other = queue.write("other", "Two.")
    status = path.stat()
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.rename(path)
    assert queue.look(1.0).found == ()
    assert queue.look(1.0).found == (Spec("fix", "Two."),)


def test_the_next_look_is_for_the_first_to_ripen(queue: Queue) -> None:
    """Of several files that are being written, the one that is whole first says when to look again."""
    queue.write("a.md")
    queue.look()
    queue.write("b.md")
    intake = queue.look(0.75)
    assert intake.ripens_in_s == 0.25


def test_files_of_one_look_are_found_by_their_age(queue: Queue) -> None:
    """Of files that are there at one look the one that was written first is first, and those of one time go by name."""
    for name, written_s in (("c.md", 10), ("a.md", 30), ("d.md", 20), ("b.md", 20)):
        os.utime(queue.write(name), (written_s, written_s))
    assert [spec.id for spec in queue.ripe().found] == ["c", "b", "d", "a"]


def test_a_ticket_is_found_until_it_is_known(queue: Queue) -> None:
    """A ticket is returned at each look until the caller knows it, and then never again."""
    queue.write("fix.md")
    (spec,) = queue.ripe().found
    assert queue.look(5.0).found == (spec,)
    queue.know(spec)
    assert queue.look(5.0) == Intake()
    assert restarted(queue).look() == Intake(ripens_in_s=1.0)


def restarted(queue: Queue) -> Queue:
    """Return what a new daemon has of `queue`."""
    again = Queue(queue.root)
    again.known = dict(queue.known)
    return again


def test_the_file_of_a_taken_ticket_is_left_alone(queue: Queue) -> None:
    """A new daemon neither takes the file of a ticket that is ready or running again nor complains about it."""
    spec = queue.taken("fix.md")
    for state in (State.READY, State.RUNNING):
        queue.know(spec, state)
        assert restarted(queue).ripe() == Intake()


@pytest.mark.parametrize("other", ["FIX-1.md", "fix.1.md", "fix_1.md"])
def test_ids_that_would_meet_are_refused(queue: Queue, other: str) -> None:
    """A name that differs from a ticket's in case or punctuation only is refused, known ticket or not."""
    queue.taken("fix-1.md")
    queue.write(other)
    (line,) = refusals(queue.ripe())
    assert line.startswith(f"{other}: differs from ticket fix-1 in case or punctuation only")
    queue.known.clear()
    intake = queue.ripe()
    assert (len(intake.found), len(intake.refused)) == (1, 1)


@pytest.mark.parametrize("content", ["Do something else.\n", "---\nbudget_usd: 3\n---\nDo it.\n", "---\nbroken", ""])
def test_an_edit_after_intake_is_told(queue: Queue, content: str) -> None:
    """A file that was changed after its ticket was taken is refused once, in the same words by every daemon."""
    queue.taken("fix.md")
    queue.write("fix.md", content)
    (refused,) = queue.ripe().refused
    assert refused.problem.startswith("ticket fix was taken in before with other content, which its agent does not see")
    assert queue.look(5.0).refused == (refused,) == restarted(queue).ripe().refused


def test_a_file_deleted_after_intake_is_not_missed(queue: Queue) -> None:
    """A ticket whose file is gone goes on: no look and no mirror minds."""
    queue.taken("fix.md")
    (queue.root / "fix.md").unlink()
    assert queue.ripe() == Intake()
    for state in State:
        queue.folder.mirror("fix", state)
    assert queue.files() == {}


def test_the_file_follows_the_state(queue: Queue) -> None:
    """The file is where the ticket's state has it, through every state and back, and doing it twice changes nothing."""
    queue.taken("fix.md")
    for state, place in (
        (State.RUNNING, "fix.md"),
        (State.HELD, "held/fix.md"),
        (State.READY, "fix.md"),
        (State.CANCELLED, "cancelled/fix.md"),
        (State.RUNNING, "fix.md"),
        (State.DONE, "done/fix.md"),
    ):
        queue.moved("fix", state)
        queue.moved("fix", state)
        assert queue.files() == {place: "Do it.\n"}
        assert queue.ripe() == Intake()


@pytest.mark.parametrize("same", [True, False])
def test_a_ticket_put_in_again_after_done_is_told(queue: Queue, same: bool) -> None:
    """The same id again after done is refused, whatever is in it, and neither file is touched."""
    queue.taken("fix.md")
    queue.moved("fix", State.DONE)
    content = "Do it.\n" if same else "Do more.\n"
    queue.write("fix.md", content)
    for daemon in (queue, restarted(queue)):
        daemon.folder.mirror("fix", State.DONE)
        (line,) = refusals(daemon.ripe())
        assert line.startswith("fix.md: ticket fix was taken in before")
        assert line.endswith("and is done: give new work a new file name")
        assert queue.files() == {"fix.md": content, "done/fix.md": "Do it.\n"}


def test_a_file_moved_back_by_hand_is_told(queue: Queue) -> None:
    """A file that a person moves out of done/ does not start its ticket again, and that is said."""
    queue.taken("fix.md")
    queue.moved("fix", State.DONE)
    (queue.root / "done" / "fix.md").rename(queue.root / "fix.md")
    (line,) = refusals(queue.ripe())
    assert "is done" in line


def test_a_finished_ticket_is_no_news_before_its_file_moves(queue: Queue) -> None:
    """Between a ticket's end and its mirror a look says nothing about its file."""
    spec = queue.taken("fix.md")
    queue.know(spec, State.DONE)
    assert queue.look(5.0) == Intake()


def test_the_held_file_moves_and_a_stranger_beside_it_stays(queue: Queue) -> None:
    """Of a ticket's own file and one that a person put into the root, the own file is the one that moves."""
    queue.taken("fix.md")
    queue.moved("fix", State.HELD)
    queue.write("fix.md", "Other.\n")
    queue.moved("fix", State.DONE)
    assert queue.files() == {"fix.md": "Other.\n", "done/fix.md": "Do it.\n"}


def test_a_retry_writes_over_no_stranger(queue: Queue) -> None:
    """A ticket that goes back to the queue leaves its file where it is when a person has put another into the root."""
    queue.taken("fix.md")
    queue.moved("fix", State.HELD)
    queue.write("fix.md", "Other.\n")
    queue.moved("fix", State.READY)
    assert queue.files() == {"fix.md": "Other.\n", "held/fix.md": "Do it.\n"}
    assert "with other content" in refusals(queue.ripe())[0]


def test_a_mirror_moves_no_link(queue: Queue) -> None:
    """A link that has a ticket's name is left where it is."""
    target = queue.write("elsewhere.txt")
    (queue.root / "fix.md").symlink_to(target)
    queue.folder.mirror("fix", State.DONE)
    assert (queue.root / "fix.md").is_symlink()


@pytest.mark.parametrize("ticket_id", ["../x", "", "a/b", "-rf"])
def test_a_path_is_no_ticket(queue: Queue, ticket_id: str) -> None:
    """An id that is no file name of ours reaches no file."""
    with pytest.raises(ValueError, match="id"):
        queue.folder.mirror(ticket_id, State.DONE)
    with pytest.raises(ValueError, match="id"):
        queue.folder.comment("key", ticket_id, "body")
    with pytest.raises(ValueError, match="id"):
        queue.folder.look_up("key", ticket_id)
    assert queue.files() == {}


def test_an_unreadable_folder_is_an_error(queue: Queue) -> None:
    """A folder that is gone is not an empty one."""
    queue.root.rmdir()
    with pytest.raises(FileNotFoundError):
        queue.look()


def test_a_comment_is_written_once_per_key(queue: Queue) -> None:
    """A second comment with a key leaves the first one, keys never meet, and a look-up finds what is there only."""
    folder = queue.folder
    keys = ["folder/fix/1/report", "folder/fix/1%2Freport", "../../x", ".", "k" * 5000, "k" * 4999 + "l", "\u00fc\n"]
    assert [folder.look_up(key, "fix") for key in keys] == [None] * len(keys)
    places = [folder.comment(key, "fix", key) for key in keys]
    assert [folder.comment(key, "fix", "again") for key in keys] == places
    assert [folder.look_up(key, "fix") for key in keys] == places
    assert [Path(place).read_text() for place in places] == keys
    assert {Path(place).parent for place in places} == {queue.root / "comments" / "fix"}
    assert len(list((queue.root / "comments" / "fix").iterdir())) == len(keys)
    assert queue.ripe() == Intake()


def test_many_writers_of_one_comment_leave_one(queue: Queue) -> None:
    """Processes that publish under one key at the same time leave one whole comment, and nothing beside it."""
    script = (
        "import sys; from pathlib import Path; from tickets.folder import Folder;"
        "sys.stdin.readline(); print(Folder(Path(sys.argv[1])).comment('key', 'fix', sys.argv[2] * 100000))"
    )
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(queue.root), letter],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )
        for letter in "abcd"
    ]
    places = set()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        places.add(writer.communicate()[0].strip())
        assert writer.returncode == 0
    (place,) = places
    assert Path(place).read_text() in {letter * 100000 for letter in "abcd"}
    assert list(Path(place).parent.iterdir()) == [Path(place)]


def test_an_added_ticket_is_found(queue: Queue, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What `add` puts in, from a file or from bytes, is what a look takes, to the byte, with nothing left beside it."""
    source = tmp_path_factory.mktemp("elsewhere") / "from-file.md"
    source.write_bytes(b"---\ntitle: a\n---\r\nDo it.\r\n")
    assert add(queue.root, source) == queue.root / "from-file.md"
    assert add(queue.root, b"Do that.", "from-bytes") == queue.root / "from-bytes.md"
    assert {*queue.ripe().found} == {Spec("from-bytes", "Do that."), Spec("from-file", "Do it.\r\n", title="a")}
    assert sorted(queue.files()) == ["from-bytes.md", "from-file.md"]


@pytest.mark.parametrize(
    ("ticket_id", "content", "said"),
    [
        ("../x", b"Do it.", "../x: an id is 1 to 64"),
        ("-rf", b"Do it.", "-rf: an id is 1 to 64"),
        ("", b"Do it.", ": the id is empty"),
        ("a" * 300, b"Do it.", "a" * 200 + ": an id is 1 to 64"),
        ("x\x1b[2J", b"Do it.", r"x\x1b[2J: an id is 1 to 64"),
        ("new", b"---\nbudget_usd: 0\n---\nDo it.", "new:2: budget_usd: must be above 0"),
        ("new", b" ", "new: there is no text"),
        ("new", b"x" * (MAX_BYTES + 1), "new: larger than 262,144 bytes"),
        ("ready", b"Do it.", "ready: queue/ready.md exists already"),
        ("done", b"Do it.", "done: done/done.md exists already"),
        ("HELD", b"Do it.", "HELD: differs from ticket held in case or punctuation only"),
        ("cancel.led", b"Do it.", "cancel.led: differs from ticket cancel-led"),
    ],
)
def test_what_would_be_refused_is_not_added(tmp_path: Path, ticket_id: str, content: bytes, said: str) -> None:
    """`add` refuses a bad id, a bad ticket and a name that is taken in any place, and writes nothing."""
    queue = Queue(tmp_path / "queue")
    for name in ("ready.md", "done/done.md", "held/held.md", "cancelled/cancel-led.md"):
        (queue.root / name).parent.mkdir(parents=True, exist_ok=True)
        queue.write(name)
    before = queue.files()
    with pytest.raises(NotATicket) as caught:
        add(queue.root, content, ticket_id)
    assert str(caught.value).startswith(said)
    assert queue.files() == before


def test_a_kill_while_a_file_is_written_leaves_nothing(tmp_path: Path) -> None:
    """Whoever writes a file and is killed in the middle leaves no part of it, under no name."""
    killed = """
import resource, signal, sys
from pathlib import Path
from tickets.files import write_new
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
write_new(Path(sys.argv[1]), bytes(200))
"""
    target = tmp_path / "new"
    assert subprocess.run([sys.executable, "-c", killed, target], check=False).returncode == -signal.SIGXFSZ
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("write", [write_new, write_and_rename])
def test_a_new_file_is_whole_and_takes_no_place(tmp_path: Path, write: Callable[[Path, bytes], None]) -> None:
    """With or without a name while it is written: the umask decides who reads it, and one that is there stays."""
    target = tmp_path / "new"
    before = os.umask(0o027)
    try:
        write(target, b"whole")
    finally:
        os.umask(before)
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (b"whole", 0o640)
    with pytest.raises(FileExistsError):
        write(target, b"another")
    assert target.read_bytes() == b"whole"
    assert [*tmp_path.iterdir()] == [target]


def test_a_file_system_that_has_no_files_without_names_is_written_to_with_one() -> None:
    """Where Linux refuses a file without a name, one with a name is tried, and what keeps that from being is told."""
    where = Path("/proc/self/fd")  # has no O_TMPFILE, and no other new files either
    with pytest.raises(OSError, match="/proc/self/fd") as refused:
        write_new(where / "new", b"")
    assert (refused.value.errno, refused.value.filename) == (errno.ENOENT, str(where))
