"""Keep a home: disk, fsck, backup, restore."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.common import (
    ConfigOption,
    JsonOption,
    app,
    load,
    nothing_is_fine,
    reading,
)
from runner.errors import Exit

if TYPE_CHECKING:
    from runner.config import Config
    from runner.disk import Left, Usage
    from runner.store.tickets import Row

_SHOWN = 10
"""Tickets."""


@app.command()
def fsck(
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what needs no decision; no daemon may run.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """Compare log, tables, transcripts, worktrees and processes, and say where they differ."""
    from runner import fsck as of
    from runner import json_lines, render

    loaded = load(config)
    if repair:
        _repair(loaded, quiet=as_json)
    with reading(loaded) as store:
        findings = of.examine(loaded, store)
    if as_json:
        typer.echo(json_lines.to_json(findings))
    else:
        for finding in findings:
            word = "DIFFERS" if finding.differs else "note"
            typer.echo(render.harmless(f"{word:<7} {finding.ticket or '-'}: {finding.what}: {finding.todo}"))
    return Exit.FAILED if any(finding.differs for finding in findings) else Exit.OK


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist.", metavar="FILE")],
    config: ConfigOption = None,
) -> None:
    """Put database, transcripts, repository, uncommitted work and queue into one file; a daemon may run."""
    from runner import backup as of

    for line in of.backup(load(config), file):
        typer.echo(line)


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `backup` wrote.", metavar="FILE")],
    to: Annotated[Path | None, typer.Option("--to", help="Default: the state_directory.", metavar="DIR")] = None,
    config: ConfigOption = None,
) -> None:
    """Fill an empty state directory from a backup; tickets go on in their sessions at the next start."""
    from runner import render
    from runner import restore as of

    for line in of.restore(load(config), file, to):
        typer.echo(render.harmless(line))


@app.command()
def disk(
    *,
    clean: Annotated[bool, typer.Option("--clean", help="Remove now what is due.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show what the state directory holds, and what of it is removed when; a daemon may run."""
    from runner import disk as of
    from runner import json_lines, render
    from runner.home import Home

    loaded = load(config)
    if clean:
        for line in _cleaned(loaded):
            typer.echo(render.harmless(line), err=as_json)
    now_us = time.time_ns() // 1000
    rows: list[tuple[Row, list[str]]] = []
    with nothing_is_fine(), reading(loaded) as store:
        now_us, rows = store.read(of.rows_here, Home.of(loaded).name)
    view = of.usage(loaded, now_us, rows)
    if as_json:
        typer.echo(json_lines.to_json(view))
        return
    for line in _lines(view):
        typer.echo(render.harmless(line))


def _cleaned(config: "Config") -> Iterator[str]:
    """Remove what is due, and yield what was done and how much room that made."""
    from runner.disk import removable_bytes
    from runner.home import Home
    from runner.machine import shown

    before = removable_bytes(Home.of(config))
    done = _clean(config)
    freed = before - removable_bytes(Home.of(config))
    if done:
        yield done
    if freed > 0 or not done:
        yield f"freed {shown(freed)}" if freed > 0 else "nothing is due"


def _clean(config: "Config") -> str:
    """Let the daemon remove what is due, or do it here; return what was done, a line each."""
    from runner import control
    from runner.commands import Command, Verb
    from runner.home import Home
    from runner.parts import local_copies
    from runner.store import Store
    from runner.upkeep import Upkeep

    home = Home.of(config)
    try:
        return control.send(home, Command(Verb.CLEAN))
    except control.NobodyListens:
        pass
    with reading(config), home.lock():  # nothing is made where nothing was
        store = Store.open(config.database_url)
        try:
            return "\n".join(Upkeep(config, home, store, local_copies(config)).run())
        finally:
            store.close()


def _lines(view: "Usage") -> Iterator[str]:
    from runner.machine import shown

    yield view.path
    for part in view.parts:
        yield f"  {part.name:<18}{shown(part.size_bytes):>12}"
    if view.other:
        yield f"  and also: {', '.join(view.other)}"
    if view.tickets:
        yield f"the largest of {len(view.tickets)} tickets"
    for left in view.tickets[:_SHOWN]:
        sizes = (f"{what} {shown(size)}{_when(left, what, view.now_us)}" for what, size in left.size_bytes.items())
        yield f"  {left.ticket}, {left.state}: {', '.join(sizes)}"
    for line in view.aside:
        yield f"put aside: {line}"
    free = "not known" if view.free_bytes is None else shown(view.free_bytes)
    yield f"free on this disk: {free}; no ticket starts below {shown(view.min_free_bytes)}"
    if view.shortage is not None:
        yield view.shortage


def _when(left: "Left", what: str, now_us: int) -> str:
    if what not in left.removed_us:
        return ""
    time_us = left.removed_us[what]
    if time_us is None:
        return " (kept)"
    return " (due)" if time_us <= now_us else f" (until {datetime.fromtimestamp(time_us / 1e6, UTC):%Y-%m-%d})"


def _repair(config: "Config", *, quiet: bool) -> None:
    from runner import render
    from runner import repair as mending
    from runner.home import Home
    from runner.store import Store

    with reading(config), Home.of(config).lock():  # nothing is made where nothing was
        store = Store.open(config.database_url)
        try:
            for line in mending.repair(config, store):
                typer.echo(render.harmless(f"{'repair':<7} {line}"), err=quiet)
        finally:
            store.close()
