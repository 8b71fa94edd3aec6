"""What Claude Code wrote of a session: whether it can go on, and what it cost.

Read while no CLI writes: before a run and after it. A file that a crash tore is read
as far as it goes; a response is in it, whole and with its usage, or not at all.

Knows the files below CLAUDE_CONFIG_DIR/projects and genai-prices. Does not know runs.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.session import Transcript

_LINE_BYTES = 64 * 1024 * 1024  # as long as a frame may be; a longer line is passed over
_NAME_CHARS = 200  # of a project's directory; a longer one is cut, and a hash added
_CONVERSATION = frozenset({"user", "assistant", "attachment"})


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one response. `input` is without the cached ones; 5 minutes and 1 hour is how long a cache lasts."""

    message_id: str
    model: str
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0


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


def path(config_dir: Path, cwd: Path, session_id: str) -> Path:
    """Return where the CLI keeps a session's transcript, or will.

    The directory is named after the real `cwd`. Where that is too long, or a character counts as two, the name is found by looking.
    """
    name = re.sub(r"[^a-zA-Z0-9]", "-", os.path.realpath(cwd))
    expected = config_dir / "projects" / name[:_NAME_CHARS] / f"{session_id}.jsonl"
    if expected.exists():
        return expected
    return next(iter(sorted(config_dir.glob(f"projects/*/{session_id}.jsonl"))), expected)


def read(path: Path, *, since_bytes: int = 0) -> Reading:
    """Return what a transcript says, and what is new in it after its first `since_bytes`.

    Raises:
        OSError: It is there and cannot be read.
    """
    raise NotImplementedError


def price(usages: Iterable[Usage]) -> int | None:
    """Return what responses cost at list price, in micro-dollars; None when a model has no known price."""
    raise NotImplementedError
