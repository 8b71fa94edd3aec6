"""The sample repository, its tickets, and what the scripted model says to each.

The counts of tokens are made up, of the size that they have in a repository of usual size, each turn reading
from the cache what was said before it. All are multiples of 20, so that every reply costs whole micro-dollars
of `MODEL` and two ledgers can be compared to the last one.

Knows scripts. Does not know the runner.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from runner.offline.script import Reply, Scene, Script, Text, ToolUse

MODEL = "claude-sonnet-4-5"

FILES = {
    ".gitignore": "__pycache__/\n",
    "README.md": "# backoff\n\nCall what fails now and then, and wait longer after each failure.\n",
    "backoff.py": '''\
"""Call what fails now and then, and wait longer after each failure."""

import time


def delays(times, first_s=1.0):
    """Return the seconds to wait after each failure but the last; each is twice the one before."""
    return [first_s * number for number in range(1, times)]


def retry(call, times=5, first_s=1.0, sleep=time.sleep):
    """Return what `call` returns; when it raises, wait and call again, `times` times in all."""
    for delay_s in delays(times, first_s):
        try:
            return call()
        except OSError:
            sleep(delay_s)
    return call()
''',
    "example.py": '''\
"""Show how long a call that always fails is waited for."""

import time

from backoff import retry


def sleep(delay_s):
    print(f"wait {delay_s:.1f} s", flush=True)
    time.sleep(delay_s)


def fail():
    raise OSError("no answer")


try:
    retry(fail, times=5, first_s=0.4, sleep=sleep)
except OSError as error:
    print(f"gave up: {error}")
''',
    "test_backoff.py": """\
import unittest

from backoff import delays, retry


class BackoffTest(unittest.TestCase):
    def test_waits_grow(self):
        self.assertEqual(delays(3), [1.0, 2.0])

    def test_result_is_returned(self):
        self.assertEqual(retry(lambda: 7), 7)
""",
}

_USAGE = """\
# Usage

How long is waited after each failure:

    >>> from backoff import delays, retry
    >>> delays(3)
    [1.0, 2.0]

Call something that may fail:

    >>> retry(lambda: "an answer")
    'an answer'
"""
_DOUBLED = "first_s * 2**number for number in range(times - 1)"
_LAST_TEST = "        self.assertEqual(retry(lambda: 7), 7)\n"
_TEST_OF_DOUBLING = """
    def test_each_wait_doubles(self):
        self.assertEqual(delays(5, first_s=0.5), [0.5, 1.0, 2.0, 4.0])
"""
_TEST_OF_LAST_ERROR = """
    def test_last_error_is_raised(self):
        def fail():
            raise OSError("no answer")

        waits = []
        with self.assertRaisesRegex(OSError, "no answer"):
            retry(fail, times=3, sleep=waits.append)
        self.assertEqual(waits, [1.0, 2.0])
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One reply of the model, with the tokens that are new to the cache and those that it says."""

    says: str
    calls: tuple[ToolUse, ...] = ()
    read_tokens: int = 400
    said_tokens: int = 200


@dataclass(frozen=True, slots=True)
class Sample:
    """A ticket, and how the model goes about it."""

    id: str
    title: str
    text: str
    verify: str
    steps: tuple[Step, ...]

    @property
    def markdown(self) -> str:
        """The ticket's file."""
        return f"---\ntitle: {self.title}\nbudget_usd: 1.00\nverify: [{self.verify}]\n---\n{self.text}\n"

    @property
    def scene(self) -> Scene:
        """What the model says to whoever gives it this ticket."""
        return Scene(self.title, tuple(_replies(self.steps)))


def _bash(line: str) -> ToolUse:
    return ToolUse("Bash", {"command": line})


def _read(path: str) -> ToolUse:
    return ToolUse("Read", {"file_path": path})


def _edit(path: str, old: str, new: str) -> ToolUse:
    return ToolUse("Edit", {"file_path": path, "old_string": old, "new_string": new})


_SYSTEM_TOKENS = 14_000
"""Claude Code's own prompt and tools, which an earlier conversation has put into the cache."""


def _replies(steps: Iterable[Step]) -> Iterable[Reply]:
    cached = _SYSTEM_TOKENS
    for step in steps:
        yield Reply(
            (Text(step.says), *step.calls),
            input_tokens=20,
            output_tokens=step.said_tokens,
            cache_read_tokens=cached,
            cache_write_tokens=step.read_tokens,
        )
        cached += step.read_tokens + step.said_tokens


SLOW = "python3 example.py"
"""What an agent runs for four seconds, and what is cut off in the middle."""

INTERRUPTED = "fix-doubling"

SAMPLES = (
    Sample(
        "add-usage-page",
        "Write a usage page",
        "Write USAGE.md: how to call `delays` and `retry`, with an example of each that doctest can run.",
        "python3 -m doctest USAGE.md",
        (
            Step("I will see what there is.", (_bash("git log --oneline -5; ls"), _read("backoff.py")), 1_600),
            Step("Two functions. The page:", (ToolUse("Write", {"file_path": "USAGE.md", "content": _USAGE}),), 3_200),
            Step("I run its examples.", (_bash("python3 -m doctest USAGE.md && echo all right"),)),
            Step("USAGE.md shows both functions; its examples run."),
        ),
    ),
    Sample(
        INTERRUPTED,
        "Double each wait",
        "`delays` promises that each wait is twice the one before, and they grow by the same step instead. "
        "Mend it, and add a test that would have seen it.",
        "python3 -m unittest",
        (
            Step("I will look around first.", (_bash("git log --oneline -5; ls; cat README.md"),), 2_000),
            Step("The code:", (_read("backoff.py"), _read("example.py")), 6_000, 300),
            Step("The tests:", (_read("test_backoff.py"), _bash("python3 -m unittest 2>&1 | tail -3")), 9_000, 300),
            Step("They pass with the defect. I want to see the waits.", (_bash(SLOW),), 8_000, 1_200),
            Step(
                "They grow by a step. I mend that and add a test.",
                (
                    _edit("backoff.py", "first_s * number for number in range(1, times)", _DOUBLED),
                    _edit("test_backoff.py", _LAST_TEST, _LAST_TEST + _TEST_OF_DOUBLING),
                ),
                800,
                900,
            ),
            Step("I try it, and commit.", (_bash("python3 -m unittest && git commit -qam 'Double each wait'"),)),
            Step("Each wait is twice the one before; a test of four waits would have seen that they were not."),
        ),
    ),
    Sample(
        "test-last-error",
        "Test that the last error is raised",
        "Nothing tests what `retry` does when every call fails. Add a test, without waiting in it.",
        "python3 -m unittest",
        (
            Step("I will look at both files.", (_read("backoff.py"), _read("test_backoff.py")), 4_000),
            Step(
                "`sleep` can be given, so the test need not wait.",
                (_edit("test_backoff.py", _LAST_TEST, _LAST_TEST + _TEST_OF_LAST_ERROR),),
                2_400,
                600,
            ),
            Step("I run it.", (_bash("python3 -m unittest"),)),
            Step("A call that fails three times raises its last error after two waits; there is a test for it."),
        ),
    ),
)

SCRIPT = Script(tuple(sample.scene for sample in SAMPLES))
