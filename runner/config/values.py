"""What a table and a value of the configuration may be, and the words for a wrong one.

Knows pydantic and no key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from runner.hours import parse

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRETS = frozenset({"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"})
_OURS = frozenset({"CLAUDE_CONFIG_DIR"})
_TOOL = re.compile(r"[a-z][a-z0-9_]{0,40}")
_OUR_HEADERS = frozenset({"content-length", "content-type", "host", "idempotency-key", "transfer-encoding"})
MAX_USD = 1_000_000
MAX_TEXT = 2_000

T = TypeVar("T")


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a configuration is read against."""

    directory: Path = field(default_factory=Path.cwd)
    """Relative paths start here: where the file is."""
    environ: Mapping[str, str] = field(default_factory=dict)

    def path(self, text: str) -> Path:
        """Return the absolute path that `text` is.

        Raises:
            ValueError: It is none.
        """
        if not text.strip() or not text.isprintable():
            raise ValueError("must be a path")
        try:
            return (self.directory / Path(text).expanduser()).resolve()
        except RuntimeError as error:
            raise ValueError("names a home directory that is not known") from error

    def repository(self, text: str) -> str:
        """Return `text` when it is a URL, else the absolute path that it is."""
        return text if is_url(text) else str(self.path(text))


def surroundings(info: ValidationInfo) -> Surroundings:
    """Return what the validation was given, else this directory and no environment."""
    context: object = info.context
    return context if isinstance(context, Surroundings) else Surroundings()


def is_url(repository: str) -> bool:
    """Return whether git takes `repository` as a URL: a colon comes before any slash."""
    return ":" in repository.partition("/")[0]


def demand_no_password(repository: str) -> None:
    """Refuse a URL with a password in it, by a ValueError that does not show it."""
    if "://" in repository and urlsplit(repository).password:
        raise ValueError("has a password in it: name variables that hold it in git.username_env and git.password_env")


def name_of(repository: str) -> str:
    """Return the last part of a path or URL, as far as it can be a name."""
    last = repository.rstrip("/").removesuffix(".git").rstrip("/").rpartition("/")[2].rpartition(":")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:48] or "queue"


def short_hash(text: str) -> str:
    """Return eight hex digits that tell `text` from others."""
    return sha256(text.encode()).hexdigest()[:8]


def _as_path(value: object, info: ValidationInfo) -> object:
    return surroundings(info).path(value) if isinstance(value, str) else value


def _as_repository(value: str, info: ValidationInfo) -> str:
    if value.startswith("-") or not value.strip() or not value.isprintable():
        raise ValueError("must be a path or a URL")
    demand_no_password(value)
    return surroundings(info).repository(value)


def _as_cap(value: object) -> object:
    if isinstance(value, str) and value != "unlimited":
        raise ValueError('must be a number or "unlimited"')
    return None if value == "unlimited" else value


def _as_days(value: object) -> object:
    if isinstance(value, str) and value != "forever":
        raise ValueError('must be a number or "forever"')
    return None if value == "forever" else value


def _word(value: str) -> str:
    if not value.isprintable() or " " in value or not value or value.startswith("-"):
        raise ValueError("must be one word that does not start with `-`")
    return value


def _line(value: str) -> str:
    if not value.isprintable() or not value.strip() or any(sign in value for sign in "<>"):
        raise ValueError("must be one line of text without < and >")
    return value


def _command(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise ValueError("must be a shell command")
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value):
        raise ValueError("must be 1 to 64 of A-Z a-z 0-9 . _ - and start with a letter or digit")
    return value


def _variable(value: str) -> str:
    if not _VARIABLE.fullmatch(value):
        raise ValueError("must be the name of an environment variable")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (LookupError, ValueError, OSError):  # not there; not a name; a directory of names
        near = get_close_matches(value, available_timezones(), 1)
        hint = f", did you mean {near[0]}?" if near else ", as Europe/Berlin is"
        raise ValueError(f"is no name of an IANA time zone{hint}") from None
    return value


def _environment(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an environment variable")
        if name in _SECRETS:
            raise ValueError(f"{name} is a secret: put its value into a file of its own and name it in credential.file")
        if name in _OURS or name.startswith("TICKET_RUNNER_"):
            raise ValueError(f"{name} is set by ticket-runner itself")
        if "\0" in text:
            raise ValueError(f"{name} has a NUL character in it")
    return value


def _text(value: str) -> str:
    if not value.strip() or "\0" in value or len(value) > MAX_TEXT:
        raise ValueError(f"must be text of at most {MAX_TEXT:,} characters")
    return value


def _named(value: dict[str, T]) -> dict[str, T]:
    for name in value:
        if not _TOOL.fullmatch(name):
            raise ValueError(f"{name!r} is no name: 1 to 41 of a-z 0-9 _ that start with a letter")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name, variable in value.items():
        if not re.fullmatch(r"[A-Za-z0-9-]+", name) or name.lower() in _OUR_HEADERS:
            raise ValueError(f"{name!r} is no header that can be set")
        if not _VARIABLE.fullmatch(variable):
            raise ValueError(f"the value of {name} must be the name of an environment variable")
    return value


def _window(value: str) -> str:
    parse(value)
    return value


def _http_url(value: str) -> str:
    if not re.fullmatch(r"https?://[^\s@]+", value):
        raise ValueError("must be a URL that starts with http:// or https:// and has no credential in it")
    return value


def _database_url(value: str) -> str:
    if not value.startswith(("sqlite:////", "postgresql+psycopg://")):
        raise ValueError("must be sqlite:////absolute/path or postgresql+psycopg://user@host/database")
    return value


Directory = Annotated[Path, BeforeValidator(_as_path)]
Repository = Annotated[str, AfterValidator(_as_repository)]
Name = Annotated[str, AfterValidator(_name)]
Word = Annotated[str, AfterValidator(_word)]
Words = Annotated[tuple[Word, ...], Field(strict=False)]
Line = Annotated[str, AfterValidator(_line)]
Text = Annotated[str, AfterValidator(_text)]
Command = Annotated[str, AfterValidator(_command)]
Commands = Annotated[tuple[Command, ...], Field(strict=False)]
Named = Annotated[dict[str, T], AfterValidator(_named)]
Variable = Annotated[str, AfterValidator(_variable)]
Variables = Annotated[tuple[Variable, ...], Field(strict=False)]
Headers = Annotated[dict[str, str], AfterValidator(_headers)]
ActiveHours = Annotated[tuple[Annotated[str, AfterValidator(_window)], ...], Field(strict=False)]
Zone = Annotated[str, AfterValidator(_zone)]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
Count = Annotated[int, Field(ge=1, le=1000)]
Amount = Annotated[int, Field(ge=1, le=10**15)]
CountOrNone = Annotated[int, Field(ge=0, le=1000)]
Seconds = Annotated[float, Field(gt=0, le=30 * 86400, allow_inf_nan=False)]
Usd = Annotated[float, Field(gt=0, le=MAX_USD, allow_inf_nan=False)]
Days = Annotated[Annotated[float, Field(ge=0, le=36_500, allow_inf_nan=False)] | None, BeforeValidator(_as_days)]
UsdCap = Annotated[Usd | None, BeforeValidator(_as_cap)]
