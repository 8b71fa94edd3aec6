"""Keep a home: fsck, backup, restore."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.common import (
    ConfigOption,
    JsonOption,
    app,
    load,
    reading,
)
from runner.errors import Exit

if TYPE_CHECKING:
    from runner.config import Config


@app.command()
def fsck(
    *,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what needs no decision; no daemon may run.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> int:
    """Compare log, tables, transcripts, worktrees and processes, and say where they differ."""
    from runner import fsck as of
    from runner import render

    loaded = load(config)
    if repair:
        _repair(loaded, quiet=as_json)
    with reading(loaded) as store:
        findings = of.examine(loaded, store)
    if as_json:
        typer.echo(render.to_json(findings))
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
