"""The scripted Messages API: an HTTP server on loopback, in a thread of its own, that remembers.

Every request to /v1/messages is in `served` from the moment it is read; `complete` says that its last
byte was written to a client that was still there, and only then does its cost count. Everything else
gets a 404, which Claude Code does not mind.

Knows uvicorn, of which it uses no more than the protocol: a connection is cut by returning from the
application in the middle of a response. Does not know who is asking.
"""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import uvicorn
from anyio.from_thread import start_blocking_portal
from pydantic import JsonValue, TypeAdapter

from runner.offline import wire
from runner.offline.conversation import (
    Request,
    conversation_text,
    final_text_of,
    is_aside,
    session_id_of,
    turns_held,
    user_texts,
)
from runner.offline.prices import cost_microusd
from runner.offline.script import Failure, Reply, Scene, Script, Text
from runner.offline.served import Served

__all__ = ["ScriptedServer", "Served", "conversation_text", "final_text_of"]

_EXHAUSTED = Reply((Text("Nothing is left to do."),))
_ASIDE = Reply((Text('{"title": "Scripted session"}'),), input_tokens=100, output_tokens=10)
_BODY: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])

_Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
_Send = Callable[[MutableMapping[str, object]], Awaitable[None]]


class ScriptedServer:
    """A context manager; `script` may be replaced while it serves.

    The waits block their thread: from a coroutine, call them through `anyio.to_thread.run_sync`.

    Args:
        script: What to say.
        port: 0: any free one, see `url`.
        record: A file to which each request is appended as a line of JSON when it is over.
    """

    def __init__(self, script: Script, *, port: int = 0, record: Path | None = None) -> None:
        self.script = script
        self._served: list[Served] = []
        self._record = record
        self._changed = threading.Condition()
        self._fleeting: Counter[tuple[str, str, int]] = Counter()
        self._defects: list[Exception] = []
        self._open: set[anyio.CancelScope] = set()
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                self._answer,
                interface="asgi3",
                proxy_headers=False,
                lifespan="off",
                log_config=None,
                log_level="critical",  # each cut would be logged as an error
                access_log=False,
            )
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="scripted-api"))
            serving: Future[None] = portal.start_task_soon(self._uvicorn.serve, [self._socket])
            stack.callback(serving.result)
            stack.callback(portal.call, self._stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stack.close()
        if self._defects and error is None:
            raise ExceptionGroup("the scripted server itself failed", self._defects)

    def _stop(self) -> None:
        self._uvicorn.should_exit = True
        for scope in self._open:
            scope.cancel()

    @property
    def served(self) -> list[Served]:
        """Every request so far; ask again for what has become of them since."""
        with self._changed:
            return list(self._served)

    @property
    def cost_microusd(self) -> int:
        """What all complete replies cost."""
        with self._changed:
            return sum(served.cost_microusd for served in self._served if served.complete)

    def wait_for(self, n: int, timeout_s: float) -> None:
        """Block until `n` requests were seen.

        Raises:
            TimeoutError: They were not, within `timeout_s`.
        """
        self.wait_until(lambda served: len(served) >= n, timeout_s)

    def wait_until(self, predicate: Callable[[list[Served]], bool], timeout_s: float) -> None:
        """Block until `predicate` holds of what was served; asked when a request comes, is answered, and is over.

        Raises:
            TimeoutError: It did not hold within `timeout_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: predicate(self._served), timeout_s):
                seen = [(served.scene, served.turn, served.status, served.complete) for served in self._served]
                raise TimeoutError(f"not within {timeout_s} s; served (scene, turn, status, complete): {seen}")

    async def _answer(self, scope: MutableMapping[str, object], receive: _Receive, send: _Send) -> None:
        """The ASGI application."""
        try:
            await self._route(scope, receive, send)
        except Exception as defect:
            self._defects.append(defect)
            raise

    async def _route(self, scope: MutableMapping[str, object], receive: _Receive, send: _Send) -> None:
        raw = await _read(receive)
        if scope["method"] != "POST" or scope["path"] != "/v1/messages":
            await _respond(send, 404, wire.error(Failure(404, kind="not_found_error")))
            return
        try:
            body = _BODY.validate_json(raw)
            request = Request.model_validate(body)
        except ValueError as why:
            await _respond(send, 400, wire.error(Failure(400, kind="invalid_request_error", message=str(why))))
            return
        served, what, call_ids = self._begin(body, request)
        try:
            with anyio.CancelScope() as performing:
                self._open.add(performing)
                if self._uvicorn.should_exit:  # it came between our stop and the end of listening
                    performing.cancel()
                async with anyio.create_task_group() as group:
                    group.start_soon(_leave_with_client, receive, performing)
                    await self._perform(served, what, call_ids, request, send)
                    group.cancel_scope.cancel()
        finally:
            self._open.discard(performing)
            self._end(served)

    def _begin(self, body: dict[str, JsonValue], request: Request) -> tuple[Served, Reply | Failure, tuple[str, ...]]:
        """Decide what a request gets and remember that it came."""
        session_id = session_id_of(request)
        aside = is_aside(request)
        scene = None if aside else self.script.scene_for("\n".join(user_texts(request.messages)))
        turn = None if scene is None else self._turn(scene, request, session_id)
        what: Reply | Failure = _ASIDE if aside else _EXHAUSTED
        call_ids: tuple[str, ...] = ()
        if scene is not None and turn is not None and turn < len(scene.turns):
            what, call_ids = scene.turns[turn], scene.call_ids(turn)
        with self._changed:
            served = Served(
                number=len(self._served) + 1,
                at_us=time.time_ns() // 1000,
                scene=None if scene is None else scene.match,
                turn=turn,
                aside=aside,
                model=request.model,
                session_id=session_id,
                tools=tuple(tool.name for tool in request.tools),
                body=body,
            )
            self._served.append(served)
            self._changed.notify_all()
        return served, what, call_ids

    def _turn(self, scene: Scene, request: Request, session_id: str) -> int:
        """Return the number of the turn that is next, and count it where the conversation will not show it."""
        turn = turns_held(scene, request.messages)
        conversation = session_id or "".join(user_texts(request.messages)[:1])
        while turn < len(scene.turns):
            what = scene.turns[turn]
            if isinstance(what, Reply) and not what.broken:
                break
            if what.times is None or self._fleeting[conversation, scene.match, turn] < what.times:
                self._fleeting[conversation, scene.match, turn] += 1
                break
            turn += 1
        return turn

    async def _perform(
        self, served: Served, what: Reply | Failure, call_ids: tuple[str, ...], request: Request, send: _Send
    ) -> None:
        if isinstance(what, Failure):
            served.status = what.status
            await _respond(send, what.status, wire.error(what), what.headers)
            return
        served.input_tokens, served.output_tokens = what.input_tokens, what.output_tokens
        served.cache_read_tokens, served.cache_write_tokens = what.cache_read_tokens, what.cache_write_tokens
        served.cost_microusd = _price(request.model, what, what.output_tokens)
        await anyio.sleep(what.delay_s)
        message_id = f"msg_{served.number}"
        if request.stream:
            pieces = list(wire.frames(what, request.model, message_id, call_ids))
            kind, begun_microusd = "text/event-stream", _price(request.model, what, 1)
        else:
            message = wire.whole(what, request.model, message_id, call_ids)
            pieces = [message[:20], message[20:40], message[40:]]
            kind, begun_microusd = "application/json", 0
        await _start(send, 200, {"content-type": kind})
        await _body(send, pieces.pop(0), more=True)
        with self._changed:
            served.status, served.begun_microusd = 200, begun_microusd
            self._changed.notify_all()
        await self._go_on(served, send, what, pieces)

    async def _go_on(self, served: Served, send: _Send, reply: Reply, pieces: list[bytes]) -> None:
        """Send the pieces after the first one; a broken reply stops before its first words."""
        for piece in pieces[: 1 if reply.broken else -1]:
            await anyio.sleep(reply.pace_s)
            await _body(send, piece, more=True)
        await anyio.sleep(reply.pace_s)
        if reply.hang:
            await anyio.sleep_forever()
        elif reply.garbage:
            await _body(send, wire.GARBAGE, more=False)
        elif not reply.cut:
            with self._changed:  # a client that has read the last byte must find it complete
                await _body(send, pieces[-1], more=False)
                served.complete = True

    def _end(self, served: Served) -> None:
        with self._changed:
            served.over = True
            if self._record is not None:
                with self._record.open("a") as file:
                    file.write(json.dumps(asdict(served)) + "\n")
            self._changed.notify_all()


def _price(model: str, reply: Reply, output_tokens: int) -> int:
    return cost_microusd(
        model,
        input_tokens=reply.input_tokens,
        output_tokens=output_tokens,
        cache_read_tokens=reply.cache_read_tokens,
        cache_write_tokens=reply.cache_write_tokens,
    )


async def _leave_with_client(receive: _Receive, performing: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    performing.cancel()


async def _read(receive: _Receive) -> bytes:
    raw = b""
    while True:
        message = await receive()
        part = message.get("body", b"")
        raw += part if isinstance(part, bytes) else b""
        if not message.get("more_body", False):
            return raw


async def _start(send: _Send, status: int, headers: dict[str, str]) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})


async def _body(send: _Send, piece: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})


async def _respond(send: _Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    await _start(send, status, {"content-type": "application/json", **(headers or {})})
    await _body(send, body, more=False)
