"""Put a queue up and work on it: init, check, add, start."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.common import (
    ConfigOption,
    app,
    load,
    reading,
)
from runner.errors import ConfigError, Exit, RunnerError, UsageError

if TYPE_CHECKING:
    from runner.config import Config


_SAMPLE = """\
---
title: Say hello
budget_usd: 0.50
---
Add a file HELLO.md to the top of this repository: one friendly sentence about what the repository is for.
"""


@app.command()
def init(
    repository: Annotated[str, typer.Argument(help="The repository to work on: a path or a URL.")] = ".",
    *,
    force: Annotated[bool, typer.Option("--force", help="Write over a configuration that is there.")] = False,
) -> None:
    """Write a commented configuration and a sample ticket."""
    from runner.config import Config, is_url, template
    from runner.home import Home

    named = is_url(repository)
    if named:
        _demand_no_password(repository)
    path = (Path.cwd() if named else _checkout_of(Path(repository))) / "ticket-runner.toml"
    if path.exists() and not force:
        raise UsageError(f"{path} exists already: `init --force` writes over it")
    _write(path, template(repository if named else "."))
    config = Config.load(path)
    Home.of(config).prepare(config.repository_path)
    sample = config.state_directory / "sample.md"
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
    for finding in preflight.check(load(config)):
        verdict = "WRONG" if not finding.ok else "look" if finding.doubtful else "ok"
        typer.echo(f"{verdict:<6} {finding.what:<16} {finding.said}")
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

    loaded = load(config)
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
    for doubt in _doubts(loaded, path.name.removesuffix(".md")):
        typer.echo(f"look  {doubt}", err=True)
    with suppress(PermissionError):  # a queue may be open to those to whom the state directory is not
        if Home.of(loaded).holder() is None:
            typer.echo("no daemon runs: `ticket-runner start` works on it")


@app.command()
def start(
    *,
    once: Annotated[bool, typer.Option("--once", help="Work until nothing is due, then exit.")] = False,
    config: ConfigOption = None,
) -> int:
    """Run the daemon in the foreground."""
    from runner import daemon

    return daemon.serve(load(config), once=once)


def _refuse_known(config: "Config", ticket: str) -> None:
    """Refuse an id that a ticket had whose file is gone from the folder."""
    from runner.store import NothingYet, tickets

    try:
        with reading(config) as store:
            known = store.read(tickets.known, ticket)
    except (NothingYet, PermissionError):
        return
    if known is not None:
        raise RunnerError(f"{ticket}: ticket {known.spec.id} is known and {known.state}: choose another id")


def _doubts(config: "Config", ticket: str) -> Iterator[str]:
    """Yield what may be a mistake in a ticket that was added."""
    from runner.config import unknown_tools
    from tickets import folder
    from tickets.front_matter import NotATicket

    with suppress(NotATicket, OSError):  # a daemon may have moved it
        for tool in unknown_tools(folder.look_at(config.queue_directory, ticket).tools or ()):
            place = folder.where(config.queue_directory, ticket, "tools")
            yield f"{place}: no tool of Claude Code's has this name, and none is given for it: {tool}"


def _demand_no_password(repository: str) -> None:
    from runner.config import demand_no_password

    try:
        demand_no_password(repository)
    except ValueError as error:
        raise UsageError(f"the repository {error}") from None


def _checkout_of(path: Path) -> Path:
    """Return the top of the git checkout that `path` is in."""
    resolved = path.resolve()
    if not resolved.exists():
        raise ConfigError(f"{resolved}: there is no such path")
    for place in (resolved, *resolved.parents):
        if (place / ".git").exists():
            return place
    raise ConfigError(f"{resolved} is in no git repository: go to one, or run `git init` and commit something")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
