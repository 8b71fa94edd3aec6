"""Tables that fit a terminal: less important columns are left out, one is folded, the first is never cut.

Knows rich. Does not know what is in the cells.
"""

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_LEAST_ROOM = 36
"""Of the column that is folded, before another one is left out for it."""
_LONG = 24
"""Where there is no room a longer first cell has a line of its own, and the folded column no less."""
_NARROW = 120
"""Of a terminal: below it `plain` leaves columns out."""
_KEY_CHARS = 40
_GAP = "  "
_NONE = Text("")


def aligned(
    names: Sequence[str], rows: Iterable[Sequence[Text]], console: Console, *, fold: str, leave_out: Sequence[str]
) -> Text:
    """Return rows under each other: on a terminal within its width, elsewhere a line each, that ends with `fold`.

    rich's own table takes half a second for a thousand rows.

    Args:
        names: Of the columns.
        rows: As many cells each.
        console: Where they will be printed.
        fold: The column that goes on below itself.
        leave_out: The columns that a narrow terminal does without, the first one first.
    """
    heads: Sequence[Text] = [Text(name, style="bold") for name in names]
    all_rows, folded = [heads, *rows], names.index(fold)
    widths = [max(cell.cell_len for cell in column) for column in zip(*all_rows, strict=True)]
    kept = [*(column for column in range(len(widths)) if column != folded), folded]  # one long cell pads no other line
    if console.is_terminal:
        kept = _fit(widths, console.width, folded, [names.index(name) for name in leave_out])
    lines = [line for row in all_rows for line in _lines(row, console, widths, kept, folded)]
    return Text("\n").join([*lines, _NONE])


def _lines(
    row: Sequence[Text], console: Console, widths: Sequence[int], kept: Sequence[int], folded: int
) -> Iterable[Text]:
    """Yield the lines of one row."""
    first = row[0]
    if first.cell_len > widths[0]:
        yield first
        first = _NONE
    parts = [row[folded]] if row[folded].cell_len <= widths[folded] else row[folded].wrap(console, widths[folded])
    for number, part in enumerate(parts):
        cells = [first, *row[1:]] if number == 0 else [_NONE] * len(row)
        cells[folded] = part
        padded = [Text.assemble(cells[column], " " * (widths[column] - cells[column].cell_len)) for column in kept]
        line = Text(_GAP).join(padded)
        line.rstrip()
        yield line


def _fit(widths: list[int], width: int, folded: int, leave_out: Sequence[int]) -> list[int]:
    """Return the columns that a terminal has room for, and make `widths` those in which they fit."""
    kept = [*range(len(widths))]
    wanted = min(widths[folded], _LEAST_ROOM)
    for left_out in (None, *leave_out):
        kept = [column for column in kept if column != left_out]
        if _room(widths, width, kept, folded) >= wanted:
            break
    else:
        widths[0] = min(widths[0], _LONG)
    widths[folded] = min(widths[folded], max(_room(widths, width, kept, folded), _LONG))
    return kept


def _room(widths: Sequence[int], width: int, kept: Sequence[int], folded: int) -> int:
    return width - sum(widths[column] + len(_GAP) for column in kept if column != folded)


def plain(names: Iterable[str], console: Console, *, leave_out: Collection[str]) -> Table:
    """Return a table of rich's without rows; a narrow terminal does without the columns of `leave_out`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        if console.width >= _NARROW or name not in leave_out:
            width = _KEY_CHARS if name == "key" else None
            table.add_column(name, overflow="fold", no_wrap=name == "key", min_width=width)
    return table
