"""A world that effects change: a file that records what was sent, and daemons that may be killed while they send.

`python -m tests.worlds` is such a daemon. It has a ledger and real performers, and dies
or freezes at the moment that it is told.
"""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from runner.children import base_environment
from runner.config import Config
from runner.config.values import Surroundings
from runner.effects import Ledger, Outcome, Performer, effect_key
from runner.events import Event, Name
from runner.home import Home
from runner.performers import performers, secrets_of
from runner.redact import Redactor
from runner.store import Store, effects, queue
from runner.store.effects import EffectRow, Verdict, Wish
from tests.stores import HOME, Clock, Place
from tickets.folder import Folder

ROOT = Path(__file__).parent.parent
TICKET = "t1"
LIMIT = 5
AGES_S = 100_000
Perform = Callable[[EffectRow], Awaitable[Outcome]]


def home_of(directory: Path) -> Home:
    """Return the home of the daemons of a world."""
    return Home(directory / "home", directory / "queue")


def config_of(directory: Path, text: str) -> Config:
    """Return the configuration that a text makes."""
    return Config.of({"repository": "/r"} | tomllib.loads(text), Surroundings(directory, {}))


def real_performers(
    directory: Path, text: str, store: Store, now_us: int, environ: Mapping[str, str], **environment: str
) -> dict[str, Performer]:
    """Return the performers of a configuration, for which no time passes."""
    config, home = config_of(directory, text), home_of(directory)
    return performers(
        config,
        source=Folder(home.queue),
        store=store,
        home=home,
        redactor=Redactor.of(secrets_of(config, environ)),
        environment=base_environment(environment, home_dir=home.user_home, tmp_dir=home.tmp),
        environ=environ,
        now_us=lambda: now_us,
    )


def ledger_of(store: Store, epoch: int, made: Mapping[str, Performer], tasks: TaskGroup, home: str = HOME) -> Ledger:
    """Return the ledger of a daemon."""

    def on_settled(_ticket: str) -> None:
        """Wake nobody."""

    return Ledger(
        store, home=home, epoch=epoch, performers=made, limit=LIMIT, tasks=tasks, on_settled=on_settled, retry_s=0.01
    )


@dataclass
class World:
    """A store with a claimed ticket, a home, and the outside."""

    directory: Path
    text: str = ""
    """Of the configuration."""
    environ: Mapping[str, str] = field(default_factory=dict)
    place: Place = field(init=False)
    began_us: int = field(init=False)

    def __post_init__(self) -> None:
        home_of(self.directory).prepare()
        self.sent_file.touch()
        self.place = Place(f"sqlite:///{self.directory}/store.sqlite3")
        self.place.take(TICKET)
        assert self.place.claim() is not None
        self.began_us = self.place.clock.now_us

    @property
    def sent_file(self) -> Path:
        """The outside."""
        return self.directory / "sent"

    @property
    def sent(self) -> list[str]:
        """The keys that the outside has got, in order."""
        return self.sent_file.read_text().split()

    def performers(self) -> dict[str, Performer]:
        """Return the real performers, for which no time passes."""
        return real_performers(self.directory, self.text, self.place.store, self.began_us, self.environ)

    def wish(self, kind: str, operation: str | None = None, *, approval: bool = False, **payload: str) -> Wish:
        """Return what an agent asks for."""
        operation = operation or kind
        key = effect_key("folder", TICKET, 1, operation)
        return Wish(key, TICKET, 1, operation, kind, payload, needs_approval=approval)

    def want(self, kind: str, operation: str | None = None, **payload: str) -> EffectRow:
        """Save a wish."""
        wish = self.wish(kind, operation, approval=False, **payload)
        row, verdict = self.place.store.transact(effects.want, wish, limit=1_000_000)
        assert verdict is Verdict.NEW
        return row

    def claimed(self, kind: str, **payload: str) -> EffectRow:
        """Save a wish and claim it."""
        row = self.want(kind, **payload)
        claimed = self.place.store.transact(effects.claim, row.key, epoch=self.place.epoch)
        assert claimed is not None
        return claimed

    def get(self, key: str) -> EffectRow:
        """Return an effect as it is."""
        return self.place.store.read(effects.get, key)

    @asynccontextmanager
    async def daemon(self, home: str = HOME) -> AsyncIterator[Ledger]:
        """Give a new daemon's ledger, much later; at the end nothing of it is under way."""
        self.place.clock.pass_s(AGES_S)
        epoch = self.place.start(home)
        async with anyio.create_task_group() as tasks:
            yield ledger_of(self.place.store, epoch, self.performers(), tasks, home)

    async def restart(self) -> None:
        """Let a new daemon settle and perform what there is."""
        async with self.daemon() as ledger:
            await ledger.settle_dead()
            await ledger.perform_due()

    def other_daemon(self, moment: str, *descriptors: int) -> "subprocess.Popen[bytes]":
        """Start a daemon of the same home in a process of its own, which performs what is due."""
        arguments = [str(self.directory), self.text, str(self.began_us), moment, *map(str, descriptors)]
        return subprocess.Popen([sys.executable, "-m", "tests.worlds", *arguments], cwd=ROOT, pass_fds=descriptors)

    def killed_daemon(self, moment: str) -> None:
        """Let a daemon be killed at a moment of what is due."""
        with self.other_daemon(moment) as process:
            pass
        assert process.returncode == -signal.SIGKILL


def main() -> None:
    """Perform what is due, and die or freeze at the moment."""
    directory, text, now_us, moment = sys.argv[1:5]
    ends = {"frozen": signal.SIGSTOP, str(Name.EFFECT_CLAIMED): signal.SIGKILL}

    def on_event(event: Event) -> None:
        if event.name is Name.EFFECT_CLAIMED and moment in ends:
            os.kill(os.getpid(), ends[moment])

    store = Store.open(f"sqlite:///{directory}/store.sqlite3", clock=Clock(int(now_us)), on_event=on_event)
    made = real_performers(Path(directory), text, store, int(now_us), {}, MOMENT=moment)
    if moment == "performed":
        made = {kind: replace(performer, perform=_then_die(performer)) for kind, performer in made.items()}
    if moment == "race":
        _race(store, Path(directory, "sent"), *map(int, sys.argv[5:7]))
    else:
        anyio.run(_serve, store, made)
    store.close()


async def _serve(store: Store, made: Mapping[str, Performer]) -> None:
    epoch = store.transact(queue.begin_epoch, "host", HOME, os.getpid())
    async with anyio.create_task_group() as tasks:
        await ledger_of(store, epoch, made, tasks).perform_due()


def _race(store: Store, sent: Path, reading: int, writing: int) -> None:
    """Claim each effect at the same instant as the other process does, and send what was won."""
    epoch = store.transact(queue.begin_epoch, "host", HOME, os.getpid())
    with sent.open("a", buffering=1) as file:
        for row in store.read(effects.effects):
            os.write(writing, b"x")
            assert os.read(reading, 1) == b"x"
            if store.transact(effects.claim, row.key, epoch=epoch) is not None:
                file.write(f"{row.key}\n")


def _then_die(performer: Performer) -> Perform:
    async def perform(row: EffectRow) -> Outcome:
        await performer.perform(row)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    return perform


if __name__ == "__main__":
    main()
