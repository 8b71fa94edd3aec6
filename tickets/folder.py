"""A source that is a folder of Markdown files: `fix-login.md` is the ticket `fix-login`.

    root/fix-login.md              ready or running
    root/held/, done/, cancelled/  what became of the others
    root/comments/<id>/<key>.md    what was said about a ticket, one file per key

A file is read only after it has not changed for a second. No file is ever opened that
is not regular, none is overwritten and none is deleted: a move or a new file that
would meet another one leaves both as they are.

Knows files. What is in them is front_matter.py's; which tickets there are, the caller's.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from urllib.parse import quote

from tickets.files import Changed, Signature, changed_ns, make_directory, move, read, signature_of, write_new
from tickets.front_matter import MAX_BYTES, TOO_LARGE, NotATicket, line_of, parse, shown
from tickets.source import Intake, Lookup, Refused
from tickets.ticket import Spec, State, canonical_id, id_problem

RIPE_S = 1.0
"""A file unchanged for so long is whole: editors and copies write without such a pause."""

PLACES = {State.HELD: "held", State.DONE: "done", State.CANCELLED: "cancelled"}
"""Where a ticket's file is, in each state that is not ready or running."""

_SUFFIX = ".md"
_MAX_NAME = 200  # bytes of a comment's file name: 255 less what a temporary name adds


@dataclass(slots=True)
class _Look:
    signature: Signature
    since_s: float
    is_ours: bool = False
    """With this signature it is the file of the ticket that was taken from it."""


class Folder:
    """The tickets in `root`, which has to exist."""

    name = "folder"

    def __init__(self, root: Path, clock: Callable[[], float] = monotonic) -> None:
        self.root = root
        self._clock = clock
        self._looks: dict[str, _Look] = {}

    def take(self, known: Lookup) -> Intake:
        """Return what is new, the file that was written first at the top, and what cannot be taken; moves nothing.

        Raises:
            OSError: The folder cannot be read.
        """
        now_s = self._clock()
        entries = sorted((entry.name, entry) for entry in os.scandir(self.root) if _is_candidate(entry.name))
        looks: dict[str, _Look] = {}
        found: dict[str, Spec] = {}
        refused: list[Refused] = []
        ripens_in_s: float | None = None
        for name, entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            look = looks[name] = self._look(name, signature_of(status), now_s)
            try:
                ticket_id = _id_of(name)
                _demand_regular(name, status)
                if (wait_s := look.since_s + RIPE_S - now_s) > 0:
                    ripens_in_s = min(wait_s, ripens_in_s or wait_s)
                elif (spec := self._judge(name, ticket_id, look, known)) is not None:
                    _demand_alone(name, spec, found)
                    found[canonical_id(ticket_id)] = spec
            except Changed:
                looks[name] = _Look(look.signature, now_s)
                ripens_in_s = ripens_in_s or RIPE_S
            except NotATicket as error:
                refused.append(Refused(error.where, error.problem, _fingerprint(look.signature, error)))
        self._looks = looks
        by_age = sorted(found.values(), key=lambda spec: changed_ns(looks[spec.id + _SUFFIX].signature))
        return Intake(tuple(by_age), tuple(refused), ripens_in_s)

    def mirror(self, ticket_id: str, state: State) -> None:
        """Move the ticket's file to where `state` has it.

        Does nothing when there is no such file, or one of that name is there already:
        what lies beside it then was put there by a person, and `take` speaks of it.

        Raises:
            OSError: The file cannot be moved.
        """
        _demand_id(ticket_id)
        target = self._place(state) / (ticket_id + _SUFFIX)
        for source in (self._place(other) / target.name for other in (*PLACES, State.READY)):
            if source.is_file() and not source.is_symlink():
                make_directory(target.parent)
                with suppress(FileExistsError, FileNotFoundError):
                    move(source, target)
                return

    def comment(self, key: str, ticket_id: str, body: str) -> str:
        """Write `body` beside the ticket unless `key` has been written; return the file's path."""
        target = self._comment(key, ticket_id)
        if not os.path.lexists(target):
            make_directory(target.parent.parent)
            make_directory(target.parent)
            with suppress(FileExistsError):
                write_new(target, body.encode(errors="replace"))
        return str(target)

    def look_up(self, key: str, ticket_id: str) -> str | None:
        """Return the path of the comment with `key`, None when there is none."""
        target = self._comment(key, ticket_id)
        return str(target) if target.exists() else None

    def _read(self, name: str, look: _Look) -> bytes:
        try:
            return read(self.root / name, look.signature, MAX_BYTES)
        except OSError as error:
            raise NotATicket(name, f"cannot be read: {error.strerror}") from error

    def _place(self, state: State) -> Path:
        return self.root / PLACES[state] if state in PLACES else self.root

    def _comment(self, key: str, ticket_id: str) -> Path:
        _demand_id(ticket_id)
        name = quote(key, safe="")
        if len(name) > _MAX_NAME:
            name = name[:100] + "~" + sha256(key.encode()).hexdigest()
        return self.root / "comments" / ticket_id / (name + _SUFFIX)

    def _look(self, name: str, signature: Signature, now_s: float) -> _Look:
        last = self._looks.get(name)
        return last if last is not None and last.signature == signature else _Look(signature, now_s)

    def _judge(self, name: str, ticket_id: str, look: _Look, known: Lookup) -> Spec | None:
        """Return the ticket when it is new, None when it is the file of a known one."""
        owner = known(ticket_id)
        if owner is None:
            spec = parse(shown(name), ticket_id, self._read(name, look))
            look.is_ours = True
            return spec
        if owner.spec.id != ticket_id:
            raise NotATicket(shown(name), _collision(owner.spec.id))
        if look.is_ours:
            return None
        try:
            same = parse(name, ticket_id, self._read(name, look)) == owner.spec
        except NotATicket:
            same = False
        if same and owner.state not in PLACES:
            look.is_ours = True
            return None
        how = "" if same else " with other content, which its agent does not see"
        problem = f"ticket {ticket_id} was taken in before{how}, and is {owner.state}: give new work a new file name"
        raise NotATicket(name, problem)


def add(root: Path, source: Path | bytes, ticket_id: str | None = None) -> Path:
    """Put a ticket into the folder and return its file, which `Folder.take` finds whole.

    Args:
        root: The folder.
        source: A file (a pipe will do), or the ticket's bytes.
        ticket_id: By default the name of the `source` file.

    Raises:
        NotATicket: It would be refused, or the folder has a ticket of that name.
        OSError: The source cannot be read or the folder cannot be written.
    """
    if ticket_id is None:
        ticket_id = source.name.removesuffix(_SUFFIX) if isinstance(source, Path) else ""
    if (problem := id_problem(ticket_id)) is not None:
        raise NotATicket(shown(ticket_id), problem)
    data = source if isinstance(source, bytes) else _read(source)
    parse(shown(source.name) if isinstance(source, Path) else ticket_id, ticket_id, data)
    for place in (root, *(root / name for name in PLACES.values())):
        for other in _tickets_in(place):
            if canonical_id(other) == canonical_id(ticket_id):
                there = f"{place.name}/{other}{_SUFFIX} exists already: choose another id"
                raise NotATicket(ticket_id, there if other == ticket_id else _collision(other))
    target = root / (ticket_id + _SUFFIX)
    try:
        write_new(target, data)
    except FileExistsError as error:
        raise NotATicket(ticket_id, f"{target.name} exists already: choose another id") from error
    return target


def names(root: Path) -> list[str]:
    """Return the ids that the files of a folder would have as tickets, in order; none when it cannot be read."""
    with suppress(OSError):
        return sorted(entry.name.removesuffix(_SUFFIX) for entry in os.scandir(root) if _is_candidate(entry.name))
    return []


def file_of(ticket_id: str) -> str:
    """Return the name of a ticket's file as problems with it name it."""
    return shown(ticket_id + _SUFFIX)


def look_at(root: Path, ticket_id: str) -> Spec:
    """Return the ticket that a file of the folder would be, by itself.

    Raises:
        NotATicket: It cannot become one.
    """
    name = ticket_id + _SUFFIX
    try:
        _demand_regular(name, (root / name).lstat())
        return parse(shown(name), _id_of(name), _read(root / name))
    except OSError as error:
        raise NotATicket(name, f"cannot be read: {error.strerror}") from error


def where(root: Path, ticket_id: str, key: str) -> str:
    """Return the place of a key in a ticket's file, as problems name it: `fix.md:3`."""
    line = line_of(key, _read(root / (ticket_id + _SUFFIX)))
    return file_of(ticket_id) if line is None else f"{file_of(ticket_id)}:{line}"


def _is_candidate(name: str) -> bool:
    return name.endswith(_SUFFIX) and (not name.startswith(".") or name == _SUFFIX)


def _id_of(name: str) -> str:
    ticket_id = name.removesuffix(_SUFFIX)
    if (problem := id_problem(ticket_id)) is not None:
        raise NotATicket(shown(name), f"{problem}: rename the file")
    return ticket_id


def _demand_id(ticket_id: str) -> None:
    if (problem := id_problem(ticket_id)) is not None:
        raise ValueError(problem)


def _demand_regular(name: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise NotATicket(name, "a symbolic link is not followed: put the file itself here")
    if not stat.S_ISREG(status.st_mode):
        raise NotATicket(name, "not a regular file")
    if status.st_size > MAX_BYTES:
        raise NotATicket(name, TOO_LARGE)


def _demand_alone(name: str, spec: Spec, found: dict[str, Spec]) -> None:
    if (other := found.get(canonical_id(spec.id))) is not None:
        raise NotATicket(name, _collision(other.id))


def _collision(other: str) -> str:
    return f"differs from ticket {other} in case or punctuation only, and they would meet in one directory: rename it"


def _fingerprint(signature: Signature, error: NotATicket) -> str:
    return sha256(repr((signature, error.problem)).encode()).hexdigest()[:16]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _tickets_in(place: Path) -> Iterator[str]:
    with suppress(FileNotFoundError):
        for path in place.iterdir():
            if _is_candidate(path.name):
                yield path.name.removesuffix(_SUFFIX)
