"""Put the parts of a daemon together and let it serve; and see beforehand whether they fit.

Knows which part needs which, and what of the daemon's environment each may have.
Imports the SDK and git: commands that only read must not import this.
"""

import base64
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import anyio

from runner import log
from runner.agent import cli_environment
from runner.children import base_environment, write_launcher
from runner.config import Config, credential
from runner.errors import ConfigError, Exit
from runner.events import Event
from runner.home import Home
from runner.outcome import Waits
from runner.parts import Parts
from runner.performers import performers, secrets_of
from runner.redact import Redactor
from runner.reports import Told
from runner.store import Store
from runner.supervisor import Supervisor
from runner.worktree import Repository
from tickets.folder import Folder
from tickets.source import Source
from tickets.ticket import State


def serve(
    config: Config,
    *,
    once: bool,
    on_event: Callable[[Event], None] = log.show,
    environ: Mapping[str, str] = os.environ,
) -> Exit:
    """Run the daemon of `config` until it is told to stop; with `once` until nothing is due.

    Args:
        config: The configuration.
        once: Stop when nothing is due.
        on_event: Told of each event after its commit.
        environ: The daemon's environment.

    Raises:
        ConfigError: Something about the configuration or the machine has to be changed.
        Locked: Another daemon holds the state directory.
    """
    source = Folder(config.queue_directory)
    with parts_of(config, source, on_event=on_event, environ=environ) as parts:
        return anyio.run(Supervisor(parts, source, _told(config), once=once, is_last=True).serve, backend="asyncio")


@contextmanager
def parts_of(
    config: Config, source: Source, *, on_event: Callable[[Event], None] | None, environ: Mapping[str, str]
) -> Iterator[Parts]:
    """Hold the home and give the parts of its daemon."""
    key = credential(config, environ)
    home = Home.of(config)
    home.prepare(config.repository_path)
    cli = cli_of(config)
    redactor = Redactor.of([key.value, *git_secrets(config, environ), *secrets_of(config, environ)])
    log.configure(redactor)
    commands = _for_commands(config, home, environ)
    with home.lock():
        store = Store.open(config.database_url, on_event=on_event)
        try:
            yield Parts(
                config=config,
                home=home,
                store=store,
                repository=repository_of(config, environ),
                redactor=redactor,
                launcher=write_launcher(home.path),
                cli=cli,
                performers=performers(
                    config,
                    source=source,
                    store=store,
                    home=home,
                    redactor=redactor,
                    environment=commands,
                    environ=environ,
                ),
                cli_environment=_for_the_cli(config, home, environ) | {key.variable: key.value},
                command_environment=commands,
            )
        finally:
            store.close()


def repository_of(config: Config, environ: Mapping[str, str] | None) -> Repository:
    """Return the repository of a configuration, with git's credential unless `environ` is None."""
    return Repository(
        config.state_directory,
        config.repository,
        author_name=config.git.author_name,
        author_email=config.git.author_email,
        credential_env=None if environ is None else _git_credential(config, environ),
        timeout_s=config.git.timeout_s,
    )


def cli_of(config: Config) -> Path:
    """Return the CLI: the configured one, else the one that the SDK brings.

    Raises:
        ConfigError: It is not there, or cannot be run.
    """
    cli = config.agent.cli_path
    if cli is None:
        spec = find_spec("claude_agent_sdk")
        places = [] if spec is None else spec.submodule_search_locations or []
        cli = next((Path(place) / "_bundled" / "claude" for place in places), Path("claude"))
    if not os.access(cli, os.X_OK) or not cli.is_file():
        name = "agent.cli_path" if config.agent.cli_path else "the SDK's own; install claude-agent-sdk again"
        raise ConfigError(f"{cli} ({name}): there is no such program: no ticket could be worked on")
    return cli


def _told(config: Config) -> Told:
    waits = Waits(config.clocks.weather_s, config.clocks.weather_max_s)
    ends = [State(end) for end in config.notify.on if end != "warned"] if config.notify.is_configured else []
    return Told(frozenset(ends), waits)


def git_secrets(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Return what git authenticates with, for the redactor."""
    return [environ[name] for name in (config.git.password_env,) if name is not None and name in environ]


def _git_credential(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    password_env = config.git.password_env
    if password_env is None:
        return {}
    username_env = config.git.username_env
    for key, name in {"password_env": password_env, "username_env": username_env}.items():
        if name is not None and name not in environ:
            raise ConfigError(f"git.{key}: the daemon's environment has no {name}")
    user = "x-access-token" if username_env is None else environ[username_env]
    basic = base64.b64encode(f"{user}:{environ[password_env]}".encode()).decode()
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {basic}",
    }


def _for_commands(config: Config, home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    return base_environment(config.env, home_dir=home.user_home, tmp_dir=home.tmp, inherited=environ)


def api_address(config: Config, environ: Mapping[str, str]) -> str | None:
    """Return the address of the Messages API that Claude Code is given, None when it uses its own."""
    return _for_the_cli(config, Home.of(config), environ).get("ANTHROPIC_BASE_URL")


def _for_the_cli(config: Config, home: Home, environ: Mapping[str, str]) -> dict[str, str]:
    base_url = config.agent.base_url or environ.get("ANTHROPIC_BASE_URL")
    return (
        _for_commands(config, home, environ)
        | cli_environment(home.claude)
        | {"CLAUDE_CODE_TMPDIR": str(home.tmp)}  # without it Claude Code uses a directory in /tmp that all share
        | {"CLAUDE_CODE_MAX_RETRIES": str(config.agent.max_retries)}
        | ({"ANTHROPIC_BASE_URL": base_url} if base_url else {})
        | dict(config.agent.environment)
    )
