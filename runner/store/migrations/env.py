"""What alembic runs around the scripts: the caller's connection and its open transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
