"""What is wrong with the configuration and the machine, found before any money is spent."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from runner import daemon, machine
from runner.config import Config, credential
from runner.errors import RunnerError
from runner.home import Home, Locked
from runner.performers import secrets_of
from runner.store import Store

_VERSION_S = 30.0
_STATE_DIRECTORY = "state directory"
_IN_THE_STATE_DIRECTORY = frozenset({"database", "repository"})  # they are looked at with its lock held


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    said: str
    ok: bool


def check(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Look at everything that a start needs; each finding comes as soon as it is there."""
    looks: dict[str, Callable[[], str]] = {
        _STATE_DIRECTORY: lambda: _home(config),
        "machine": lambda: _machine(config),
        "credential": lambda: credential(config, environ).found,
        "effects": lambda: _effects(config, environ),
        "claude code": lambda: _cli(config),
        "database": lambda: _database(config),
        "repository": lambda: _repository(config, environ),
    }
    unfit = False
    for what, look in looks.items():
        if unfit and what in _IN_THE_STATE_DIRECTORY:
            yield Finding(what, "not looked at: the state directory is wrong", ok=False)
            continue
        try:
            yield Finding(what, look(), ok=True)
        except (RunnerError, OSError) as error:
            unfit |= what == _STATE_DIRECTORY
            yield Finding(what, str(error), ok=False)


def _home(config: Config) -> str:
    home = Home.of(config)
    home.prepare(config.repository_path)
    holder = home.holder()
    return str(home.path) if holder is None else f"{home.path}, held by the daemon with pid {holder or 'unknown'}"


def _machine(config: Config) -> str:
    room, floors = machine.look(config.state_directory), config.machine
    short = machine.shortage(room, min_free_disk=floors.min_free_disk, min_free_memory=floors.min_free_memory)
    if short is not None:
        raise RunnerError(f"{short}; no ticket would be started")
    told = {"disk": room.disk_bytes, "memory": room.memory_bytes}
    return ", ".join(f"{what} {machine.shown(free)} free" for what, free in told.items() if free is not None)


def _effects(config: Config, environ: Mapping[str, str]) -> str:
    secrets_of(config, environ)
    return ", ".join(config.effects) or "none configured"


def _cli(config: Config) -> str:
    cli = daemon.cli_of(config)
    try:
        shown = subprocess.run([cli, "--version"], capture_output=True, text=True, timeout=_VERSION_S, check=True)  # noqa: S603  the configured program
    except (OSError, subprocess.SubprocessError) as error:
        raise RunnerError(f"{cli} does not run: {error}") from error
    return f"{shown.stdout.strip()}, {cli}"


def _database(config: Config) -> str:
    home = Home.of(config)
    try:
        with home.lock():
            Store.open(config.database_url).close()
    except Locked:
        Store.open(config.database_url, read_only=True).close()
    return without_secrets(config.database_url)


def without_secrets(url: str) -> str:
    """Return what of a database's URL may be shown: neither user and password nor options."""
    return (url.partition("@")[2] or url).partition("?")[0]


def _repository(config: Config, environ: Mapping[str, str]) -> str:
    repository = daemon.repository_of(config, environ)
    try:
        with Home.of(config).lock():
            repository.prepare()
            base = repository.fetch_base(config.git.base)
            unfit = repository.unfit(base.sha, update=config.git.submodules == "update")
    except Locked:
        return f"{repository.shown} (in use by the running daemon, not tried)"
    if unfit is not None:
        raise RunnerError(f"{repository.shown}: no ticket can be worked on: {unfit}")
    return f"{repository.shown}, base {base.name} at {base.sha[:12]}"
