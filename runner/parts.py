"""What every claim of a daemon works with, and what each of its steps does alike.

Composed by daemon.py; nothing here decides anything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner import processes
from runner.config import Config
from runner.effects import Performer
from runner.events import Name
from runner.home import Home
from runner.redact import Redactor
from runner.store import Store, Tx
from runner.worktree import Repository


@dataclass(frozen=True, slots=True)
class Parts:
    """What every claim of a daemon works with."""

    config: Config
    home: Home
    store: Store
    repository: Repository
    redactor: Redactor
    launcher: Path
    cli: Path
    cli_environment: Mapping[str, str]
    """All that the CLI gets, the model's credential included, but for its cookie; see `private`."""
    performers: Mapping[str, Performer]
    """By the kind of effect."""
    command_environment: Mapping[str, str]
    """All that set-up and check commands get, but for their cookie; see `private`."""
    wake: Callable[[], None] = lambda: None
    """Lets the loop look at once at what may start."""

    def private(self, environment: Mapping[str, str], ticket: str) -> dict[str, str]:
        """Return `environment` with the ticket's own directory in the place of the shared one for temporary files."""
        shared, own = str(self.home.tmp), str(self.home.make_tmp(ticket))
        return {name: own if value == shared else value for name, value in environment.items()}


def local_copies(config: Config) -> Repository:
    """Return the repository as it is here, for what does not ask its origin and needs no credential."""
    git = config.git
    return Repository(
        config.state_directory, config.repository, author_name=git.author_name, author_email=git.author_email
    )


async def reap(parts: Parts, ticket: str, *, run: str | None = None) -> None:
    """End every process of the ticket that an agent started, and log what there was.

    Raises:
        ProcessesRemain: Some do not end; nothing else may start in their worktree.
    """
    reaped = await processes.reap(str(parts.home.path), ticket)
    if reaped.processes:
        names = sorted({process.name for process in reaped.processes})
        await parts.store.write(
            Tx.log, ticket, Name.PROCESSES_REAPED, run=run, names=names, cli=reaped.cli_alive, killed=reaped.cli_killed
        )
