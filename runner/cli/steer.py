"""Say what shall become of tickets, questions, effects and the queue."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runner.cli.common import (
    ConfigOption,
    KeyArgument,
    TicketArgument,
    app,
    load,
)
from runner.errors import UsageError

if TYPE_CHECKING:
    pass


@app.command()
def cancel(ticket: TicketArgument, config: ConfigOption = None) -> None:
    """Give a ticket up; its branch stays, and for some days its worktree."""
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
        str | None, typer.Option("--budget-usd", help="Its new cap in dollars, over all its runs.", metavar="USD")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Let a held or waiting ticket go on where it stood.

    A finished conversation is not paid again: only checks and delivery are done.
    """
    from tickets.front_matter import microusd

    try:
        cap_microusd = 0 if budget_usd is None else microusd(budget_usd)
    except ValueError as error:
        raise UsageError(f"release {ticket} --budget-usd {budget_usd}: {error}") from error
    _steer(config, "release", ticket, budget_microusd=cap_microusd)


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
    if len(chosen) != 1 or (done is not None and not done.strip()):
        raise UsageError(f"settle {key}: say one of --done TEXT, --retry, --abandon")
    _steer(config, "settle", key=key, decision=chosen[0], text=done or "")


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
    typer.echo(steering.steer(load(path), command))
