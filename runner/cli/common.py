"""What the commands share: the app, their options, and how a configuration and its store are opened."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.errors import Exit

if TYPE_CHECKING:
    from rich.console import Console

    from runner.config import Config
    from runner.store import Store

_UNBOUNDED = 1_000_000
"""Characters in a line of a pipe."""


def _leave(code: int | None, **_: object) -> None:
    """Exit with what a command returned."""
    raise typer.Exit(int(code or Exit.OK))


app = typer.Typer(name="ticket-runner", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(wanted: bool) -> None:  # noqa: FBT001  typer calls it with the option's value
    if wanted:
        from importlib.metadata import version

        typer.echo(f"ticket-runner {version('ticket-runner')}")
        raise typer.Exit


@app.callback(result_callback=_leave, no_args_is_help=True)
def _of_all(
    *,
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Work on a queue of tickets with Claude, each in a git worktree of its own, and lose nothing when killed."""


ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="The configuration; default: $TICKET_RUNNER_CONFIG, or ./ticket-runner.toml upwards."
    ),
]
TicketArgument = Annotated[str, typer.Argument(help="The ticket's id.", metavar="TICKET")]
KeyArgument = Annotated[str, typer.Argument(help="The effect's key, as `effects` shows it.", metavar="KEY")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


def load(path: Path | None) -> "Config":
    """Return the configuration that was named, or that is found from where we stand.

    Raises:
        ConfigError: There is none, or something is wrong with it.
    """
    from runner.config import Config, find_config

    return Config.load(find_config(Path.cwd(), os.environ, path))


@contextmanager
def reading(config: "Config") -> Iterator["Store"]:
    """Open the store for reading, with or without a daemon.

    Raises:
        NothingYet: No daemon has run with this configuration.
    """
    from runner.store import Store

    store = Store.open(config.database_url, read_only=True)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def nothing_is_fine(ticket: str | None = None) -> Iterator[None]:
    """Say so and go on when nothing has run yet; of one ticket there should be something."""
    from runner.store import NothingYet

    try:
        yield
    except NothingYet as error:
        if ticket is not None:
            raise
        typer.echo(f"ticket-runner: {error}", err=True)


def console() -> "Console":
    """Return where tables are printed; a pipe gets them without colours, and no line of it is wrapped."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNBOUNDED)
