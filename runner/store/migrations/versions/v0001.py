"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make every table, and the queue's one row."""
    _epoch()
    _event()
    _queue()
    _refusal()
    _ticket()
    _session()
    _run()
    _effect()
    _message()
    _question()
    op.execute("INSERT INTO queue (id, seq, waits) VALUES (1, 0, 0)")


def _epoch() -> None:
    op.create_table(
        "epoch",
        sa.Column("id", _COUNTED, nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("home", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=False),
        sa.Column("stopped_at_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_epoch"),
    )
    op.create_index("ix_epoch_home", "epoch", ["home"])


def _event() -> None:
    op.create_table(
        "event",
        sa.Column("id", _COUNTED, nullable=False),
        sa.Column("ticket", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.Text()),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
        sa.UniqueConstraint("ticket", "seq", name="uq_event_ticket"),
    )


def _queue() -> None:
    op.create_table(
        "queue",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("paused_at_us", sa.BigInteger()),
        sa.Column("until_us", sa.BigInteger()),
        sa.Column("reason", sa.Text()),
        sa.Column("note", sa.Text()),
        sa.Column("paused_by", sa.Text()),
        sa.Column("waits", sa.Integer(), nullable=False),
        sa.Column("probe", sa.Text()),
        sa.PrimaryKeyConstraint("id", name="pk_queue"),
    )


def _refusal() -> None:
    op.create_table(
        "refusal",
        sa.Column("where", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("where", name="pk_refusal"),
    )


def _ticket() -> None:
    op.create_table(
        "ticket",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("waits", sa.Integer(), nullable=False),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("not_before_us", sa.BigInteger(), nullable=False),
        sa.Column("stop", sa.Text()),
        sa.Column("fresh", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.BigInteger()),
        sa.Column("lease_until_us", sa.BigInteger()),
        sa.Column("home", sa.Text()),
        sa.Column("branch", sa.Text()),
        sa.Column("base_sha", sa.Text()),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("budget_microusd", sa.BigInteger()),
        sa.Column("base", sa.Text()),
        sa.Column("model", sa.Text()),
        sa.Column("tools", sa.Text()),
        sa.Column("verify", sa.Text()),
        sa.Column("expects", sa.Text(), nullable=False),
        sa.Column("asked_not_before_us", sa.BigInteger(), nullable=False),
        sa.Column("taken_at_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["owner"], ["epoch.id"], name="fk_ticket_owner"),
        sa.PrimaryKeyConstraint("id", name="pk_ticket"),
        sa.UniqueConstraint("canonical", name="uq_ticket_canonical"),
    )
    op.create_index("ix_ticket_state", "ticket", ["state", "priority", "taken_at_us"])


def _session() -> None:
    op.create_table(
        "session",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("ticket", sa.Text(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("prompt_sha", sa.Text(), nullable=False),
        sa.Column("latest_prompt_sha", sa.Text()),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("closed_reason", sa.Text()),
        sa.Column("opened_at_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_us", sa.BigInteger()),
        sa.ForeignKeyConstraint(["ticket"], ["ticket.id"], name="fk_session_ticket"),
        sa.PrimaryKeyConstraint("id", name="pk_session"),
        sa.UniqueConstraint("ticket", "generation", name="uq_session_ticket"),
    )


def _run() -> None:
    op.create_table(
        "run",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("ticket", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger()),
        sa.Column("pid_started", sa.BigInteger()),
        sa.Column("allowance_microusd", sa.BigInteger(), nullable=False),
        sa.Column("carried_microusd", sa.BigInteger(), nullable=False),
        sa.Column("transcript_bytes", sa.BigInteger(), nullable=False),
        sa.Column("started_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ended_at_us", sa.BigInteger()),
        sa.Column("outcome", sa.Text()),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("cost_microusd", sa.BigInteger()),
        sa.Column("cost_kind", sa.Text()),
        sa.Column("cut", sa.Boolean(), nullable=False),
        sa.Column("subtype", sa.Text()),
        sa.Column("terminal_reason", sa.Text()),
        sa.Column("api_error_status", sa.Integer()),
        sa.Column("turns", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("fingerprint", sa.Text()),
        sa.Column("cli_version", sa.Text()),
        sa.ForeignKeyConstraint(["session"], ["session.id"], name="fk_run_session"),
        sa.ForeignKeyConstraint(["ticket"], ["ticket.id"], name="fk_run_ticket"),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("ticket", "number", name="uq_run_ticket"),
    )
    op.create_index("ix_run_ended_at_us", "run", ["ended_at_us"])
    op.create_index("ix_run_session", "run", ["session"])
    op.create_index("ix_run_started_at_us", "run", ["started_at_us"])


def _effect() -> None:
    op.create_table(
        "effect",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("ticket", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("payload_hash", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("needs_approval", sa.Boolean(), nullable=False),
        sa.Column("approved_by", sa.Text()),
        sa.Column("outcome", sa.Text()),
        sa.Column("run", sa.Text()),
        sa.Column("token", sa.BigInteger()),
        sa.Column("claimed_by", sa.BigInteger()),
        sa.Column("claimed_at_us", sa.BigInteger()),
        sa.Column("limit_us", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("changed_at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["claimed_by"], ["epoch.id"], name="fk_effect_claimed_by"),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_effect_run"),
        sa.ForeignKeyConstraint(["ticket"], ["ticket.id"], name="fk_effect_ticket"),
        sa.PrimaryKeyConstraint("key", name="pk_effect"),
    )
    op.create_index("ix_effect_state", "effect", ["state"])
    op.create_index("ix_effect_ticket", "effect", ["ticket", "round"])


def _message() -> None:
    op.create_table(
        "message",
        sa.Column("id", _COUNTED, nullable=False),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("run", sa.Text(), nullable=False),
        sa.Column("json", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_message_run"),
        sa.ForeignKeyConstraint(["session"], ["session.id"], name="fk_message_session"),
        sa.PrimaryKeyConstraint("id", name="pk_message"),
        sa.UniqueConstraint("session", "uuid", name="uq_message_session"),
    )


def _question() -> None:
    op.create_table(
        "question",
        sa.Column("id", _COUNTED, nullable=False),
        sa.Column("ticket", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text()),
        sa.Column("answered_by", sa.Text()),
        sa.Column("default_answer", sa.Text()),
        sa.Column("deadline_us", sa.BigInteger()),
        sa.Column("asked_at_us", sa.BigInteger(), nullable=False),
        sa.Column("answered_at_us", sa.BigInteger()),
        sa.Column("run", sa.Text()),
        sa.ForeignKeyConstraint(["run"], ["run.id"], name="fk_question_run"),
        sa.ForeignKeyConstraint(["ticket"], ["ticket.id"], name="fk_question_ticket"),
        sa.PrimaryKeyConstraint("id", name="pk_question"),
    )
    op.create_index("ix_question_ticket", "question", ["ticket"])
