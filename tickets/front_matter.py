"""Read a ticket out of the bytes of a Markdown file with front matter.

The front matter is a flat YAML mapping: text, or a list of text, per key. It is read
from the parser's events, so that nothing is built that could nest or multiply, and
each value is converted by its key's rule alone (`title: yes` is the title "yes", money
is decimal). The text is what follows the front matter, unchanged to the last byte:
line ends and spaces stay as they are; only a byte order mark at the start is dropped.

Bytes in, `Spec` out: does not know files, folders or which tickets there are.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import Protocol

import yaml

from tickets.ticket import Expects, Spec

MAX_BYTES = 256 * 1024
"""Of a ticket's file. The text is sent to the model whole: this is about 60,000 tokens."""

TOO_LARGE = f"larger than {MAX_BYTES:,} bytes, the most that a ticket has: put the rest into the repository and name it"

KEYS = ("title", "priority", "budget_usd", "base", "model", "tools", "verify", "expects", "not_before")

_MAX_LINE = 200
_MAX_ITEMS = 100
_MAX_TOLD = 9  # problems beside the first
_MAX_PRIORITY = 1_000_000
_MAX_USD = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPENING = re.compile(r"---[ \t]*(?:\r?\n|\Z)")
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


class NotATicket(Exception):
    """Bytes that cannot become a ticket until a person changes them."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class _Entry:
    line: int
    """In the file, from 1."""
    key: str
    value: str | tuple[str, ...]


class _HasLine(Protocol):
    """Either of PyYAML's two classes of marks."""

    line: int


class _Unreadable(Exception):
    """What follows in the front matter cannot be read."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(line, problem)
        self.line, self.problem = line, problem


class _NotFlat(_Unreadable):
    """YAML, and more of it than we take."""

    def __init__(self, event: yaml.Event, problem: str) -> None:
        super().__init__(_line_of(event.start_mark), problem)


def parse(where: str, ticket_id: str, data: bytes) -> Spec:
    """Return the ticket that `data` is.

    Args:
        where: The file's name, for messages.
        ticket_id: Taken as it is: from the file's name, never from its content.
        data: The whole file.

    Raises:
        NotATicket: All that is wrong, with `where` and, if there is one, the line of the first: `fix.md:3`.
    """
    text = _decode(where, data)
    front = _FRONT_MATTER.match(text)
    if front is None and _OPENING.match(text):
        raise NotATicket(f"{where}:1", "the front matter that begins here has no closing line `---`")
    spec = Spec(ticket_id, text if front is None else text[front.end() :])
    problems: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    try:
        for entry in () if front is None else _entries(front[1]):
            problem = _problem_of(entry, seen)
            seen.setdefault(entry.key, entry.line)
            if problem is None:
                try:
                    spec = _with(spec, entry.key, entry.value)
                except ValueError as error:
                    problem = f"{entry.key}: {error}"
            if problem is not None:
                problems.append((entry.line, problem))
    except _Unreadable as error:
        problems.append((error.line, error.problem))
    if not spec.text.strip():
        problems.append((0, "there is no text: write what is to be done below the front matter"))
    if problems:
        raise _all_of(where, problems)
    return spec


def line_of(key: str, data: bytes) -> int | None:
    """Return the line of a key in the bytes of a ticket, from 1; None when it is not there."""
    front = _FRONT_MATTER.match(_decode("", data))
    return None if front is None else next((entry.line for entry in _entries(front[1]) if entry.key == key), None)


def _all_of(where: str, problems: Sequence[tuple[int, str]]) -> NotATicket:
    """Return one error of all that is wrong."""
    (line, first), *rest = problems
    told = [first, *(f"line {other}: {problem}" if other else problem for other, problem in rest[:_MAX_TOLD])]
    told += [f"and {len(rest) - _MAX_TOLD} more"] if len(rest) > _MAX_TOLD else []
    return NotATicket(f"{where}:{line}" if line else where, "; ".join(told))


def _decode(where: str, data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise NotATicket(where, TOO_LARGE)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; save the file as UTF-8"
        raise NotATicket(f"{where}:{line}", problem) from error
    if "\0" in text:  # no PostgreSQL text holds one
        line = text.count("\n", 0, text.index("\0")) + 1
        raise NotATicket(f"{where}:{line}", "a NUL character: remove it")
    return text.removeprefix("\ufeff")


def _problem_of(entry: _Entry, seen: Mapping[str, int]) -> str | None:
    """Return what is wrong with an entry's key."""
    if entry.key not in KEYS:
        close = get_close_matches(entry.key, KEYS, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(KEYS)}"
        return f"unknown key `{shown(entry.key)}`: {hint}"
    return f"`{entry.key}` is given twice, first in line {seen[entry.key]}" if entry.key in seen else None


def _entries(front: str) -> Iterator[_Entry]:
    """Yield the entries of a front matter whose first line is the file's second, until one cannot be read."""
    try:
        for line, key, value in _pairs(front):
            yield _Entry(line, key, value)
    except yaml.MarkedYAMLError as error:
        begun = None if "block" in (error.context or "") else error.context_mark  # a block is all of it so far
        mark = begun or error.problem_mark
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        raise _Unreadable(_line_of(mark), f"the front matter is not YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = front.count("\n", 0, error.position) + 2
        raise _Unreadable(line, "a character that YAML does not allow") from error
    except (ValueError, OverflowError) as error:  # PyYAML passes them on: "\U99999999", a version of 5,000 digits
        raise _Unreadable(1, "the front matter is not YAML") from error


def _pairs(front: str) -> Iterator[tuple[int, str, str | tuple[str, ...]]]:
    skipped = (yaml.StreamStartEvent, yaml.DocumentStartEvent, yaml.DocumentEndEvent, yaml.StreamEndEvent)
    events = (event for event in yaml.parse(front, Loader=yaml.SafeLoader) if not isinstance(event, skipped))
    first = next(events, None)
    if first is None:
        return
    if not isinstance(first, yaml.MappingStartEvent):
        raise _NotFlat(first, "lines of `key: value` are expected")
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        line, name = _line_of(key.start_mark), _text(key)
        value = next(events)
        if isinstance(value, yaml.SequenceStartEvent) and value.anchor is None and value.tag is None:
            items = []
            while not isinstance(item := next(events), yaml.SequenceEndEvent):
                items.append(_text(item))
                if len(items) > _MAX_ITEMS:
                    raise _NotFlat(item, f"a list has at most {_MAX_ITEMS} items")
            yield line, name, tuple(items)
        else:
            yield line, name, _text(value)
    if (more := next(events, None)) is not None:
        raise _NotFlat(more, "nothing may follow the keys")


def _text(event: yaml.Event) -> str:
    if not isinstance(event, yaml.ScalarEvent) or event.anchor is not None or event.tag is not None:
        raise _NotFlat(event, "a value is text or a list of text: nothing nested, no anchor, alias or tag")
    if event.style is None and event.value in {"", "~", "null"}:
        raise _NotFlat(event, "a value is missing: give one or leave the key out")
    return event.value


def _line_of(mark: _HasLine | None) -> int:
    return mark.line + 2 if mark is not None else 1


def _with(spec: Spec, key: str, value: str | tuple[str, ...]) -> Spec:
    """Return `spec` with what `key` says; a ValueError says what the key wants."""
    match key:
        case "title":
            return replace(spec, title=_line(value))
        case "priority":
            return replace(spec, priority=_priority(_line(value)))
        case "budget_usd":
            return replace(spec, budget_microusd=microusd(_line(value)))
        case "base":
            return replace(spec, base=_word(value))
        case "model":
            return replace(spec, model=_word(value))
        case "tools":
            return replace(spec, tools=_list(value, "tool names"))
        case "verify":
            return replace(spec, verify=_commands(value))
        case "expects":
            return replace(spec, expects=_expects(_line(value)))
        case _:
            return replace(spec, not_before_us=_instant_us(_line(value)))


def _line(value: str | tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise ValueError("must be one value, not a list")  # noqa: TRY004  the caller adds the line to a ValueError
    if not value.strip() or not value.isprintable() or len(value) > _MAX_LINE:
        raise ValueError(f"must be one line of 1 to {_MAX_LINE} printable characters")
    return value.strip()


def _word(value: str | tuple[str, ...]) -> str:
    word = _line(value)
    if word.startswith("-") or " " in word:
        raise ValueError("must be one word that does not start with `-`")
    return word


def _list(value: str | tuple[str, ...], what: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f"must be a list of {what}: [a, b]")  # noqa: TRY004  as in `_line`
    return tuple(_word(item) for item in value)


def _commands(value: str | tuple[str, ...]) -> tuple[str, ...]:
    commands = (value,) if isinstance(value, str) else value
    for command in commands:
        if not command.strip() or not re.sub(r"[\n\t]", "", command).isprintable():
            raise ValueError("must be a shell command or a list of them, without control characters")
    return commands


def _priority(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,7}", text) or abs(int(text)) > _MAX_PRIORITY:
        raise ValueError(f"must be a whole number, at most {_MAX_PRIORITY:,}; higher goes first")
    return int(text)


def microusd(text: str) -> int:
    """Return an amount of dollars that a ticket may cost; a ValueError says what is wrong with it."""
    try:
        dollars = Decimal(text)
    except InvalidOperation as error:
        raise ValueError("must be a number of dollars, as in 2.50") from error
    if not dollars.is_finite() or not 0 < dollars <= _MAX_USD or round(dollars * 1_000_000) == 0:
        raise ValueError(f"must be above 0 and at most {_MAX_USD:,} dollars")
    return round(dollars * 1_000_000)


def _expects(text: str) -> Expects:
    if text not in set(Expects):
        raise ValueError("must be `change`, or `nothing` for a ticket that leaves no commit")
    return Expects(text)


def _instant_us(text: str) -> int:
    try:
        day = date.fromisoformat(text)
        moment = datetime.combine(day, time(tzinfo=UTC))
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise ValueError("must be a date (midnight UTC) or a time, as in 2026-12-01T08:00+01:00") from error
        if moment.tzinfo is None:
            raise ValueError("must have a zone, as in 2026-12-01T08:00Z or 2026-12-01T08:00+01:00") from None
    return max((moment - _EPOCH) // timedelta(microseconds=1), 0)


def shown(text: str) -> str:
    """Return `text` as it can be put on a line of a terminal."""
    return text if text.isprintable() and len(text) <= _MAX_LINE else ascii(text[:_MAX_LINE])[1:-1]
