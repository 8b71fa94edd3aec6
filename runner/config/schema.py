"""Every key of the configuration, its default and what it means.

A frozen model that refuses what it does not know; paths are absolute and defaults
are applied once they are in it. The descriptions are what `template` writes.

Knows the file's place and the environment that it is read against, and nothing of
what the values are used for.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, Self
from zoneinfo import ZoneInfo

from platformdirs import user_state_path
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from runner.config.file import problems_of, read_toml
from runner.config.outside import Effects, Notify
from runner.config.upkeep import Keep, Machine
from runner.config.values import (
    ActiveHours,
    Amount,
    Commands,
    Count,
    CountOrNone,
    DatabaseUrl,
    Directory,
    Environment,
    HttpUrl,
    Line,
    Name,
    Repository,
    Seconds,
    Section,
    Surroundings,
    Usd,
    UsdCap,
    Variable,
    Word,
    Words,
    Zone,
    is_url,
    name_of,
    short_hash,
    surroundings,
)
from runner.errors import ConfigError
from runner.hours import Hours, parse

DATABASE_FILE = "ticket-runner.sqlite3"


class Agent(Section):
    """Claude, and the CLI that it runs in."""

    model: Word | None = Field(
        default=None,
        description="Model of tickets that do not name one. Default: the CLI's own.",
        examples=["claude-sonnet-4-5"],
    )
    tools: Words = Field(
        default=(
            *("Bash", "Read", "Edit", "Write", "Glob", "Grep"),
            *("TaskCreate", "TaskGet", "TaskList", "TaskUpdate"),
        ),
        description="Tools of Claude Code that an agent has. Edits stay in its worktree; Bash and Read need not. With"
        " the last four it keeps a plan, which a new session is told.",
    )
    base_url: HttpUrl | None = Field(
        default=None,
        description="Another address of the Messages API: a gateway or a proxy. Default: $ANTHROPIC_BASE_URL of the"
        " daemon, else Anthropic's.",
        examples=["http://127.0.0.1:8080"],
    )
    cli_path: Directory | None = Field(
        default=None,
        description="Another Claude Code CLI. Default: the one that the SDK brings; others are not tested.",
        examples=["/usr/local/bin/claude"],
    )
    max_retries: CountOrNone = Field(
        default=4,
        description="How often the CLI repeats a call that failed (4 take about 10 s). After that the ticket goes back"
        " to the queue, and the queue waits without a process.",
    )
    on_rules_changed: Literal["keep", "fresh"] = Field(
        default="keep",
        description="What to do with a session whose rules (the repository's CLAUDE.md or AGENTS.md, the verify"
        ' commands, what this program says itself) have changed since it began: "keep" goes on in it, with the rules'
        ' that it has; "fresh" goes on in a new session, which is told what was done.',
    )
    environment: Environment = Field(
        default={},
        description="Variables for the CLI, beside those of [env]. Default: none.",
        examples=[{"HTTPS_PROXY": "http://127.0.0.1:3128"}],
    )


class Limits(Section):
    """What a ticket, a day and the queue may use, and how long our own commands take."""

    ticket_usd: Usd = Field(
        default=5.0, description="What a ticket may cost, over all its runs; a ticket may say budget_usd."
    )
    day_usd: UsdCap = Field(default=50.0, description='What a day may cost, over all tickets; or "unlimited".')
    queue_usd: UsdCap = Field(
        default=None,
        description="What all tickets of the database may cost together, ever. Default: no limit.",
        examples=[500.0],
    )
    ticket_turns: Amount | None = Field(
        default=None,
        description="Responses of the model that a ticket may have, over all its runs. Those of subagents"
        " (the tool Task) count too. Default: no limit.",
        examples=[400],
    )
    ticket_tokens: Amount | None = Field(
        default=None,
        description="Tokens that a ticket may use, in and out, those from the cache too, over all its runs. What"
        " subagents put out is counted when the run has ended. Default: no limit.",
        examples=[20_000_000],
    )
    ticket_active_s: Seconds | None = Field(
        default=None,
        description="Seconds that a ticket's runs may take together. Default: no limit.",
        examples=[14400.0],
    )
    attempts: Count = Field(
        default=3,
        description="Failures that a ticket caused itself until it is held. Overload, network and restarts are none.",
    )
    same_error: Count = Field(
        default=20,
        ge=2,
        description="Failures of one tool call, each time with the same input and error and with nothing that worked"
        " between, until the ticket is held.",
    )
    effects: Count = Field(default=20, description="Effects that a ticket may ask for.")
    question_deadline_s: Seconds | None = Field(
        default=None,
        description="Seconds that a question waits at most if the agent gave a default answer with it, which is taken"
        " then. One without waits for a person. Default: as the agent says.",
        examples=[28_800.0],
    )
    setup_s: Seconds = Field(default=600.0, description="Seconds for each setup command.")
    verify_s: Seconds = Field(default=1800.0, description="Seconds for each verify command.")

    @property
    def ticket_microusd(self) -> int:
        """What a ticket may cost."""
        return round(self.ticket_usd * 1_000_000)

    @property
    def day_microusd(self) -> int | None:
        """What a day may cost, None for no cap."""
        return None if self.day_usd is None else round(self.day_usd * 1_000_000)

    @property
    def queue_microusd(self) -> int | None:
        """What all tickets may cost, None for no cap."""
        return None if self.queue_usd is None else round(self.queue_usd * 1_000_000)

    @property
    def ticket_active_us(self) -> int | None:
        """How long a ticket's runs may take, None for no cap."""
        return None if self.ticket_active_s is None else round(self.ticket_active_s * 1_000_000)


class Clocks(Section):
    """How long a run may say nothing before it is stopped (its ticket resumes later), and other waits."""

    start_s: Seconds = Field(
        default=120.0, description="Seconds until the CLI's first message. It gives up by itself after 60."
    )
    silence_s: Seconds = Field(default=300.0, description="Seconds without a message outside a tool.")
    tool_silence_s: Seconds = Field(
        default=900.0,
        description="Seconds without a message in a tool. Claude Code ends a Bash command after 600 at most"
        " (BASH_MAX_TIMEOUT_MS). What the daemon itself does for an agent has limits of its own.",
    )
    linger_s: Seconds = Field(default=30.0, description="Seconds until the CLI is gone after its result.")
    run_s: Seconds | None = Field(
        default=None, description="Seconds for a whole run. Default: no limit.", examples=[7200.0]
    )
    drain_s: Seconds = Field(
        default=60.0,
        description="Seconds for running tickets to finish when the daemon is asked to stop; those that do not resume"
        " at the next start. The unit's TimeoutStopSec= has to be longer by a minute.",
    )
    weather_s: Seconds = Field(
        default=30.0,
        description="Seconds that the queue waits when the model's API is overloaded, limits the rate or fails, unless"
        " it says for how long; after that one ticket tries, and each failure doubles the wait.",
    )
    weather_max_s: Seconds = Field(
        default=1800.0, validate_default=True, description="The longest of these waits; no less than the first."
    )
    lease_s: Seconds = Field(
        default=60.0,
        ge=5,
        description="Seconds for which a claim holds unless it is renewed; a run that cannot renew it is stopped"
        " before. After that a daemon that shares the database may take the ticket, if it has no worktree yet.",
    )

    @field_validator("weather_max_s")
    @classmethod
    def _is_no_less(cls, value: float, info: ValidationInfo) -> float:
        if value < (least := info.data.get("weather_s", value)):
            raise ValueError(f"must be at least weather_s, which is {least:g}")
        return value


class Git(Section):
    """The repository that is worked on."""

    base: Word | None = Field(
        default=None,
        description="Branch that tickets start from, unless they say base. Default: the repository's own (its HEAD).",
        examples=["main"],
    )
    submodules: Literal["refuse", "update"] = Field(
        default="refuse",
        description='"update" checks out submodules before set-up. "refuse" holds a ticket whose base has any, before'
        " it costs anything.",
    )
    on_base_moved: Literal["keep", "merge"] = Field(
        default="keep",
        description="What to do when the base has moved on and a ticket is done and checked:"
        ' "keep" delivers its branch as it is; "merge" merges the base into it first and checks it again, and the agent'
        " resolves what conflicts.",
    )
    author_name: Line = Field(default="ticket-runner", description="Author of the commits.")
    author_email: Line = Field(default="ticket-runner@localhost", description="Their address.")
    timeout_s: Seconds = Field(default=600.0, description="Seconds for one clone, fetch or push.")
    username_env: Variable | None = Field(
        default=None,
        description="Variable of the daemon that holds the user name for an https repository. Default: the name is"
        " x-access-token.",
        examples=["GIT_USERNAME"],
    )
    password_env: Variable | None = Field(
        default=None,
        description="Variable of the daemon that holds the password or token; no agent gets it. Default: none.",
        examples=["GIT_PASSWORD"],
    )


class CredentialFile(Section):
    """Where the key of the Messages API is, unless ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN is set."""

    file: Directory | None = Field(
        default=None,
        description="File with the key on one line, readable by its owner only."
        " Default: anthropic-api-key among the unit's credentials (LoadCredential=).",
        examples=["/etc/ticket-runner/anthropic-api-key"],
    )


class Config(Section):
    """One daemon: one queue over one repository."""

    repository: Repository = Field(description="The repository that tickets are about: a path or a URL. Required.")
    name: Name = Field(
        description="Name of this queue. Default: the repository's.",
        examples=["example"],
    )
    state_directory: Directory = Field(
        description="Database, clone, worktrees and transcripts; on a local disk, outside the repository."
        " Default: the unit's StateDirectory=, else a directory of its own in ~/.local/state/ticket-runner.",
        examples=["/var/lib/ticket-runner/example"],
    )
    queue_directory: Directory = Field(
        description="Folder of the tickets. Default: queue in the state directory.",
        examples=["/srv/tickets"],
    )
    database_url: DatabaseUrl = Field(
        repr=False,
        description="Another database. The password of a PostgreSQL user belongs into PGPASSFILE."
        " Default: a SQLite file in the state directory.",
        examples=["postgresql+psycopg://ticket-runner@db.example/tickets"],
    )
    concurrency: Count = Field(default=2, description="Tickets that are worked on at the same time.")
    poll_s: Seconds = Field(default=5.0, description="Seconds between two looks at the queue.")
    time_zone: Zone = Field(
        default="UTC",
        description="IANA time zone, as Europe/Berlin is, at whose midnight the day of limits.day_usd begins.",
    )
    active_hours: ActiveHours = Field(
        default=(),
        description="Hours in which tickets start, in time_zone; those that run go on to their end. Default: always.",
        examples=[["Mon-Fri 20:00-07:00", "Sat-Sun 00:00-24:00"]],
    )
    setup: Commands = Field(
        default=(),
        description="Shell commands in a new worktree, before the agent starts. Default: none.",
        examples=[["npm ci"]],
    )
    verify: Commands = Field(
        default=(),
        description="Shell commands that must succeed before work is delivered. What a failed one writes goes back to"
        " the agent. Default: none.",
        examples=[["make test"]],
    )
    max_fix_rounds: CountOrNone = Field(default=2, description="How often it goes back, until a person says `retry`.")
    env: Environment = Field(
        default={},
        description="Variables for agents and for the commands of setup, verify and effects, which get none of the"
        " daemon's but a few basic ones (PATH, LANG, HTTPS_PROXY, ...). Default: none.",
        examples=[{"CI": "1"}],
    )
    agent: Agent = Agent()
    limits: Limits = Limits()
    clocks: Clocks = Clocks()
    machine: Machine = Machine()
    keep: Keep = Keep()
    git: Git = Git()
    credential: CredentialFile = CredentialFile()
    notify: Notify = Notify()
    effects: Effects = Field(default={}, examples=["deploy"])

    @classmethod
    def load(cls, path: Path, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration in the file `path`.

        Args:
            path: The file. Relative paths in it start at its directory.
            environ: The daemon's environment, for $STATE_DIRECTORY.

        Raises:
            ConfigError: All that is wrong, one line each.
        """
        return cls.of(read_toml(path), Surroundings(path.resolve().parent, environ), file=path.name)

    @classmethod
    def of(cls, table: Mapping[str, object], around: Surroundings, *, file: str = "configuration") -> Self:
        """Return the configuration that `table` is.

        Raises:
            ConfigError: All that is wrong, one line each.
        """
        try:
            return cls.model_validate(dict(table), context=around)
        except ValidationError as error:
            raise ConfigError("\n".join(f"{file}: {problem}" for problem in problems_of(error, cls))) from None

    @property
    def repository_path(self) -> Path | None:
        """Where the repository is, None when that is a URL."""
        return None if is_url(self.repository) else Path(self.repository)

    @property
    def hours(self) -> Hours:
        """When tickets start."""
        return Hours(tuple(map(parse, self.active_hours)), self.zone)

    @property
    def zone(self) -> ZoneInfo:
        """The zone whose days count."""
        return ZoneInfo(self.time_zone)

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, table: object, info: ValidationInfo) -> object:
        """Fill in what follows from other keys; what is wrong with those is said by their own checks."""
        if not isinstance(table, dict):
            return table
        around = surroundings(info)
        repository = _or_empty(lambda: around.repository(str(table.get("repository", ""))))
        name = str(table.get("name", name_of(repository)))
        state = str(table.get("state_directory") or _state_directory(name, repository, around.environ))
        state = _or_empty(lambda: str(around.path(state)))
        return {
            "name": name,
            "state_directory": state,
            "queue_directory": str(Path(state) / "queue"),
            "database_url": f"sqlite:///{Path('/', state, DATABASE_FILE)}",
        } | table


def _or_empty(make: Callable[[], str]) -> str:
    try:
        return make()
    except ValueError:
        return ""


def _state_directory(name: str, repository: str, environ: Mapping[str, str]) -> str:
    if of_unit := environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return of_unit
    try:
        states = user_state_path("ticket-runner", appauthor=False)
    except RuntimeError as error:  # of a user id without a name, as containers give them
        raise ValueError("this user has no home directory: give `state_directory`, or set HOME") from error
    return str(states / f"{name}-{short_hash(repository)}")
