"""The command line: parse, build the parts, call one function, return its exit code.

Imports inside the commands, so that one that only reads needs neither the SDK nor git.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.errors import ConfigError, Exit, RunnerError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from runner.config import Config
    from runner.store import Store
    from runner.store.effects import EffectRow

_DIFF_BYTES = 10 * 1024 * 1024
_MISUSED = 2
"""What the parser leaves with when it cannot make sense of the words."""
_SAMPLE = """\
---
title: Say hello
budget_usd: 0.50
---
Add a file HELLO.md to the top of this repository: one friendly sentence about what the repository is for.
"""


def _leave(code: int | None) -> None:
    """Exit with what a command returned."""
    raise typer.Exit(int(code or Exit.OK))


app = typer.Typer(
    name="ticket-runner",
    help="Work on a queue of tickets with Claude, each in a git worktree of its own, and lose nothing when killed.",
    result_callback=_leave,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The configuration; default: $TICKET_RUNNER_CONFIG, or ./ticket-runner.toml upwards."
    ),
]
TicketArgument = Annotated[str, typer.Argument(help="The ticket's id.", metavar="TICKET")]
KeyArgument = Annotated[str, typer.Argument(help="The effect's key, as `effects` shows it.", metavar="KEY")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


def main() -> None:
    """Run the command line and exit."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that is not UTF-8 still gets its table
    try:
        app()
    except SystemExit as left:
        sys.exit(Exit.USAGE if left.code == _MISUSED else left.code)
    except (RunnerError, ExceptionGroup, PermissionError) as error:
        foreseen = _foreseen(error)
        if foreseen is None:
            raise
        sys.stderr.write(f"ticket-runner: {foreseen}\n")
        sys.exit(foreseen.exit_code)


def _foreseen(error: Exception) -> RunnerError | None:
    """Return what a daemon's task groups have wrapped, if that is one thing that we foresee."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, PermissionError):
        return ConfigError(f"{error.filename}: permission denied: run this as the user who owns the state directory")
    return error if isinstance(error, RunnerError) else None


@app.command()
def init(
    repository: Annotated[Path, typer.Argument(help="The repository to work on.")] = Path(),
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over a configuration that is there.")] = False,
) -> None:
    """Write a commented configuration and a sample ticket."""
    from runner.config import Config, template
    from runner.home import Home

    top = _checkout_of(repository)
    path = top / "ticket-runner.toml"
    if path.exists() and not force:
        raise UsageError(f"{path} exists already: `init --force` writes over it")
    _write(path, template("."))
    config = Config.load(path)
    Home.of(config).prepare(config.repository_path)
    sample = config.state_directory / "hello.md"
    _write(sample, _SAMPLE)
    typer.echo(f"configuration  {path}\nqueue          {config.queue_directory}\nsample ticket  {sample}")
    typer.echo(f"next           ticket-runner check; ticket-runner add {sample}; ticket-runner start --once")


@app.command()
def check(config: ConfigOption = None) -> int:
    """Look at configuration, credential and machine.

    Nothing is spent: whether the key is accepted shows with the first ticket.
    """
    from runner import preflight

    failed = False
    for finding in preflight.check(_load(config)):
        typer.echo(f"{'ok' if finding.ok else 'WRONG':<6} {finding.what:<16} {finding.said}")
        failed = failed or not finding.ok
    return Exit.CONFIG if failed else Exit.OK


@app.command()
def add(
    file: Annotated[str, typer.Argument(help="A Markdown file, or - for standard input.")],
    ticket_id: Annotated[str | None, typer.Option("--id", help="The ticket's id; default: the file's name.")] = None,
    config: ConfigOption = None,
) -> None:
    """Put a ticket into the queue."""
    from runner.home import Home
    from tickets import folder
    from tickets.front_matter import NotATicket

    loaded = _load(config)
    if ticket_id == "" or (ticket_id is None and file == "-"):
        raise UsageError("a ticket from standard input needs --id" if file == "-" else "--id is empty")
    _refuse_known(loaded, ticket_id if ticket_id is not None else Path(file).name.removesuffix(".md"))
    try:
        loaded.queue_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = folder.add(loaded.queue_directory, sys.stdin.buffer.read() if file == "-" else Path(file), ticket_id)
    except NotATicket as error:
        raise RunnerError(str(error)) from error
    except OSError as error:
        raise RunnerError(f"{error.filename or file}: {error.strerror}") from error
    typer.echo(f"added {path}")
    with suppress(PermissionError):  # a queue may be open to those to whom the state directory is not
        if Home.of(loaded).holder() is None:
            typer.echo("no daemon runs: `ticket-runner start` works on it")


@app.command()
def start(
    *,
    once: Annotated[bool, typer.Option("--once", help="Work until nothing is ready, then exit.")] = False,
    config: ConfigOption = None,
) -> int:
    """Run the daemon in the foreground."""
    from runner import daemon

    return daemon.serve(_load(config), once=once)


@app.command()
def status(
    *,
    as_json: JsonOption = False,
    done: Annotated[bool, typer.Option("--done", help="Also tickets that are done or cancelled.")] = False,
    since: Annotated[str | None, typer.Option(help="All that changed since: 2h, 3d, or 2026-01-31.")] = None,
    config: ConfigOption = None,
) -> None:
    """Show one row per ticket; works with the daemon down."""
    from runner import render
    from runner import status as of
    from runner.home import Home
    from tickets.ticket import State

    since_us, loaded = _since_us(since), _load(config)
    view = of.nothing()
    with _nothing_is_fine(), _reading(loaded) as store:
        view = store.read(of.look, states=[*State] if done or since else of.OPEN, since_us=since_us)
    view = replace(view, daemon=Home.of(loaded).holder())
    if as_json:
        typer.echo(render.to_json(view))
    else:
        render.overview(view, _console())


@app.command()
def show(ticket: TicketArgument, *, as_json: JsonOption = False, config: ConfigOption = None) -> None:
    """Show all that is known of one ticket."""
    from runner import render
    from runner import status as of

    with _reading(_load(config)) as store:
        view = store.read(of.look_at, ticket)
    if as_json:
        typer.echo(render.to_json(view))
    else:
        render.details(view, _console())


@app.command()
def events(
    ticket: Annotated[str | None, typer.Argument(help="Of one ticket only.", metavar="TICKET")] = None,
    *,
    since: Annotated[int, typer.Option(help="Only those after this number.")] = 0,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Print the log."""
    from runner import render
    from runner.store import log, tickets

    with _nothing_is_fine(ticket), _reading(_load(config)) as store:
        if ticket is not None:
            store.read(tickets.get, ticket)
        while entries := store.read(log.events, ticket=ticket, since=since):
            since = entries[-1].id
            if as_json:
                typer.echo("\n".join(map(render.entry_json, entries)))
            else:
                render.events(entries, _console())


@app.command()
def diff(ticket: TicketArgument, config: ConfigOption = None) -> None:
    """Print what a ticket has changed since its base."""
    from runner import render
    from runner.daemon import repository_of
    from runner.store import tickets

    loaded = _load(config)
    with _reading(loaded) as store:
        row = store.read(tickets.get, ticket)
    if row.base_sha is None:
        raise RunnerError(f"ticket {ticket} has no worktree yet")
    patch = repository_of(loaded, None).diff(ticket, row.base_sha, limit_bytes=_DIFF_BYTES)
    sys.stdout.write(render.harmless(patch) if sys.stdout.isatty() else patch)  # echo would take escapes out of a patch


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

    loaded = _load(config)
    if repair:
        _repair(loaded, quiet=as_json)
    with _reading(loaded) as store:
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

    for line in of.backup(_load(config), file):
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

    for line in of.restore(_load(config), file, to):
        typer.echo(render.harmless(line))


@app.command()
def cancel(ticket: TicketArgument, config: ConfigOption = None) -> None:
    """Give a ticket up; its worktree and branch stay."""
    _steer(config, "cancel", ticket)


@app.command()
def hold(ticket: TicketArgument, config: ConfigOption = None) -> None:
    """Stop a ticket where it is and keep it out of the queue."""
    _steer(config, "hold", ticket)


@app.command()
def release(
    ticket: TicketArgument,
    *,
    budget_usd: Annotated[
        float, typer.Option("--budget-usd", help="Its new cap, over all its runs.", min=0, show_default=False)
    ] = 0,
    config: ConfigOption = None,
) -> None:
    """Let a held or waiting ticket go on where it stood.

    A finished conversation is not paid again: only checks and delivery are done.
    """
    if not isfinite(budget_usd):
        raise UsageError(f"--budget-usd {budget_usd}: an amount in dollars")
    _steer(config, "release", ticket, budget_microusd=round(budget_usd * 1_000_000))


@app.command()
def retry(
    ticket: TicketArgument,
    *,
    fresh: Annotated[bool, typer.Option("--fresh", help="In a new session.")] = False,
    config: ConfigOption = None,
) -> None:
    """Let the agent work on a ticket again, which costs.

    It goes on in its session, or with --fresh in a new one that is told what was done.
    """
    _steer(config, "retry", ticket, fresh=fresh)


@app.command()
def pause(config: ConfigOption = None) -> None:
    """Start no more tickets; running ones go on."""
    _steer(config, "pause")


@app.command()
def resume(config: ConfigOption = None) -> None:
    """Let the queue go on."""
    _steer(config, "resume")


@app.command()
def effects(
    ticket: Annotated[str | None, typer.Argument(help="Of one ticket only.", metavar="TICKET")] = None,
    *,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """List effects outside, those of unknown outcome first."""
    from runner import render
    from runner.store import effects as ledger
    from runner.store import tickets

    rows: list[EffectRow] = []
    with _nothing_is_fine(ticket), _reading(_load(config)) as store:
        if ticket is not None:
            store.read(tickets.get, ticket)
        rows = store.read(ledger.effects, ticket=ticket)
    if as_json:
        typer.echo(render.to_json(rows))
    else:
        render.effects(rows, _console())


@app.command()
def approve(key: KeyArgument, config: ConfigOption = None) -> None:
    """Let an effect that waits for approval be performed.

    `settle KEY --abandon` says no.
    """
    _steer(config, "approve", key=key)


@app.command()
def settle(
    key: KeyArgument,
    *,
    done: Annotated[str | None, typer.Option("--done", help="It happened: say what you saw.", metavar="TEXT")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="It did not happen: do it once more.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Go on without it.")] = False,
    config: ConfigOption = None,
) -> None:
    """Say what became of an effect whose outcome is unknown."""
    chosen = [name for name, given in (("done", done is not None), ("retry", retry), ("abandon", abandon)) if given]
    if len(chosen) != 1:
        raise UsageError(f"settle {key}: say one of --done TEXT, --retry, --abandon")
    _steer(config, "settle", key=key, decision=chosen[0], text=done or "")


@app.command()
def answer(
    ticket: TicketArgument,
    text: Annotated[str, typer.Argument(help="The answer, or - for standard input.", metavar="TEXT")],
    config: ConfigOption = None,
) -> None:
    """Answer what a ticket asked; its session goes on with the answer."""
    answered = sys.stdin.read() if text == "-" else text
    if not answered.strip():
        raise UsageError(f"answer {ticket}: the answer is empty")
    _steer(config, "answer", ticket, text=answered)


def _load(path: Path | None) -> "Config":
    from runner.config import Config, find_config

    return Config.load(find_config(Path.cwd(), os.environ, path))


@contextmanager
def _nothing_is_fine(ticket: str | None = None) -> Iterator[None]:
    """Say so and go on when nothing has run yet; of one ticket there should be something."""
    from runner.store import NothingYet

    try:
        yield
    except NothingYet as error:
        if ticket is not None:
            raise
        typer.echo(f"ticket-runner: {error}", err=True)


@contextmanager
def _reading(config: "Config") -> Iterator["Store"]:
    from runner.store import Store

    store = Store.open(config.database_url, read_only=True)
    try:
        yield store
    finally:
        store.close()


def _repair(config: "Config", *, quiet: bool) -> None:
    from runner import render
    from runner import repair as mending
    from runner.home import Home
    from runner.store import Store

    with _reading(config), Home.of(config).lock():  # nothing is made where nothing was
        store = Store.open(config.database_url)
        try:
            for line in mending.repair(config, store):
                typer.echo(render.harmless(f"{'repair':<7} {line}"), err=quiet)
        finally:
            store.close()


def _steer(
    path: Path | None,
    verb: str,
    ticket: str = "",
    *,
    fresh: bool = False,
    key: str = "",
    decision: str = "",
    text: str = "",
    budget_microusd: int = 0,
) -> None:
    """Tell the daemon, or, while none holds the home, do it here."""
    from runner import steering
    from runner.commands import Command, Verb

    command = Command(
        Verb(verb), ticket, fresh=fresh, key=key, decision=decision, text=text, budget_microusd=budget_microusd
    )
    typer.echo(steering.steer(_load(path), command))


def _refuse_known(config: "Config", ticket: str) -> None:
    """Refuse an id that a ticket had whose file is gone from the folder."""
    from runner.store import NothingYet, tickets

    try:
        with _reading(config) as store:
            known = store.read(tickets.known, ticket)
    except (NothingYet, PermissionError):
        return
    if known is not None:
        raise RunnerError(f"{ticket}: ticket {known.spec.id} is known and {known.state}: choose another id")


def _checkout_of(path: Path) -> Path:
    """Return the top of the git checkout that `path` is in."""
    resolved = path.resolve()
    for place in (resolved, *resolved.parents):
        if (place / ".git").exists():
            return place
    raise ConfigError(f"{resolved} is in no git repository: go to one, or run `git init` and commit something")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


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


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)
