"""When work goes round in circles: the same failing call, runs that change nothing, the same failing check.

What is compared is compared by hash, after what differs each time anyway (times,
durations, addresses, names of temporary files) was taken out of it.

Pure. Does not know who looks, and what follows.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

RUNS_TO_HOLD = 3
"""Runs in a row that left everything as it was, or whose work fails the same check in the same way."""

_NOISE = re.compile(
    r"""\x1b\[[0-9;?]*[A-Za-z]                                     # colours
    | \b0x[0-9a-fA-F]+                                             # addresses
    | \b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?    # dates
    | \b\d\d:\d\d:\d\d(?:[.,]\d+)?                                 # times of day
    | \b\d+(?:\.\d+)?\s?(?:[mnu]?s|secs?|seconds?|minutes?)\b      # durations
    | /tmp/\S+""",
    re.VERBOSE,
)


def same(text: str) -> str:
    """Return what two texts share that say the same at different times."""
    said = " ".join(_NOISE.sub(" ", text).split())
    return hashlib.sha256(said.encode(errors="replace")).hexdigest()[:32]


def repeats(seen: Sequence[str | None]) -> int:
    """Return how many of the last ones, in a row, are the last one; None is like no other, itself included."""
    count = 0
    while count < len(seen) and seen[-1 - count] is not None and seen[-1 - count] == seen[-1]:
        count += 1
    return count


def fingerprint(work: str, *, effects: Iterable[tuple[str, str, str | None]], said: str) -> str:
    """Return what two ends of runs share that left the same behind.

    Args:
        work: What the worktree holds.
        effects: Key, state and outcome of each.
        said: The agent's last words.
    """
    left = json.dumps([work, sorted(map(list, effects), key=str), same(said)])
    return hashlib.sha256(left.encode(errors="replace")).hexdigest()[:32]


class Calls:
    """The calls of tools that failed since one last succeeded."""

    def __init__(self) -> None:
        self._failed: Counter[tuple[str, str]] = Counter()

    def failed(self, call: str, error: str) -> int:
        """Return how often a call, by the hash of its tool and input, has failed with this error by now."""
        failure = call, same(error)
        self._failed[failure] += 1
        return self._failed[failure]

    def succeeded(self) -> None:
        """Begin anew: something moves."""
        self._failed.clear()
