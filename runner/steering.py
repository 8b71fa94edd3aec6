"""Carry out a command: by the daemon while one holds the home, else here, with its lock.

Either way it happens once, under the one lock, by the same function.
"""

from contextlib import suppress

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from runner import commands, control
from runner.commands import Command, NotPossible
from runner.config import Config
from runner.control import NobodyListens, Refused
from runner.home import Home, Locked
from runner.status import Around, explain
from runner.store import Store, UnknownTicket, tickets
from tickets.folder import Folder

_STARTING_S = 20.0
"""A daemon that starts holds the lock for a while before it listens: it waits for what is left of the last one."""


def steer(config: Config, command: Command, *, patience_s: float = _STARTING_S) -> str:
    """Carry out `command` and return what there is to say.

    Args:
        config: Whose queue.
        command: What to do.
        patience_s: How long a home may be held by a process that does not answer.

    Raises:
        Refused, NotPossible, UnknownTicket: It was not possible; nothing was changed.
        Locked: A daemon holds the home and does not answer.
    """
    for attempt in Retrying(
        retry=retry_if_exception_type(Locked), wait=wait_fixed(0.2), stop=stop_after_delay(patience_s), reraise=True
    ):
        with attempt:
            try:
                return _try(config, command)
            except (UnknownTicket, Refused) as error:
                if (because := _is_a_file(config, command.ticket)) is not None:
                    raise NotPossible(command.verb, command.ticket, because) from error
                raise
    raise AssertionError


def _try(config: Config, command: Command) -> str:
    home = Home.of(config)
    try:
        return control.send(home, command)
    except NobodyListens:
        home.prepare(config.repository_path)
        with home.lock():
            return _here(config, command)


def _here(config: Config, command: Command) -> str:
    store = Store.open(config.database_url)
    try:
        reply = store.transact(commands.perform, command)
        ticket = command.ticket or reply.ticket
        row = store.read(tickets.get, ticket) if ticket else None
    finally:
        store.close()
    if row is not None:
        with suppress(OSError):  # done is done: the next daemon moves the file when it starts
            Folder(config.queue_directory).mirror(row.ticket.id, row.ticket.state)
    return f"{reply.text}; it happens at the next start" if reply.stop else reply.text


def _is_a_file(config: Config, ticket: str) -> str | None:
    """Return what to do about a file of the queue folder that nothing has taken in; None when it is not one."""
    around = Around.of(config)
    if ticket not in around.files:
        return None
    store = Store.open(config.database_url, read_only=True)
    try:
        view = store.read(explain, ticket, around)
    finally:
        store.close()
    if view.details is not None:
        return None
    away = f"move {config.queue_directory / f'{ticket}.md'} away"
    return f"its file is no ticket yet ({view.why.sentence}): {view.why.then}, or {away}"
