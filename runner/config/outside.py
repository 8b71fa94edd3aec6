"""What may be done outside: the effects that an agent can ask for, and how a person is told.

Each is a shell line or a URL, and what it needs of the daemon's environment is named,
never written down.

Knows what a line or a URL has to have; does not know how it is called.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from runner.config.values import Command, Headers, HttpUrl, Named, Seconds, Section, Text, Variables

TAKEN = frozenset({"ask", "comment", "notify", "report"})
"""Names of effects that are there without being configured."""

COMMAND_S = 600.0
URL_S = 60.0


class Call(Section):
    """A shell line or a URL."""

    command: Command | None = Field(
        default=None,
        description="Shell line that does it, with the input as JSON on stdin. What it prints is the outcome. Either"
        " this or url. Default: none.",
        examples=["/usr/local/bin/deploy"],
    )
    url: HttpUrl | None = Field(
        default=None,
        description="URL that does it, with the input as JSON by POST. Either this or command. Default: none.",
        examples=["https://deploy.example/deployments"],
    )
    timeout_s: Seconds | None = Field(
        default=None,
        description=f"Seconds that it may take. Default: {COMMAND_S:g} for a command, {URL_S:g} for a URL.",
        examples=[1800.0],
    )
    env: Variables = Field(
        default=(),
        description="Variables of the daemon that its commands get and no agent does. Default: none.",
        examples=[["DEPLOY_TOKEN"]],
    )
    headers_env: Headers = Field(
        default={},
        description="Headers of the call of the URL, each with the variable of the daemon that holds its value."
        " Default: none.",
        examples=[{"Authorization": "DEPLOY_AUTHORIZATION"}],
    )

    @property
    def limit_s(self) -> float:
        """What it may take."""
        return self.timeout_s or (URL_S if self.command is None else COMMAND_S)

    @property
    def variables(self) -> frozenset[str]:
        """All that it needs of the daemon's environment."""
        return frozenset({*self.env, *self.headers_env.values()})

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.command is not None and self.url is not None:
            raise ValueError("has a command and a url: one of them")
        if self.url is None and self.headers_env:
            raise ValueError("has headers_env and no url that they are for")
        return self


class Effect(Call):
    """What an agent may have done outside: [effects.NAME] is its tool NAME. Any number of them. Default: none."""

    description: Text = Field(
        description="What it does and when to ask for it; the agent is told. Required.",
        examples=["Deploy the branch of this ticket to staging."],
    )
    input: Named[Text] = Field(
        default={},
        description="What the agent has to say with it: each name and what it means; all are text. Default: nothing.",
        examples=[{"version": "The version, as in 1.2.3."}],
    )
    look_up: Command | None = Field(
        default=None,
        description="Shell line that finds out whether $IDEMPOTENCY_KEY was done, after a crash in the middle: 0 yes,"
        " 1 certainly not, else not known. Default: none, so that a person is asked.",
        examples=["/usr/local/bin/deployed"],
    )
    idempotent: bool = Field(
        default=False, description="The target takes a key twice and acts once, so it may simply be done again."
    )
    approval: bool = Field(default=False, description="A person has to approve each.")

    @model_validator(mode="after")
    def _is_some(self) -> Self:
        if self.command is None and self.url is None:
            raise ValueError("needs a command or a url")
        if "operation" in self.input:
            raise ValueError("has an input named operation, which is the name of an input of every effect")
        return self


class Notify(Call):
    """How a person is told what became of a ticket. Default: not at all."""

    command: Command | None = Field(
        default=None,
        description="Shell line that tells, with what became of the ticket as JSON on stdin (ticket, state, reason,"
        " text). Either this or url. Default: none.",
        examples=["mail -s tickets me@example.org"],
    )
    url: HttpUrl | None = Field(
        default=None,
        description="URL that is told, with the same by POST. Either this or command. Default: none.",
        examples=["https://chat.example/hooks/tickets"],
    )
    env: Variables = Field(
        default=(),
        description="Variables of the daemon that the command gets and no agent does. Default: none.",
        examples=[["CHAT_TOKEN"]],
    )
    headers_env: Headers = Field(
        default={},
        description="Headers of the POST, each with the variable of the daemon that holds its value. Default: none.",
        examples=[{"Authorization": "CHAT_AUTHORIZATION"}],
    )
    on: Annotated[tuple[Literal["held", "done", "warned"], ...], Field(strict=False)] = Field(
        default=("held", "done", "warned"),
        description="What is told: a ticket that is held, or done; warned is 80 % of a cap.",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.model_fields_set and not self.is_configured:
            raise ValueError("needs a command or a url, or nobody is told")
        return self

    @property
    def is_configured(self) -> bool:
        """Whether anybody is told."""
        return self.command is not None or self.url is not None


def _free(effects: dict[str, Effect]) -> dict[str, Effect]:
    if taken := sorted(TAKEN & effects.keys()):
        raise ValueError(f"{taken[0]} is there already: choose another name")
    return effects


Effects = Annotated[Named[Effect], AfterValidator(_free)]
