"""The tables, as this version of the program has them.

Money is integer micro-dollars (`_microusd`), a time is integer microseconds UTC
(`_us`): SQLite would drop the zone of a `DateTime`. `HEAD` names the last script of
migrations/, which makes these tables out of those of any earlier version.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

HEAD = "0001"

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


class Words(TypeDecorator[str]):
    """Text from anywhere: what a database cannot hold (NUL, half a surrogate pair) is replaced, never an error."""

    impl = Text  # type: ignore[mutable-override]  # the way of SQLAlchemy's manual
    cache_ok = True  # type: ignore[mutable-override]  # same

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Return `value` as it is saved."""
        del dialect
        if value is None:
            return None
        return str(value).replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_Id = BigInteger().with_variant(Integer, "sqlite")  # only an INTEGER key counts by itself there

ticket = Table(
    "ticket",
    metadata,
    Column("id", Words, primary_key=True),
    Column("canonical", Words, nullable=False, unique=True),
    Column("source", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("reason", Words),
    Column("note", Words, nullable=False),
    Column("round", Integer, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("waits", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("not_before_us", BigInteger, nullable=False),
    Column("stop", Words),
    Column("fresh", Boolean, nullable=False),
    Column("owner", BigInteger, ForeignKey("epoch.id")),
    Column("lease_until_us", BigInteger),
    Column("home", Words),
    Column("branch", Words),
    Column("base_sha", Words),
    Column("text", Words, nullable=False),
    Column("title", Words, nullable=False),
    Column("priority", BigInteger, nullable=False),
    Column("budget_microusd", BigInteger),
    Column("base", Words),
    Column("model", Words),
    Column("tools", Words),  # a JSON list
    Column("verify", Words),  # a JSON list
    Column("expects", Words, nullable=False),
    Column("asked_not_before_us", BigInteger, nullable=False),
    Column("taken_at_us", BigInteger, nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),  # of its latest event
    Index("ix_ticket_state", "state", "priority", "taken_at_us"),
)

session = Table(
    "session",
    metadata,
    Column("id", Words, primary_key=True),
    Column("ticket", Words, ForeignKey("ticket.id"), nullable=False),
    Column("generation", Integer, nullable=False),
    Column("prompt_sha", Words, nullable=False),
    Column("latest_prompt_sha", Words),
    Column("confirmed", Boolean, nullable=False),
    Column("closed_reason", Words),
    Column("opened_at_us", BigInteger, nullable=False),
    Column("closed_at_us", BigInteger),
    UniqueConstraint("ticket", "generation"),
)

run = Table(
    "run",
    metadata,
    Column("id", Words, primary_key=True),
    Column("ticket", Words, ForeignKey("ticket.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("session", Words, ForeignKey("session.id"), nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("kind", Words, nullable=False),
    Column("pid", BigInteger),
    Column("pid_started", BigInteger),
    Column("allowance_microusd", BigInteger, nullable=False),
    Column("carried_microusd", BigInteger, nullable=False),
    Column("transcript_bytes", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("ended_at_us", BigInteger),
    Column("outcome", Words),
    Column("confirmed", Boolean, nullable=False),
    Column("cost_microusd", BigInteger),
    Column("cost_kind", Words),
    Column("cut", Boolean, nullable=False),
    Column("subtype", Words),
    Column("terminal_reason", Words),
    Column("api_error_status", Integer),
    Column("turns", Integer, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("fingerprint", Words),  # of what there was when it ended: HEAD, diff, effects, answer
    Column("cli_version", Words),
    UniqueConstraint("ticket", "number"),
    Index(None, "session"),
    Index(None, "started_at_us"),
    Index(None, "ended_at_us"),
)

effect = Table(
    "effect",
    metadata,
    Column("key", Words, primary_key=True),
    Column("ticket", Words, ForeignKey("ticket.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("operation", Words, nullable=False),
    Column("kind", Words, nullable=False),
    Column("payload", Words, nullable=False),  # JSON
    Column("payload_hash", Words, nullable=False),
    Column("state", Words, nullable=False),
    Column("needs_approval", Boolean, nullable=False),
    Column("approved_by", Words),
    Column("outcome", Words),
    Column("run", Words, ForeignKey("run.id")),
    Column("token", BigInteger),
    Column("claimed_by", BigInteger, ForeignKey("epoch.id")),
    Column("claimed_at_us", BigInteger),
    Column("limit_us", BigInteger),
    Column("attempts", Integer, nullable=False),
    Column("created_at_us", BigInteger, nullable=False),
    Column("changed_at_us", BigInteger, nullable=False),
    Index("ix_effect_ticket", "ticket", "round"),
    Index(None, "state"),
)

question = Table(
    "question",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("ticket", Words, ForeignKey("ticket.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("text", Words, nullable=False),
    Column("answer", Words),
    Column("answered_by", Words),
    Column("default_answer", Words),
    Column("deadline_us", BigInteger),
    Column("asked_at_us", BigInteger, nullable=False),
    Column("answered_at_us", BigInteger),
    Column("run", Words, ForeignKey("run.id")),
    Index(None, "ticket"),
)

message = Table(
    "message",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("session", Words, ForeignKey("session.id"), nullable=False),
    Column("uuid", Words, nullable=False),
    Column("run", Words, ForeignKey("run.id"), nullable=False),
    Column("json", Words, nullable=False),
    Column("at_us", BigInteger, nullable=False),
    UniqueConstraint("session", "uuid"),
)

event = Table(
    "event",
    metadata,
    Column("id", _Id, primary_key=True),  # the order of commits, over all tickets
    Column("ticket", Words, nullable=False),  # "" for the daemon and its queue, so no foreign key
    Column("seq", BigInteger, nullable=False),
    Column("run", Words),
    Column("name", Words, nullable=False),
    Column("version", Integer, nullable=False),
    Column("payload", Words, nullable=False),  # JSON
    Column("at_us", BigInteger, nullable=False),
    UniqueConstraint("ticket", "seq"),
)

epoch = Table(
    "epoch",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("host", Words, nullable=False),
    Column("home", Words, nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("started_at_us", BigInteger, nullable=False),
    Column("stopped_at_us", BigInteger),
    Index(None, "home"),
)

queue = Table(  # one row, made by the first migration
    "queue",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("seq", BigInteger, nullable=False),  # of the latest event of ticket ""
    Column("paused_at_us", BigInteger),
    Column("until_us", BigInteger),
    Column("reason", Words),
    Column("note", Words),
    Column("paused_by", Words),
    Column("waits", Integer, nullable=False),  # pauses for the weather in a row
    Column("probe", Words),  # the ticket that tries whether it is over
)

refusal = Table(  # what the source holds now that cannot become a ticket
    "refusal",
    metadata,
    Column("where", Words, primary_key=True),
    Column("problem", Words, nullable=False),
    Column("fingerprint", Words, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)
