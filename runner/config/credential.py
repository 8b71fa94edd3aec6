"""Find the key of the Messages API.

It is in no table, log or command line: its `repr` hides it, and only the environment
of the CLI gets it.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runner.config.schema import Config
from runner.errors import ConfigError

VARIABLES = ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
UNIT_CREDENTIAL = "anthropic-api-key"
_OAUTH_PREFIX = "sk-ant-oat"
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Credential:
    """What the CLI authenticates with."""

    variable: str
    """Of the CLI's environment."""
    value: str = field(repr=False)
    found: str
    """Where, for a person."""


def credential(config: Config, environ: Mapping[str, str]) -> Credential:
    """Return the credential from the first place that has one.

    The environment first, then the file of the configuration, then the unit's.

    Raises:
        ConfigError: No place has one, or the first that does has a bad one.
    """
    for variable in VARIABLES:
        if variable in environ:
            return Credential(variable, _checked(f"${variable}", environ[variable]), f"${variable}")
    places = [("credential.file", config.credential.file)] if config.credential.file else []
    if directory := environ.get("CREDENTIALS_DIRECTORY"):
        places.append(("$CREDENTIALS_DIRECTORY", Path(directory) / UNIT_CREDENTIAL))
    for name, path in places:
        where = f"{path} ({name})"
        if (text := _read(where, path, required=name == "credential.file")) is not None:
            value = _checked(where, text)
            return Credential(VARIABLES[value.startswith(_OAUTH_PREFIX)], value, where)
    raise ConfigError(
        f"no key for Claude: looked at ${VARIABLES[0]}, ${VARIABLES[1]}, "
        + (f"{config.credential.file} (credential.file)" if config.credential.file else "credential.file (not given)")
        + f" and $CREDENTIALS_DIRECTORY/{UNIT_CREDENTIAL} ({'not there' if directory else 'not set'});"
        " put it into one of these"
    )


def _read(where: str, path: Path, *, required: bool) -> str | None:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_BYTES)
    except FileNotFoundError as error:
        if required:
            raise ConfigError(f"{where}: there is no such file") from error
        return None
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror}") from error
    if mode & stat.S_IRWXO:
        raise ConfigError(f"{where}: every user of this machine can read it: chmod 600 it, and think of a new key")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: has a byte in it that no key has") from error


def _checked(where: str, text: str) -> str:
    value = text.strip()
    if not value:
        raise ConfigError(f"{where}: is empty: put a key there, or take it away")
    if not value.isprintable() or " " in value:
        raise ConfigError(f"{where}: must be one line with the key and nothing else")
    return value
