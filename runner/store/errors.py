"""What a transaction refuses, and what the database itself may fail with."""

from runner.errors import ConfigError, Exit, RunnerError


class NothingYet(ConfigError):
    """There is no database to read: nothing has run with this configuration."""

    exit_code = Exit.FAILED

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return f"nothing has run with this configuration yet: {self.where}; `ticket-runner start` begins"


class UnknownTicket(RunnerError):
    """There is no ticket with this id."""

    def __init__(self, ticket: str, close: tuple[str, ...] = ()) -> None:
        super().__init__(ticket, close)
        self.ticket, self.close = ticket, close

    def __str__(self) -> str:
        hint = (
            f": did you mean {' or '.join(self.close)}?" if self.close else ": `ticket-runner status --done` lists all"
        )
        return f"there is no ticket {self.ticket!r}{hint}"


class UnknownRow(RunnerError):
    """A run, session or epoch that should be there is not."""

    def __init__(self, table: str, id_: str | int) -> None:
        super().__init__(table, id_)
        self.table, self.id = table, id_

    def __str__(self) -> str:
        return f"there is no {self.table} {self.id!r}"


class LostTicket(RunnerError):
    """A claim wrote after it had lost its ticket; its run stops at once."""

    def __init__(self, ticket: str, token: int) -> None:
        super().__init__(ticket, token)
        self.ticket, self.token = ticket, token

    def __str__(self) -> str:
        return f"claim {self.token} of ticket {self.ticket} is over: another has taken its place"


class StoreUnavailable(RunnerError):
    """The database did not do what it was asked: unreachable, locked for too long, or its disk is full."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"the database does not answer: {self.what}"


class StoreDamaged(ConfigError):
    """The database's file is damaged, or is no database."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"the database is damaged ({self.what}): restore a backup, see docs/recovery.md"
