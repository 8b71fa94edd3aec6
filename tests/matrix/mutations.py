"""What would break the promises, one line each; kept, so that the matrix is known to notice.

Each is applied to a copy of the project, never to the project itself, and a cell is
played there, which has to be red. `python -m tests.matrix.mutations` tries all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROJECT = Path(__file__).parent.parent.parent
_COPIED = ("runner", "tickets", "tests", "docs")


@dataclass(frozen=True, slots=True)
class Mutation:
    """One defect."""

    name: str
    file: str
    before: str
    """Occurs once in the file."""
    after: str
    noticed_by: str
    """A cell; or a file of tests where one daemon alone does not come into the situation."""


MUTATIONS = (
    Mutation(
        "an effect is performed before its claim is saved",
        "runner/effects.py",
        """\
        is_wanted = row.state is EffectState.WANTED
        claimed = await self._write(
""".rstrip("\n"),
        """\
        is_wanted = row.state is EffectState.WANTED
        if is_wanted and performer is not None:
            outcome = await self._call(performer, row)
            claimed = await self._write(effects.claim, row.key, epoch=self._epoch)
            if claimed is not None:
                await self._save(claimed, outcome)
            return
        claimed = await self._write(
""".rstrip("\n"),
        "full: deploy.begun 1 (daemon)",
    ),
    Mutation(
        "what a dead daemon claimed is done again without a look",
        "runner/effects.py",
        "        if not isinstance(looked, Absent):\n            await self._save(row, looked)\n            return\n",
        "",
        "full: deploy.acted 1 (daemon)",
    ),
    Mutation(
        "a claim that is over may still write",
        "runner/store/claims.py",
        "    if not is_claimed(rx, ticket_id, token):\n        raise LostTicket(ticket_id, token)",
        "    del rx, ticket_id, token",
        "tests/test_store.py",
    ),
    Mutation(
        "what a claim left running is not swept",
        "runner/parts.py",
        """    reaped = await processes.reap(str(parts.home.path), ticket)""",
        """    reaped = processes.Reaped((), cli_alive=False, cli_killed=False)""",
        "steered: ticket.stopped 1 (daemon)",
    ),
    Mutation(
        "what a session cost before is counted again",
        "runner/run.py",
        "carried_microusd=(before.total_microusd or 0) if plan.resume else 0,",
        "carried_microusd=0,",
        "full: tool.started 6 (term)",
    ),
    Mutation(
        "a finished conversation goes on",
        "runner/claim.py",
        "return finished_conversation(",
        "return None is finished_conversation(",
        "full: check.passed 1 (tree)",
    ),
    Mutation(
        "no fresh session follows a resume that failed",
        "runner/run.py",
        "    if isinstance(ran, Scarce) or ran.outcome is not Outcome.RESUME_FAILED:\n        return ran",
        "    if isinstance(ran, Scarce) or ran.outcome is not None:\n        return ran",
        "full: tool.started 1 (tree): lost",
    ),
)


@contextmanager
def mutated(mutation: Mutation) -> Iterator[Path]:
    """Give a copy of the project that has the defect.

    Raises:
        ValueError: The line that it changes is not there, or more than once: the code has moved on.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        copy = Path(directory)
        for name in _COPIED:
            shutil.copytree(_PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(_PROJECT / "pyproject.toml", copy)
        file = copy / mutation.file
        text = file.read_text()
        if text.count(mutation.before) != 1:
            raise ValueError(f"{mutation.file} has {text.count(mutation.before)} times {mutation.before!r}")
        file.write_text(text.replace(mutation.before, mutation.after))
        yield copy


def noticed(mutation: Mutation) -> tuple[bool, str]:
    """Return whether the mutation's cell or test is red, and what was said."""
    with mutated(mutation) as copy:
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", mutation.noticed_by]
        cell = [sys.executable, "-m", "tests.matrix", mutation.noticed_by]
        command = tests if mutation.noticed_by.endswith(".py") else cell
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # its --basetemp
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    return done.returncode == 1 and ("RED:" in said or "FAILED" in said), said


def main() -> int:
    """Try all, and say which are noticed; 1 when one is not."""
    codes = []
    for mutation in MUTATIONS:
        is_noticed, said = noticed(mutation)
        red = next((line.strip() for line in said.splitlines() if "RED:" in line or "FAILED" in line), said)
        print(f"{'noticed' if is_noticed else 'NOT NOTICED'}: {mutation.name}\n    {red}", flush=True)  # noqa: T201
        codes.append(not is_noticed)
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
