"""A site for a story, and the daemons that come and go over it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner import transcript
from runner.session import session_id
from tests.daemons import Daemon, Settings
from tests.matrix.moments import Blow, Inside
from tests.matrix.stories import TICKET, Story
from tests.watched import Watched

DRAIN_S = 0.01
SESSION = session_id("folder", TICKET, 1)
_PROJECT = Path(__file__).parent.parent.parent


class Stage(Watched):
    """A site with one ticket."""

    @classmethod
    @contextmanager
    def of(cls, root: Path, story: Story) -> Iterator["Stage"]:
        """Build a stage in `root`; at the end nothing of it runs."""
        usual: Settings = {"clocks": {"drain_s": DRAIN_S}}
        with cls.over(root, story.script, usual | story.settings) as stage:
            for name, text in story.files.items():
                (stage.root / name).write_text(text)
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

    def transcript(self, session: str = SESSION) -> Path:
        """Return where a session's transcript is."""
        return transcript.path(self.home.claude, self.worktree(TICKET), session)
