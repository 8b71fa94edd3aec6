"""Conversations: opened before their process exists, confirmed, closed, and what was said in them.

What opens a session passes the fence. What is true whoever owns the ticket by now (it
was confirmed, this was said) does not.
"""

import json
from dataclasses import dataclass

from sqlalchemy import RowMapping, delete, select, update

from runner.events import Name
from runner.session import Session
from runner.store import claims, runs, schema
from runner.store.connection import Rx, Tx
from runner.store.errors import UnknownRow

MESSAGE_BYTES = 64 * 1024
"""Of one message; the rest of a longer one is in Claude Code's transcript."""

_s = schema.session.c
_r = schema.run.c
_m = schema.message.c


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A conversation as stored."""

    id: str
    ticket: str
    generation: int
    prompt_sha: str
    """Hash of what we told the agent besides the ticket; Claude Code keeps to that."""
    latest_prompt_sha: str | None
    """Hash of what the latest run that resumed it would have been told; None when none did."""
    confirmed: bool
    closed_reason: str | None
    opened_at_us: int
    closed_at_us: int | None

    @property
    def is_outdated(self) -> bool:
        """Its rules are older than those of the daemon that resumed it last."""
        return self.latest_prompt_sha not in {None, self.prompt_sha}


def open_session(
    tx: Tx,
    ticket: str,
    token: int,
    *,
    session: str,
    generation: int,
    prompt_sha: str,
    close_previous: str | None = None,
) -> None:
    """Save a session before its process exists; one that is there already gets the new `prompt_sha`.

    Args:
        tx: The transaction.
        ticket: Whose.
        token: Of the claim.
        session: Its id, as `session_id` makes it.
        generation: Which of the ticket's sessions, from 1.
        prompt_sha: Hash of what we tell the agent besides the ticket.
        close_previous: Why the session before cannot go on, None when it is closed or there is none.

    Raises:
        LostTicket: `token` is not the ticket's present claim.
    """
    claims.require(tx, ticket, token)
    previous = _latest(tx, ticket)
    if previous is not None and previous.id == session:
        tx.connection.execute(update(schema.session).where(_s.id == session).values(prompt_sha=prompt_sha))
        return
    if previous is not None and close_previous is not None:
        close_session(tx, previous.id, close_previous)
    values = {
        "id": session,
        "ticket": ticket,
        "generation": generation,
        "prompt_sha": prompt_sha,
        "confirmed": False,
        "opened_at_us": tx.now_us,
    }
    tx.connection.execute(schema.session.insert().values(values))
    tx.log(ticket, Name.SESSION_OPENED, session=session, generation=generation, prompt_sha=prompt_sha)


def resume_session(tx: Tx, session: str, prompt_sha: str) -> None:
    """Save what a run that resumes a session would be told if that were new; logged when it is news.

    Raises:
        UnknownRow: There is no such session.
    """
    row = _get(tx, session)
    if prompt_sha == (row.latest_prompt_sha or row.prompt_sha):
        return
    tx.connection.execute(update(schema.session).where(_s.id == session).values(latest_prompt_sha=prompt_sha))
    if prompt_sha != row.prompt_sha:
        tx.log(row.ticket, Name.SESSION_OUTDATED, session=session, prompt_sha=row.prompt_sha, latest_sha=prompt_sha)


def confirm_session(tx: Tx, session: str, run: str) -> None:
    """Save that a real assistant message was seen in a session, and in a run.

    Raises:
        UnknownRow: There is no such session or run.
    """
    row = _get(tx, session)
    confirmed = update(schema.run).where(_r.id == run).values(confirmed=True).returning(_r.id)
    if tx.connection.execute(confirmed).one_or_none() is None:
        raise UnknownRow("run", run)
    if not row.confirmed:
        tx.connection.execute(update(schema.session).where(_s.id == session).values(confirmed=True))
        tx.log(row.ticket, Name.SESSION_CONFIRMED, run=run, session=session)


def close_session(tx: Tx, session: str, reason: str) -> None:
    """Save that a session cannot go on; the first reason stays.

    Raises:
        UnknownRow: There is no such session.
    """
    row = _get(tx, session)
    if row.closed_reason is None:
        values = {"closed_reason": reason, "closed_at_us": tx.now_us}
        tx.connection.execute(update(schema.session).where(_s.id == session).values(values))
        tx.log(row.ticket, Name.SESSION_CLOSED, session=session, generation=row.generation, reason=reason)


def last_session(rx: Rx, ticket: str) -> Session | None:
    """Return the ticket's session with the highest generation."""
    last = _latest(rx, ticket)
    if last is None:
        return None
    empty = runs.empty(rx, last.id)
    return Session(last.id, last.generation, last.confirmed, last.closed_reason, last.prompt_sha, empty)


def sessions_of(rx: Rx, ticket: str) -> list[SessionRow]:
    """Return a ticket's sessions, the first generation first."""
    query = select(schema.session).where(_s.ticket == ticket).order_by(_s.generation)
    return [_row(found) for found in rx.connection.execute(query).mappings()]


def say(tx: Tx, session: str, run: str, uuid: str, text: str) -> bool:
    """Save what was said, redacted JSON, once per uuid; False when it was there.

    A text beyond `MESSAGE_BYTES` is kept as `{"cut": <its beginning>}`.
    """
    there = select(_m.id).where(_m.session == session, _m.uuid == uuid)
    if tx.connection.execute(there).one_or_none() is not None:
        return False
    if len(text.encode("utf-8", "replace")) > MESSAGE_BYTES:
        text = json.dumps({"cut": text.encode("utf-8", "replace")[: MESSAGE_BYTES // 2].decode("utf-8", "ignore")})
    values = {"session": session, "run": run, "uuid": uuid, "json": text, "at_us": tx.now_us}
    tx.connection.execute(schema.message.insert().values(values))
    return True


def was_said(rx: Rx, ticket: str) -> bool:
    """Return whether any message of the ticket's sessions is stored."""
    query = select(_m.id).join(schema.session, _s.id == _m.session).where(_s.ticket == ticket).limit(1)
    return rx.connection.execute(query).one_or_none() is not None


def unsay(tx: Tx, ticket: str) -> int:
    """Remove all messages of the ticket's sessions and return how many there were."""
    of_the_ticket = select(_s.id).where(_s.ticket == ticket)
    return tx.connection.execute(delete(schema.message).where(_m.session.in_(of_the_ticket))).rowcount


def last_account(rx: Rx, ticket: str) -> str | None:
    """Return what the agent last said that it did, when it finished; None when it has not."""
    query = (
        select(_m.json)
        .join(schema.session, _s.id == _m.session)
        .where(_s.ticket == ticket, _m.uuid.like("account-%"))
        .order_by(_m.id.desc())
        .limit(1)
    )
    found = rx.connection.execute(query).scalar_one_or_none()
    if found is None:
        return None
    said = json.loads(found)
    return str(said.get("account", said.get("cut", "")))


def _latest(rx: Rx, ticket: str) -> SessionRow | None:
    query = select(schema.session).where(_s.ticket == ticket).order_by(_s.generation.desc()).limit(1)
    found = rx.connection.execute(query).mappings().one_or_none()
    return None if found is None else _row(found)


def _get(rx: Rx, session: str) -> SessionRow:
    found = rx.connection.execute(select(schema.session).where(_s.id == session)).mappings().one_or_none()
    if found is None:
        raise UnknownRow("session", session)
    return _row(found)


def _row(found: RowMapping) -> SessionRow:
    return SessionRow(**found)
