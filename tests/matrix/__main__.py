"""`python -m tests.matrix`: play cells, and write what came of them."""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from tests import conftest  # noqa: F401  nothing of this machine is touched
from tests.matrix import results, table
from tests.matrix.moments import Cell
from tests.matrix.play import NeverDone, Played, play
from tests.matrix.verdict import Verdict, judge


def main() -> int:
    """Play what is asked for; 1 when a ticket ended otherwise than an undisturbed one."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=main.__doc__)
    parser.add_argument("cells", nargs="*", help="as in 'full: tool.started 1 (tree)'; without any, every cell")
    parser.add_argument("--write", action="store_true", help=f"write {table.DOCUMENT.name}, from every cell")
    parser.add_argument("--random", type=int, default=40, help="kills at random times and in pairs (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, help="keep what came of each cell there, and play no green one again")
    parser.add_argument("--processes", type=int, default=3, help="cells at the same time (%(default)s)")
    told = parser.parse_args()
    known = {} if told.results is None else results.green(told.results)
    with ThreadPoolExecutor(told.processes) as pool:
        if told.cells:
            return int(any(verdict.problems for verdict in _play(pool, map(Cell.parse, told.cells), None)))
        undisturbed = pool.map(_played, [section.undisturbed for section in table.SECTIONS])
        of = table.rows({section.name: played for section, played in zip(table.SECTIONS, undisturbed, strict=True)})
        cells = [*table.cells(of), *table.fresh_cells(of), *table.at_random(told.random, told.seed)]
        new = _play(pool, [cell for cell in cells if cell not in known], told.results)
    verdicts = [*(known[cell] for cell in cells if cell in known), *new]
    if told.write:
        table.DOCUMENT.write_text(table.text(of, verdicts, seed=told.seed))
    return int(any(verdict.problems for verdict in verdicts))


def _played(cell: Cell) -> Played:
    with tempfile.TemporaryDirectory(prefix="matrix-") as root:
        return play(cell, Path(root))


def _judged(cell: Cell) -> Verdict:
    with tempfile.TemporaryDirectory(prefix="matrix-") as root:
        try:
            return judge(play(cell, Path(root)))
        except NeverDone as error:
            return Verdict(cell, "", 0, None, 0, (str(error),))


def _play(pool: Executor, cells: Iterable[Cell], file: Path | None) -> list[Verdict]:
    """Play cells and print what came of each as soon as it is known."""
    done = []
    for verdict in pool.map(_judged, cells):
        done.append(verdict)
        seconds = "" if verdict.seconds is None else f", {verdict.seconds:.1f} s"
        print(f"{verdict.cell}: {verdict.goes_on}, {verdict.calls_more:+d}{seconds}", flush=True)  # noqa: T201
        for problem in verdict.problems:
            print(f"    RED: {problem}", flush=True)  # noqa: T201
        if file is not None:
            results.keep(verdict, file)
    return done


if __name__ == "__main__":
    sys.exit(main())
