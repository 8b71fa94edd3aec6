"""What is wrong with the configuration and the machine, found before any money is spent."""

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from runner import daemon, machine
from runner.config import Config, credential, unknown_tools
from runner.errors import RunnerError
from runner.home import Home, Locked
from runner.performers import secrets_of
from runner.store import Store
from tickets import folder
from tickets.front_matter import NotATicket

_VERSION_S = 30.0
_STATE_DIRECTORY = "state directory"
_IN_THE_STATE_DIRECTORY = frozenset({"database", "repository"})  # they are looked at with its lock held


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    said: str
    ok: bool
    doubtful: bool = False
    """Nothing stops a start, and a person may want to look."""


class _Doubt(Exception):
    """What was found may be a mistake."""


def check(config: Config, environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Look at everything that a start needs; each finding comes as soon as it is there."""
    looks: dict[str, Callable[[], str]] = {
        _STATE_DIRECTORY: lambda: _home(config),
        "machine": lambda: _machine(config),
        "credential": lambda: credential(config, environ).found,
        "effects": lambda: _effects(config, environ),
        "claude code": lambda: _cli(config),
        "api": lambda: _api(config, environ),
        "tools": lambda: _tools(config),
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
        except _Doubt as doubt:
            yield Finding(what, str(doubt), ok=True, doubtful=True)
        except (RunnerError, OSError) as error:
            unfit |= what == _STATE_DIRECTORY
            yield Finding(what, str(error), ok=False)


def _home(config: Config) -> str:
    home = Home.of(config)
    home.prepare(config.repository_path)
    holder = home.holder()
    return str(home.path) if holder is None else f"{home.path}, held by the daemon with pid {holder or 'unknown'}"


def _machine(config: Config) -> str:
    room = machine.look(config.state_directory)
    short = machine.shortage(room, config.machine)
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


def _api(config: Config, environ: Mapping[str, str]) -> str:
    address = daemon.api_address(config, environ)
    return "Claude Code's own address" if address is None else without_secrets(address)


def _tools(config: Config) -> str:
    """Name the tools. Claude Code leaves out what it does not know, in silence."""
    asked = {"agent.tools": config.agent.tools}
    for ticket in folder.names(config.queue_directory):
        with suppress(NotATicket):
            if tools := folder.look_at(config.queue_directory, ticket).tools:
                asked[folder.where(config.queue_directory, ticket, "tools")] = tools
    unknown = [f"{where} has {tool}" for where, tools in asked.items() for tool in unknown_tools(tools)]
    if unknown:
        raise _Doubt(f"no tool of Claude Code's has this name, and none is given for it: {'; '.join(unknown)}")
    return ", ".join(config.agent.tools) or "none"


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
