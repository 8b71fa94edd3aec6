"""What came of cells, kept in a file, a line each: what one run has played is not played again to write the document.

Lines are appended whole, by several processes at a time. Knows verdicts, not how they are come by.
"""

from pathlib import Path

from pydantic import TypeAdapter

from tests.matrix.moments import Cell
from tests.matrix.verdict import Verdict

_VERDICT = TypeAdapter(Verdict)


def keep(verdict: Verdict, results: Path) -> None:
    """Append a verdict."""
    with results.open("ab", buffering=0) as file:
        file.write(_VERDICT.dump_json(verdict) + b"\n")


def green(results: Path) -> dict[Cell, Verdict]:
    """Return the last green verdict on each cell."""
    lines = results.read_bytes().splitlines() if results.exists() else []
    verdicts = [_VERDICT.validate_json(line) for line in lines]
    return {verdict.cell: verdict for verdict in verdicts if not verdict.problems}
