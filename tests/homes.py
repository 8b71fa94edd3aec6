"""A home with claimed tickets, worktrees and transcripts, in which no agent ever ran.

Knows how each is made as the daemon makes it; does not know what is proved.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from runner import transcript
from runner.budget import Cost, CostKind
from runner.config import Config
from runner.config.values import Surroundings
from runner.fsck import Finding, look
from runner.home import Home
from runner.outcome import Outcome
from runner.parts import Parts, local_copies
from runner.redact import Redactor
from runner.repair import repair
from runner.session import Kind, session_id
from runner.store import Store, Tx, claims, queue, runs, sessions, tickets
from runner.worktree import Repository
from tests.daemons import Site
from tickets.ticket import Spec

git = Site.run_git


def configured(root: Path, state_directory: str = "state", **settings: object) -> Config:
    """Return the configuration of a small repository in `root`, whose state is in `state_directory`."""
    if not (root / "repo").exists():
        (root / "repo").mkdir()
        git(root / "repo", "init", "--quiet", "-b", "main")
        git(root / "repo", "commit", "--quiet", "--allow-empty", "-m", "Begin")
    return Config.of({"repository": "repo", "state_directory": state_directory, **settings}, Surroundings(root, {}))


@dataclass
class Place:
    """An open home."""

    root: Path
    settings: Mapping[str, object] = field(default_factory=dict)
    config: Config = field(init=False)
    home: Home = field(init=False)
    store: Store = field(init=False)
    repository: Repository = field(init=False)
    epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.config = configured(self.root, "state", **self.settings)
        self.home = Home.of(self.config)
        self.home.prepare()
        self.store = Store.open(self.config.database_url)
        self.repository = local_copies(self.config)
        self.repository.prepare()
        self.epoch = self.store.transact(queue.begin_epoch, "host", self.home.name, 1)

    def parts(self) -> Parts:
        """Return the parts of a daemon that never starts an agent."""
        return Parts(
            config=self.config,
            home=self.home,
            store=self.store,
            repository=self.repository,
            redactor=Redactor.of([]),
            launcher=self.root / "launcher",
            cli=self.root / "claude",
            cli_environment={},
            performers={},
            command_environment={"PATH": os.environ["PATH"]},
        )

    def claim(self, ticket: str) -> Path:
        """Take a ticket in, claim it and make its worktree; return where that is."""
        self.store.transact(tickets.take_in, "folder", Spec(ticket, "text"))
        home = self.home.name
        row = self.store.transact(claims.take_next, epoch=self.epoch, home=home, lease_s=60)
        assert row is not None
        tree = self.repository.ensure(ticket, None, base_sha=None)
        self.store.transact(
            claims.set_tree, ticket, row.ticket.token, home=home, branch=tree.branch, base_sha=tree.base_sha
        )
        return tree.path

    def converse(self, ticket: str, *lines: Mapping[str, object], carried: int = 0) -> str:
        """Begin a run in the ticket's one session, let it be confirmed and write these lines; return its id."""
        session, file = session_id("folder", ticket, 1), self.transcript(ticket)
        size = file.stat().st_size if file.exists() else 0

        def begin(tx: Tx) -> str:
            token = tickets.get(tx, ticket).ticket.token
            kind = Kind.RESUMED if sessions.sessions_of(tx, ticket) else Kind.FIRST
            sessions.open_session(tx, ticket, token, session=session, generation=1, prompt_sha="sha")
            run = runs.begin_run(
                tx,
                ticket=ticket,
                token=token,
                session=session,
                kind=kind,
                carried_microusd=carried,
                transcript_bytes=size,
                allowance_microusd=1_000_000,
            )
            sessions.confirm_session(tx, session, run.id)
            return run.id

        run = self.store.transact(begin)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
        return run

    def end(self, run: str, microusd: int, kind: CostKind = CostKind.MEASURED) -> None:
        """End a run at a cost."""
        self.store.transact(runs.end_run, run, outcome=Outcome.FINISHED, cost=Cost(microusd, kind))

    def transcript(self, ticket: str) -> Path:
        """Return where the transcript of a ticket's first session is."""
        return transcript.path(self.home.claude, self.home.worktrees / ticket, session_id("folder", ticket, 1))

    def damage(self, statement: str, *values: object) -> None:
        """Change the database behind everybody's back."""

        def change(tx: Tx) -> None:
            tx.connection.exec_driver_sql(statement, values)

        self.store.transact(change)

    def differs(self, *, daemon: bool = False) -> list[Finding]:
        """Return what fsck finds that differs."""
        return [found for found in look(self.config, self.store, daemon=daemon) if found.differs]


def opened(root: Path) -> Iterator[Place]:
    """Give a home, closed at the end."""
    place = Place(root)
    with closing(place.store):
        yield place


def differences(config: Config) -> list[str]:
    """Return what fsck finds that differs in a home where no daemon works."""
    with closing(Store.open(config.database_url, read_only=True)) as store:
        return [f"{found.ticket}: {found.what}" for found in look(config, store, daemon=False) if found.differs]


def repaired(config: Config) -> list[str]:
    """Repair a home where no daemon works, and return what was done."""
    with Home.of(config).lock(), closing(Store.open(config.database_url)) as store:
        return list(repair(config, store))
