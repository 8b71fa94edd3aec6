"""The command line as an operator has it: a repository, its configuration, commands and how they end.

A command runs in this process, through the program's own `main`, unless a test says
`process`: most of a process's time is Python's start.
"""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from runner.cli import main
from runner.config import Config
from runner.home import Home
from tests.stores import Place

PROGRAM = Path(sys.executable).with_name("ticket-runner")
TEXT = "Say hello.\n"


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


class Shell:
    """A small repository with a configuration that has `extra` in it, in `place`."""

    def __init__(self, place: Path, extra: str = "") -> None:
        self.place, self.repository, self.state = place, place / "repo", place / "state"
        self.queue = self.state / "queue"
        self.file = self.repository / "ticket-runner.toml"
        git("init", "-q", "-b", "main", str(self.repository))
        commit(self.repository, "first")
        self.configure(extra)

    def configure(self, extra: str = "", repository: str = ".") -> None:
        """Write the configuration."""
        self.file.write_text(f'repository = "{repository}"\nstate_directory = "{self.state}"\n{extra}\n')

    @property
    def config(self) -> Config:
        """The configuration."""
        return Config.load(self.file)

    @property
    def home(self) -> Home:
        """The state directory."""
        return Home.of(self.config)

    def ticket(self, name: str, content: str | bytes = TEXT) -> Path:
        """Write a file that can be added."""
        path = self.place / f"{name}.md"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def database(self) -> Place:
        """Return the database, opened to write what a daemon would have written; the test closes it."""
        self.home.prepare()
        return Place(self.config.database_url)

    def know(self, *ids: str) -> None:
        """Let the database know tickets that have no files."""
        place = self.database()
        place.take(*ids)
        place.store.close()

    def files(self) -> dict[str, bytes]:
        """Return every ticket's file in the queue, by its path in it."""
        paths = (path for path in self.queue.rglob("*.md") if "comments" not in path.relative_to(self.queue).parts)
        return {str(path.relative_to(self.queue)): path.read_bytes() for path in paths}

    def __call__(self, *words: str | Path, where: Path | None = None) -> Ended:
        """Run a command here."""
        out, err, argv = text_stream(), text_stream(), sys.argv
        sys.argv = ["ticket-runner", *map(str, words)]
        code = 0
        try:
            with chdir(where or self.repository), redirect_stdout(out), redirect_stderr(err):
                main()
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            sys.argv = argv
        return Ended(code, read_back(out), read_back(err))

    def process(self, *words: str | Path, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Ended:
        """Run the installed program."""
        ended = subprocess.run(
            [PROGRAM, *words],
            input=stdin,
            capture_output=True,
            check=False,
            cwd=self.repository,
            env=os.environ | (environ or {}),
        )
        return Ended(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def git(*words: str) -> str:
    """Run git and return what it says."""
    author = ("-c", "user.name=Test", "-c", "user.email=test@localhost")
    return subprocess.run(["git", *author, *words], check=True, capture_output=True, text=True).stdout.strip()


def commit(repository: Path, message: str) -> str:
    """Make an empty commit and return its hash."""
    git("-C", str(repository), "commit", "-q", "--allow-empty", "-m", message)
    return git("-C", str(repository), "rev-parse", "HEAD")


def text_stream() -> io.TextIOWrapper:
    """Return a stream as standard output is one, kept in memory."""
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True)


def read_back(stream: io.TextIOWrapper) -> str:
    """Return what was written to a stream of `text_stream`."""
    stream.seek(0)
    return stream.read()
