"""The full ticket: what the model says, what the outside is, and the daemons that come and go over it.

The scripted model works as one that was told to make each step safe to repeat: each
tool first makes sure of what the tools before it were to do.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from runner import steering
from runner.commands import Command
from runner.errors import ConfigError
from runner.offline import Reply, Scene, Script, ScriptedServer, ToolUse
from runner.store import Rx, Store, StoreUnavailable
from tests.daemons import Daemon, Settings, Site, bash, say
from tests.matrix.moments import Blow, Inside

T = TypeVar("T")

TICKET = "t"
TEXT = "Add one, two and good. Deploy them."
TITLE = "Add the numbers"
ANSWER = "Yes, two as well."
QUESTION = "Two as well?"
DRAIN_S = 0.01
DELAY_S = 0.2
"""Before each reply: Claude Code writes its transcript up to 0.1 s late, and a kill loses that."""
LIMIT_S = 2.0
"""How long a deploy may take; a look-up that finds nothing waits for it."""
DEPLOY_KEY = f"folder/{TICKET}/1/deploy"
_PROJECT = Path(__file__).parent.parent.parent
_LATER = "an earlier session worked on the ticket"

_ONE = "test -e one.txt || echo one > one.txt; git add one.txt; git diff --cached --quiet || git commit -qm 'Add one'"
_TWO = f"{_ONE}; echo two > two.txt"
_GOOD = f"{_TWO}; echo good > good.txt"
CHECK = "sleep 0.1; cat one.txt two.txt good.txt"

# $1: what happens now. The daemon is told, and has the time to strike.
_DEPLOY = """\
step() {{
  test "$(cat {root}/strike 2>/dev/null)" = "$1" || return 0
  rm {root}/strike
  kill -USR2 "${{TICKET_RUNNER_COMMAND#* }}"
  sleep 0.2
}}
step deploy.begun
sleep 0.1
printf '%s\\n' "$IDEMPOTENCY_KEY" >> {root}/world
step deploy.acted
sleep 0.1
echo deployed
"""


def _ours(name: str, **given: str) -> Reply:
    return Reply((ToolUse(f"mcp__runner__{name}", dict(given)),))


def _slowly(command: str) -> Reply:
    return bash(f"{command}; sleep 0.1")


TURNS: Sequence[Reply] = [
    replace(reply, delay_s=DELAY_S)
    for reply in (
        _slowly(_ONE),
        _ours("comment", operation="plan", body="One, then two."),
        _ours("comment", operation="plan", body="One, then two."),
        _ours("deploy", version="1"),
        _ours("ask", question=QUESTION),
        _ours("deploy", version="1"),  # it makes sure
        _slowly(_TWO),
        say("Done."),  # and the check says that good.txt is missing
        _slowly(_GOOD),
        _slowly(f"{_GOOD}; cat good.txt"),  # it makes sure
        say("Mended."),
    )
]


class Stage(Site):
    """A site for the full ticket, delivered to a bare repository."""

    @classmethod
    @contextmanager
    def at(cls, root: Path, **settings: object) -> Iterator["Stage"]:
        """Build a stage in `root`; at the end nothing of it runs."""
        root = root.resolve()
        Site.run_git(root, "init", "--quiet", "--bare", "-b", "main", "remote.git")
        (root / "deploy").write_text(_DEPLOY.format(root=root))
        (root / "world").touch()
        deploy = {
            "description": "Deploys.",
            "command": f"exec sh {root / 'deploy'}",
            "look_up": f'grep -qxF "$IDEMPOTENCY_KEY" {root / "world"}',
            "timeout_s": LIMIT_S,
        }
        usual: Settings = {
            "repository": "remote.git",
            "setup": ["true"],
            "verify": [CHECK],
            "max_fix_rounds": 3,
            "clocks": {"drain_s": DRAIN_S},
            "effects.deploy": deploy,
            "effects.deploy.input": {"version": "What to deploy."},
        }
        with ExitStack() as stack:
            server = stack.enter_context(ScriptedServer(Script((Scene(_LATER, tuple(TURNS)), Scene("", tuple(TURNS))))))
            site = cls(root, server, usual | settings)
            stack.callback(site.end)
            site.git("push", "--quiet", str(root / "remote.git"), "main")
            site.add(TICKET, TEXT, title=TITLE)
            yield site

    def launch(self, blow: Blow | None = None) -> Daemon:
        """Start a daemon that is to be struck, or one that is not."""
        struck = self.root / "struck"
        struck.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.matrix.daemon", str(self.file), "--struck", str(struck)]
        if blow is not None and blow.moment is not None:
            command += ["--moment", str(blow.moment), "--way", blow.way]
            if isinstance(blow.moment.name, Inside) and blow.moment.name is not Inside.COMMENT_WRITTEN:
                (self.root / "strike").write_text(blow.moment.name)
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

    def reads(self, fn: Callable[[Rx], T]) -> T | None:
        """Return what `fn` reads in the store; None while there is none."""
        try:
            store = Store.open(self.config.database_url, read_only=True)
        except (ConfigError, StoreUnavailable):  # there are no tables yet
            return None
        try:
            return store.read(fn)
        finally:
            store.close()

    def steer(self, command: Command) -> str:
        """Carry out a command as an operator does: through the socket, or with the lock."""
        return steering.steer(self.config, command)
