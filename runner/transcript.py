"""What Claude Code wrote of a session: whether it can go on, and what it cost.

Read before a run and after it; of one that is being written the end may be missing. A file
that a crash tore is read as far as it goes; a response is in it, whole and with its usage, or
not at all.

Knows the files below CLAUDE_CONFIG_DIR/projects and genai-prices. Does not know runs.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TypeGuard

from runner.session import Transcript

_LINE_BYTES = 64 * 1024 * 1024  # as long as a frame may be; a longer line is passed over
_NAME_CHARS = 200  # of a project's directory; a longer one is cut, and a hash added
_CONVERSATION = frozenset({"user", "assistant", "attachment"})  # any one of these makes a session resumable
_MOST = 2**53  # tokens or micro-dollars; what is more is garbage, and the ledger's sums have to hold it
_TAIL_BYTES = 8 * 1024 * 1024  # of a transcript, in which the last words are looked for
_SAID = frozenset({"user", "assistant", "system"})


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one response: `input` without the cached ones, what was cached for 5 minutes and for an hour."""

    message_id: str
    model: str
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0

    @property
    def tokens(self) -> int:
        """All of them."""
        return self.input + self.output + self.cache_read + self.cache_write_5m + self.cache_write_1h


@dataclass(frozen=True, slots=True)
class Reading:
    """A transcript, and what is new in it."""

    state: Transcript
    size_bytes: int = 0
    total_microusd: int | None = None
    """The last total that was written: what a resumed session's total starts from."""
    total_is_new: bool = False
    """It was written after `since_bytes`."""
    usages: tuple[Usage, ...] = ()
    """Of every new response, subagents' too, each once."""
    cut: bool = False
    """A new request has no response: it was in flight when the process died, or the API failed it."""


@dataclass(frozen=True, slots=True)
class Words:
    """What an agent last said, as it said it, and the steps of its last plan with the state of each."""

    said: str = ""
    plan: tuple[str, ...] = ()


def path(config_dir: Path, cwd: Path, session_id: str) -> Path:
    """Return where the CLI keeps a session's transcript, or will.

    The directory is named after the real `cwd`. Where that name is cut, or a character counts as two, it is looked for.
    """
    expected = directory(config_dir, cwd) / f"{session_id}.jsonl"
    if expected.exists():
        return expected
    return next(iter(sorted(config_dir.glob(f"projects/*/{session_id}.jsonl"))), expected)


def directory(config_dir: Path, cwd: Path) -> Path:
    """Return where the transcripts of `cwd` are, unless the name is cut (then a hash follows what is returned)."""
    name = re.sub(r"[^a-zA-Z0-9]", "-", os.path.realpath(cwd))
    return config_dir / "projects" / name[:_NAME_CHARS]


def read(path: Path, *, since_bytes: int = 0, until_bytes: int | None = None) -> Reading:
    """Return what a transcript says, and what is new in it after its first `since_bytes`.

    With `until_bytes` it is read as it was when it was so long.

    Raises:
        OSError: It is there and cannot be read, or is no regular file.
    """
    main = _Pass()
    try:
        size_bytes = path.stat().st_size
        for end, entry in _entries(path, since_bytes, until_bytes):
            main.take(entry, new=end > since_bytes)
        until = None if until_bytes is None else _time_of_next(path, until_bytes)
    except FileNotFoundError:
        return Reading(Transcript.MISSING)
    passes = [main]
    for subagent in sorted(path.with_suffix("").glob("subagents/*.jsonl")):
        passes.append(_Pass())
        for _, entry in _entries(subagent):
            at = _text(entry, "timestamp")
            if until is None or at < until:
                passes[-1].take(entry, new=main.since is not None and at >= main.since)
    return Reading(
        state=Transcript.USABLE if main.usable else Transcript.UNUSABLE,
        size_bytes=size_bytes,
        total_microusd=main.total_microusd,
        total_is_new=main.total_is_new,
        usages=tuple({usage.message_id: usage for each in passes for usage in each.usages.values()}.values()),
        cut=any(each.asking for each in passes),
    )


def last_words(path: Path) -> Words:
    """Return what the agent last said in a session; nothing where that cannot be read."""
    said, plan = "", dict[str, tuple[str, str]]()
    with suppress(OSError):
        for _, entry in _entries(path, skip_bytes=max(path.stat().st_size - _TAIL_BYTES, 0)):
            message = _object(entry, "message")
            if entry.get("isSidechain") is True:
                continue
            _plan(plan, _object(entry, "toolUseResult"))
            if entry.get("type") != "assistant":
                continue
            blocks = message.get("content") if _text(message, "model") != "<synthetic>" else None
            for block in filter(_is_object, blocks if isinstance(blocks, list) else ()):
                said = _text(block, "text").strip() or said
    return Words(said, tuple(f"{status}: {subject}" for subject, status in plan.values() if status != "deleted"))


def price(usages: Iterable[Usage]) -> int | None:
    """Return what responses cost at list price, in micro-dollars; None when a model has no known price."""
    import genai_prices  # noqa: PLC0415  half a second that only a killed run needs

    total = Decimal(0)
    for usage in usages:
        tokens = {
            "input_tokens": usage.input + usage.cache_read + usage.cache_write_5m + usage.cache_write_1h,
            "output_tokens": usage.output,
            "cache_read_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write_5m + usage.cache_write_1h,
            "cache_write_1h_tokens": usage.cache_write_1h,
        }
        counted = genai_prices.Usage(**{name: count for name, count in tokens.items() if count})
        try:
            total += genai_prices.calc_price(counted, usage.model, provider_id="anthropic").total_price
        except LookupError:
            return None
    return min(round(total * 1_000_000), _MOST)


@dataclass(slots=True)
class _Pass:
    """What is gathered in one pass over one file."""

    usable: bool = False
    since: str | None = None
    """The time of the first new entry that has one."""
    total_microusd: int | None = None
    total_is_new: bool = False
    usages: dict[str, Usage] = field(default_factory=dict)
    old: set[str] = field(default_factory=set)
    """Ids of the responses that are not new."""
    asking: bool = False
    """A new request was sent, and nothing of the conversation came after it."""

    def take(self, entry: Mapping[str, object], *, new: bool) -> None:
        kind = _text(entry, "type")
        if kind in _CONVERSATION and entry.get("isSidechain") is not True:
            self.usable = True
        if new and self.since is None:
            self.since = _text(entry, "timestamp") or None
        if kind == "cost-state" and (total := _microusd(entry.get("totalCostUSD"))) is not None:
            self.total_microusd, self.total_is_new = total, new
        elif kind == "api-request":
            self.asking = new
        elif kind in _SAID:
            self.asking = False
        if kind == "assistant" and (usage := _usage(entry)) is not None:
            self._count(usage, new=new)

    def _count(self, usage: Usage, *, new: bool) -> None:
        if not new:
            self.old.add(usage.message_id)
        elif usage.message_id not in self.old:
            self.usages[usage.message_id] = usage
            self.total_is_new = False  # the total is older than this response


def _time_of_next(path: Path, since_bytes: int) -> str | None:
    """Return the time of the first entry after `since_bytes` that has one."""
    times = (_text(entry, "timestamp") for end, entry in _entries(path, since_bytes) if end > since_bytes)
    return next(filter(None, times), None)


def _entries(
    path: Path, since_bytes: int = 0, until_bytes: int | None = None, skip_bytes: int = 0
) -> Iterator[tuple[int, Mapping[str, object]]]:
    """Yield each line that is a JSON object, and where it ends; one glued to a torn line, from `since_bytes`."""
    end = skip_bytes
    with open(path, "rb", opener=_regular) as file:
        file.seek(skip_bytes)
        while (until_bytes is None or end < until_bytes) and (line := file.readline(_LINE_BYTES)):
            begin, end = end, end + len(line)
            if until_bytes is not None and end > until_bytes:
                end, line = until_bytes, line[: until_bytes - begin]
            if begin < since_bytes < end:
                line = line[since_bytes - begin :]
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield end, entry


def _regular(path: str, flags: int) -> int:
    """Open a regular file; an agent may have put anything in its place, and opening a pipe would wait for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def _usage(entry: Mapping[str, object]) -> Usage | None:
    """Return what a line of an assistant message says that the message used; None for one of the CLI's own."""
    message = _object(entry, "message")
    usage, identity, model = _object(message, "usage"), _text(message, "id"), _text(message, "model")
    if not usage or not identity or model == "<synthetic>":
        return None
    hour = _count_of(_object(usage, "cache_creation"), "ephemeral_1h_input_tokens")
    return Usage(
        message_id=identity,
        model=model,
        input=_count_of(usage, "input_tokens"),
        output=_count_of(usage, "output_tokens"),
        cache_read=_count_of(usage, "cache_read_input_tokens"),
        cache_write_5m=max(_count_of(usage, "cache_creation_input_tokens") - hour, 0),
        cache_write_1h=hour,
    )


def _plan(plan: dict[str, tuple[str, str]], result: Mapping[str, object]) -> None:
    """Note what came of a call of TaskCreate, TaskGet or TaskUpdate: subject and status of a step, by its id."""
    task, change = _object(result, "task"), _object(result, "statusChange")
    if subject := _text(task, "subject"):
        plan[_text(task, "id")] = subject, _text(task, "status") or "pending"
    if (step := _text(result, "taskId")) in plan and (status := _text(change, "to")):
        plan[step] = plan[step][0], status


def _is_object(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, dict)


def _object(entry: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


def _text(entry: Mapping[str, object], key: str) -> str:
    value = entry.get(key)
    return value if isinstance(value, str) else ""


def _count_of(entry: Mapping[str, object], key: str) -> int:
    value = entry.get(key)
    return value if isinstance(value, int) and 0 <= value <= _MOST else 0


def _microusd(usd: object) -> int | None:
    return round(usd * 1e6) if isinstance(usd, int | float) and 0 <= usd <= _MOST / 1e6 else None
