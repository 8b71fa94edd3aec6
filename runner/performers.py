"""How each kind of effect is done and found again: a comment, a shell line, a URL.

What ended in a way that proves nothing is unknown: only an end that was agreed on (an
exit code, a refused connection, a status) says that it was done or was not. docs/effects.md
has the table.

Knows the configuration, processes and HTTP. Does not know who wants an effect, nor what
follows from its outcome.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

import anyio
from anyio import to_thread
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from runner.children import CommandEnd, run_command
from runner.config import Call, Config, Effect
from runner.effects import Absent, Done, Failed, LookedUp, Outcome, Performer, Unknown, explained
from runner.errors import ConfigError
from runner.home import Home
from runner.processes import Cookie, end, ended
from runner.redact import Redactor
from runner.store import Rx, Store, tickets
from runner.store.effects import EffectRow
from tickets.source import Source

if TYPE_CHECKING:
    import httpx

REFUSED = frozenset({*range(64, 79), 126, 127}) - {75}
"""Exit codes of a command that refused before it did anything: sysexits.h without EX_TEMPFAIL, and the shell's own."""
NOT_KNOWN = frozenset({408, 409, 425, 429})
"""Statuses below 500 that do not say whether it was done: with the key it may be under way, or have been before."""
MAX_CHARS = 2_000
"""Of what is kept of an outcome."""

_US = 1_000_000
_CONNECT_S = 10.0
_CONNECT_TRIES = 3
_RETRY_S = 0.5
_BODY_S = 5.0
_O = TypeVar("_O", Done | Failed | Unknown, Done | Absent | Unknown)


def performers(
    config: Config,
    *,
    source: Source,
    store: Store,
    home: Home,
    redactor: Redactor,
    environment: Mapping[str, str],
    environ: Mapping[str, str],
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> dict[str, Performer]:
    """Return the performer of each kind: comment, report, notify if there is one, and each configured effect.

    Args:
        config: The configuration.
        source: Where comments go.
        store: Knows the branch of a ticket.
        home: Where commands run.
        redactor: Keeps known secrets out of outcomes; has to know those of `secrets_of`.
        environment: What every command gets.
        environ: The daemon's own, for the variables that an effect names.
        now_us: The clock of the claims.

    Raises:
        ConfigError: An effect names a variable that is not there.
    """
    secrets_of(config, environ)
    comment = _comments(source)
    made = {"comment": comment, "report": comment}
    for name, call in calls(config).items():
        variables = {**environment, **{name: environ[name] for name in call.env}}
        line = _Lines(call, store, home, variables, redactor.text)
        if call.command is not None:
            perform = partial(line.perform, call.command)
            await_end = partial(line.await_end, now_us)
            made[name] = Performer(perform, limit_s=call.limit_s, await_end=await_end)
        elif call.url is not None:
            headers = {header: environ[variable].strip() for header, variable in call.headers_env.items()}
            made[name] = Performer(partial(_post, call.url, headers, call.limit_s), limit_s=call.limit_s)
        if isinstance(call, Effect):
            look_up = None if call.look_up is None else partial(line.look_up, call.look_up)
            made[name] = replace(made[name], look_up=look_up, honours_keys=call.idempotent)
    return {kind: _guarded(performer, redactor) for kind, performer in made.items()}


def calls(config: Config) -> dict[str, Call]:
    """Return what is configured to be done outside, by the kind of its effects."""
    return {**({"notify": config.notify} if config.notify.is_configured else {}), **config.effects}


def secrets_of(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Return what effects get of the daemon's environment, for the redactor.

    Raises:
        ConfigError: An effect names a variable that is not there.
    """
    for kind, call in calls(config).items():
        if missing := sorted(call.variables - environ.keys()):
            table = kind if call is config.notify else f"effects.{kind}"
            raise ConfigError(f"{table}: the daemon's environment has no {', '.join(missing)}")
    return [environ[name] for call in calls(config).values() for name in sorted(call.variables)]


def _comments(source: Source) -> Performer:
    async def perform(row: EffectRow) -> Outcome:
        return Done(await to_thread.run_sync(source.comment, row.key, row.ticket, str(row.payload["body"])))

    async def look_up(row: EffectRow) -> LookedUp:
        where = await to_thread.run_sync(source.look_up, row.key, row.ticket)
        return Absent() if where is None else Done(where)

    return Performer(perform, look_up, limit_s=0)


def _guarded(performer: Performer, redactor: Redactor) -> Performer:
    """Let no secret, no endless text and no exception out of a performer."""

    def guard(ask: Callable[[EffectRow], Awaitable[_O]]) -> Callable[[EffectRow], Awaitable[_O]]:
        async def guarded(row: EffectRow) -> _O:
            try:
                outcome = await ask(row)
            except Exception as error:  # noqa: BLE001  whatever it is, it says nothing of what has happened
                outcome = Unknown(explained(type(error).__name__, error))
            if isinstance(outcome, Absent):
                return outcome
            return replace(outcome, text=_bounded(redactor.text(outcome.text)))

        return guarded

    look_up = None if performer.look_up is None else guard(performer.look_up)
    return replace(performer, perform=guard(performer.perform), look_up=look_up)


def _bounded(text: str) -> str:
    """Return the end of what was said: there is what it came to."""
    text = text.strip()
    return text if len(text) <= MAX_CHARS else f"…{text[1 - MAX_CHARS :]}"


@dataclass(frozen=True, slots=True)
class _Lines:
    """The shell lines of one kind of effect."""

    call: Call
    store: Store
    home: Home
    environment: Mapping[str, str]
    redact: Callable[[str], str]

    async def perform(self, line: str, row: EffectRow) -> Outcome:
        """Run the line that does it; it goes on without us to its own end or, while we live, to its limit."""
        ran = await self._run(line, row, outlives=True)
        said = ran.output.strip() or ran.errors
        if ran.timed_out:
            return Unknown(explained(f"it was ended after its {self.call.limit_s:g} s", said))
        match ran.exit_code:
            case None:
                return Unknown(explained(f"it was ended by signal {ran.signal}", said))
            case 0:
                return Done(ran.output)
            case code if code in REFUSED:
                return Failed(explained(f"it refused with exit code {code}", ran.errors.strip() or said))
            case code:
                return Unknown(
                    explained(f"it ended with exit code {code}", ran.errors.strip() or said), in_flight=False
                )

    async def look_up(self, line: str, row: EffectRow) -> LookedUp:
        """Run the line that finds out whether it was done."""
        ran = await self._run(line, row, outlives=False)
        match ran.exit_code:
            case 0:
                return Done(ran.output)
            case 1:
                return Absent()
            case None:
                how = f"it took more than {self.call.limit_s:g} s" if ran.timed_out else f"signal {ran.signal}"
            case code:
                how = f"exit code {code}"
        return Unknown(explained(f"the look-up does not know ({how})", ran.output))

    async def await_end(self, now_us: Callable[[], int], row: EffectRow) -> None:
        """Wait for a line that a dead daemon left, and end it at its limit."""
        left_s = (row.claimed_at_us or 0) / _US + self.call.limit_s - now_us() / _US
        with anyio.move_on_after(min(max(left_s, 0), self.call.limit_s)):
            await ended(_cookie(self.home, row))
        await end(_cookie(self.home, row))

    async def _run(self, line: str, row: EffectRow, *, outlives: bool) -> CommandEnd:
        branch = await to_thread.run_sync(self.store.read, _branch, row.ticket)
        environment = {
            "IDEMPOTENCY_KEY": row.key,
            "TICKET_ID": row.ticket,
            "TICKET_ROUND": str(row.round),
            **({} if branch is None else {"TICKET_BRANCH": branch}),
        }
        return await run_command(
            line,
            cwd=self.home.user_home,  # not the worktree: what is there is the agent's
            environment={**self.environment, **environment},
            cookie=_cookie(self.home, row),
            timeout_s=self.call.limit_s,
            redact=self.redact,
            stdin=_json(row),
            outlives=outlives,
        )


def _json(row: EffectRow) -> bytes:
    return json.dumps(dict(row.payload)).encode()


def _branch(rx: Rx, ticket: str) -> str | None:
    return tickets.get(rx, ticket).branch


def _cookie(home: Home, row: EffectRow) -> Cookie:
    """Return the mark of all that is run for one effect, by whichever daemon."""
    return Cookie(str(home.path), row.ticket, int(sha256(row.key.encode()).hexdigest()[:15], 16), "effect")


async def _post(url: str, headers: Mapping[str, str], limit_s: float, row: EffectRow) -> Outcome:
    """POST the input; only what provably did not arrive is sent again."""
    import httpx  # noqa: PLC0415  takes a while, and few need it

    ours = {**headers, "Content-Type": "application/json", "Idempotency-Key": row.key}
    timeout = httpx.Timeout(limit_s, connect=min(_CONNECT_S, limit_s))
    answered: Outcome | None = None
    with anyio.move_on_after(limit_s):
        try:
            async with httpx.AsyncClient(timeout=timeout, headers=ours) as client:
                response = await _sent(client, client.build_request("POST", url, content=_json(row)))
                answered = _outcome(response.status_code, "")
                answered = _outcome(response.status_code, await _beginning(response))
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            return Failed(f"it could not be reached: {explained(type(error).__name__, error)}")
        except httpx.HTTPError as error:
            return answered or Unknown(f"no answer: {explained(type(error).__name__, error)}")
    return answered or Unknown(f"no answer within {limit_s:g} s")


async def _sent(client: "httpx.AsyncClient", request: "httpx.Request") -> "httpx.Response":
    """Send it once, after as many tries to connect as it takes, of a few."""
    import httpx  # noqa: PLC0415  as above

    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((httpx.ConnectError, httpx.ConnectTimeout)),
        stop=stop_after_attempt(_CONNECT_TRIES),
        wait=wait_exponential(multiplier=_RETRY_S),
        sleep=anyio.sleep,
        reraise=True,
    ):
        with attempt:
            return await client.send(request, stream=True)
    raise AssertionError  # a Retrying returns or raises


async def _beginning(response: "httpx.Response") -> str:
    """Return the first part of a body, as far as it comes soon."""
    text = ""
    with anyio.move_on_after(_BODY_S):
        async for part in response.aiter_text(MAX_CHARS):
            text += part
            if len(text) >= MAX_CHARS:
                break
    return text[: MAX_CHARS - 100]


def _outcome(status: int, body: str) -> Outcome:
    text = explained(f"HTTP {status}", body)
    if 200 <= status < 300:  # noqa: PLR2004
        return Done(text)
    if 400 <= status < 500 and status not in NOT_KNOWN:  # noqa: PLR2004
        return Failed(text)
    return Unknown(text)
