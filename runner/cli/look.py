"""Read: status, show, explain, events, diff, effects. Needs neither the SDK nor git, but for diff."""

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from time import sleep
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.common import (
    ConfigOption,
    JsonOption,
    TicketArgument,
    app,
    console,
    load,
    nothing_is_fine,
    reading,
)
from runner.errors import RunnerError, UsageError

if TYPE_CHECKING:
    from runner.store.effects import EffectRow


_LOOK_AGAIN_S = 0.5  # a read of an index: what follows the log need not have a daemon to be told by
_DIFF_BYTES = 10 * 1024 * 1024


@app.command()
def status(
    *,
    as_json: JsonOption = False,
    done: Annotated[bool, typer.Option("--done", help="Also tickets that are done or cancelled.")] = False,
    since: Annotated[str | None, typer.Option(help="All that changed since: 2h, 3d, or 2026-01-31.")] = None,
    config: ConfigOption = None,
) -> None:
    """Show one row per open ticket; works with the daemon down."""
    from runner import json_lines, render
    from runner import status as of
    from tickets.ticket import OPEN, State

    since_us, loaded = _since_us(since), load(config)
    around = of.Around.of(loaded)
    view = of.nothing(around)
    with nothing_is_fine(), reading(loaded) as store:
        view = store.read(of.look, around, states=[*State] if done or since else OPEN, since_us=since_us)
    if as_json:
        typer.echo(json_lines.to_json(view))
    else:
        render.overview(view, console())


@app.command()
def show(ticket: TicketArgument, *, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show all that is known of one ticket."""
    from runner import json_lines, render
    from runner import status as of

    loaded = load(config)
    with reading(loaded) as store:
        view = store.read(of.look_at, ticket, of.Around.of(loaded))
    if as_json:
        typer.echo(json_lines.to_json(view))
    else:
        render.details(view, console())


@app.command()
def explain(ticket: TicketArgument, *, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Say why a ticket is not running and what would make it run."""
    from runner import json_lines, render
    from runner import status as of
    from runner.store import NothingYet

    loaded = load(config)
    around = of.Around.of(loaded)
    try:
        with reading(loaded) as store:
            view = store.read(of.explain, ticket, around)
    except NothingYet:
        if ticket not in around.files:
            raise
        view = of.explain_file(ticket, around)
    if as_json:
        typer.echo(json_lines.to_json(view))
    else:
        render.explanation(view, console())


@app.command()
def events(
    ticket: Annotated[str | None, typer.Argument(help="Of one ticket only.", metavar="TICKET")] = None,
    *,
    since: Annotated[int, typer.Option(help="Only those after this number.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then each that comes, until interrupted.")] = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print the log."""
    from runner import json_lines, render
    from runner.store import log, tickets

    with nothing_is_fine(ticket), reading(load(config)) as store, suppress(KeyboardInterrupt):
        if ticket is not None:
            store.read(tickets.get, ticket)
        while (entries := store.read(log.events, ticket=ticket, since=since)) or follow:
            if not entries:
                sleep(_LOOK_AGAIN_S)
                continue
            since = entries[-1].id
            if as_json:
                typer.echo("\n".join(map(json_lines.entry_json, entries)))
            else:
                render.events(entries, console())
            sys.stdout.flush()


@app.command()
def diff(ticket: TicketArgument, config: ConfigOption = None) -> None:
    """Print what a ticket has changed since its base."""
    from runner import render
    from runner.daemon import repository_of
    from runner.store import tickets

    loaded = load(config)
    with reading(loaded) as store:
        row = store.read(tickets.get, ticket)
    if row.base_sha is None:
        raise RunnerError(f"ticket {ticket} has no worktree yet: it gets one when it is first worked on")
    patch = repository_of(loaded, None).diff(ticket, row.base_sha, limit_bytes=_DIFF_BYTES)
    sys.stdout.write(render.harmless(patch) if sys.stdout.isatty() else patch)  # echo would take escapes out of a patch


@app.command()
def effects(
    ticket: Annotated[str | None, typer.Argument(help="Of one ticket only.", metavar="TICKET")] = None,
    *,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List effects outside, those of unknown outcome first."""
    from runner import json_lines, render
    from runner.store import effects as ledger
    from runner.store import tickets

    rows: list[EffectRow] = []
    with nothing_is_fine(ticket), reading(load(config)) as store:
        if ticket is not None:
            store.read(tickets.get, ticket)
        rows = store.read(ledger.effects, ticket=ticket)
    if as_json:
        typer.echo(json_lines.to_json(rows))
    else:
        render.effects(rows, console())


def _since_us(text: str | None) -> int | None:
    if text is None:
        return None
    units = {"m": "minutes", "h": "hours", "d": "days"}
    try:
        if text[-1:] in units and text[:-1].isdigit():
            at = datetime.now(UTC) - timedelta(**{units[text[-1]]: int(text[:-1])})
        else:
            at = datetime.fromisoformat(text)
            at = at if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--since {text!r}: say 30m, 2h, 3d, or a date as 2026-01-31") from error
    return int(at.timestamp() * 1_000_000)
