"""A site for a story, delivered to a bare repository, and the daemons that come and go over it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from runner import steering, transcript
from runner.commands import Command
from runner.errors import ConfigError
from runner.offline import ScriptedServer
from runner.session import session_id
from runner.store import Rx, Store, StoreUnavailable
from tests.daemons import Daemon, Settings, Site
from tests.matrix.moments import Blow, Inside
from tests.matrix.stories import TICKET, Story

T = TypeVar("T")

DRAIN_S = 0.01
SESSION = session_id("folder", TICKET, 1)
_PROJECT = Path(__file__).parent.parent.parent


class Stage(Site):
    """A site with one ticket."""

    _store: Store | None = None

    @classmethod
    @contextmanager
    def of(cls, root: Path, story: Story) -> Iterator["Stage"]:
        """Build a stage in `root`; at the end nothing of it runs."""
        root = root.resolve()
        cls.run_git(root, "init", "--quiet", "--bare", "-b", "main", "remote.git")
        with ExitStack() as stack:
            server = stack.enter_context(ScriptedServer(story.script))
            agent = {"base_url": server.url, "model": "claude-sonnet-4-5", "max_retries": 1}
            usual: Settings = {"repository": "remote.git", "clocks": {"drain_s": DRAIN_S}, "agent": agent}
            stage = cls(root, server, usual | _placed(story.settings, root))
            stack.callback(stage.end)
            stage.git("push", "--quiet", str(root / "remote.git"), "main")
            for name, text in story.files.items():
                (root / name).write_text(text)
            stage.add(TICKET, story.text, **story.front)
            yield stage

    def launch(self, blow: Blow | None = None) -> Daemon:
        """Start a daemon that is to be struck, or one that is not."""
        struck = self.root / "struck"
        struck.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.matrix.daemon", str(self.file), "--struck", str(struck)]
        if blow is not None and blow.moment is not None and blow.moment.name is not Inside.MODEL_ASKED:
            command += ["--moment", str(blow.moment), "--way", blow.way]
            if blow.moment.name in {Inside.DEPLOY_BEGUN, Inside.DEPLOY_ACTED}:
                (self.root / "strike").write_text(str(blow.moment.name))
        stderr = self.root / f"daemon-{len(self._daemons) + 1}.log"
        environment = os.environ | {"ANTHROPIC_API_KEY": "offline", "PYTHONPATH": str(_PROJECT)}
        with stderr.open("wb") as file:
            process = subprocess.Popen(command, cwd=_PROJECT, env=environment, stdout=file, stderr=file)
        daemon = Daemon(process, stderr)
        self._daemons.append(daemon)
        return daemon

    @property
    def was_struck(self) -> bool:
        """Whether the latest daemon came to its moment."""
        return (self.root / "struck").exists()

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

    @property
    def comments(self) -> list[str]:
        """The files of the comments, by their keys."""
        return sorted(path.name for path in self.config.queue_directory.glob(f"comments/{TICKET}/*"))

    def remote(self, *arguments: str) -> str:
        """Return what git says in the repository that work is delivered to."""
        return self.run_git(self.root / "remote.git", *arguments)

    def transcript(self, session: str = SESSION) -> Path:
        """Return where a session's transcript is."""
        return transcript.path(self.home.claude, self.worktree(TICKET), session)

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
