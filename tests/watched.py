"""A site that delivers to a bare repository, and is watched and steered as by an operator while daemons come and go.

Knows no ticket.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self, TypeVar

from runner import steering
from runner.commands import Command
from runner.errors import ConfigError
from runner.offline import Script, ScriptedServer
from runner.store import Rx, Store, StoreUnavailable
from tests.daemons import Settings, Site

T = TypeVar("T")


class Watched(Site):
    """A site whose store is read by the one who plays the operator."""

    _store: Store | None = None

    @classmethod
    @contextmanager
    def over(cls, root: Path, script: Script, settings: Settings) -> Iterator[Self]:
        """Build a site in `root`, which `{root}` in the settings stands for; at the end nothing of it runs."""
        root = root.resolve()
        cls.run_git(root, "init", "--quiet", "--bare", "-b", "main", "remote.git")
        with ExitStack() as stack:
            server = stack.enter_context(ScriptedServer(script))
            site = cls(root, server, settings)
            stack.callback(site.end)
            site.git("push", "--quiet", str(root / "remote.git"), "main")
            yield site

    def configure(self, **settings: object) -> None:
        """Write the configuration, `settings` over what is usual here."""
        agent = {"base_url": self.server.url, "model": "claude-sonnet-4-5", "max_retries": 1}
        usual: Settings = {"repository": "remote.git", "agent": agent}
        super().configure(**usual | _placed(settings, self.root))

    @property
    def is_listening(self) -> bool:
        """Whether a daemon takes commands, and heeds signals."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client, self.home.socket_address() as address:
                client.connect(address)
        except OSError:
            return False
        return True

    @property
    def deployed(self) -> list[str]:
        """The keys that the outside has got, in order."""
        return (self.root / "world").read_text().splitlines()

    def comments(self, ticket: str) -> list[str]:
        """Return the files of a ticket's comments, by their keys."""
        return sorted(path.name for path in self.config.queue_directory.glob(f"comments/{ticket}/*"))

    def remote(self, *arguments: str) -> str:
        """Return what git says in the repository that work is delivered to."""
        return self.run_git(self.root / "remote.git", *arguments)

    def reads(self, fn: Callable[[Rx], T]) -> T | None:
        """Return what `fn` reads in the store; None while there is none."""
        if self._store is None:
            try:
                self._store = Store.open(self.config.database_url, read_only=True)
            except (ConfigError, StoreUnavailable):  # there are no tables yet
                return None
        return self._store.read(fn)

    def end(self) -> None:
        """End whatever runs."""
        super().end()
        if self._store is not None:
            self._store.close()

    def steer(self, command: Command) -> str:
        """Carry out a command as an operator does: through the socket, or with the lock."""
        return steering.steer(self.config, command)


def _placed(value: Settings, root: Path) -> Settings:
    """Return settings that know where they are."""

    def placed(each: object) -> object:
        if isinstance(each, str):
            return each.replace("{root}", str(root))
        if isinstance(each, dict):
            return {key: placed(inner) for key, inner in each.items()}
        return [placed(inner) for inner in each] if isinstance(each, list) else each

    return {key: placed(each) for key, each in value.items()}
