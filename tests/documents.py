"""The tables of docs/, as tests compare them with the code."""

from pathlib import Path

_DOCS = Path(__file__).parent.parent / "docs"


def document(name: str) -> str:
    """Return what a document says."""
    return (_DOCS / name).read_text(encoding="utf-8")


def table(name: str, head: str = "") -> dict[str, dict[str, str]]:
    """Return a document's first table (of this head): by the first column of a row, its other cells by their heads."""
    lines = document(name).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {head}".rstrip()))
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    heads, _, *body = rows
    return {row[0]: dict(zip(heads[1:], row[1:], strict=True)) for row in body}
