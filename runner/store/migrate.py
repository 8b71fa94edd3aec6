"""Make this version's tables out of an earlier version's, by the scripts in migrations/.

Imported only when the database's version is not this one: alembic is slow to import.
There is no way back; a backup of before is.
"""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from runner.errors import ConfigError
from runner.store.schema import HEAD

_SCRIPTS = Path(__file__).parent / "migrations"


def check(found: str | None) -> None:
    """Refuse a database that a newer version made.

    Raises:
        ConfigError: No script of this version leads to, or from, `found`.
    """
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigError(
            f"the database has schema {found} and this version of ticket-runner knows up to {HEAD}: "
            "use the version that made it, or a newer one"
        )


def to_head(connection: Connection) -> None:
    """Run what is missing, inside the connection's own transaction."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return config
