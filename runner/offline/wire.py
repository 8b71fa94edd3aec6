"""How answers look in bytes: server-sent events, whole messages, errors.

Knows scripts. Does not know requests or connections.
"""

import json
from collections.abc import Iterator

from pydantic import JsonValue

from runner.offline.script import Failure, Reply, Text, ToolUse

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
"""https://docs.claude.com/en/api/errors"""

_PIECE = 200  # characters of text or of a tool's input in one event

GARBAGE = b'event: content_block_delta\ndata: {"type": "content_blo\n\n'


def frames(reply: Reply, model: str, message_id: str, call_ids: tuple[str, ...]) -> Iterator[bytes]:
    """Yield the events of a streamed reply; the first one opens it, the last one ends it."""
    yield _event("message_start", message=_message(reply, model, message_id, content=[], output_tokens=1))
    ids = iter(call_ids)
    for index, block in enumerate(reply.content):
        opened, pieces = _opened(block, ids)
        yield _event("content_block_start", index=index, content_block=opened)
        for delta in pieces:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    stop: JsonValue = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield _event("message_delta", delta=stop, usage=_usage(reply, reply.output_tokens)) + _event("message_stop")


def whole(reply: Reply, model: str, message_id: str, call_ids: tuple[str, ...]) -> bytes:
    """Return a reply that is not streamed."""
    ids = iter(call_ids)
    content: list[JsonValue] = []
    for block in reply.content:
        if isinstance(block, Text):
            content.append({"type": "text", "text": block.text})
        else:
            content.append({"type": "tool_use", "id": next(ids), "name": block.name, "input": block.input})
    message = _message(reply, model, message_id, content=content, output_tokens=reply.output_tokens)
    return json.dumps(message | {"stop_reason": _stop_reason(reply)}).encode()


def error(failure: Failure) -> bytes:
    """Return the body of a failure in the API's published shape."""
    kind = failure.kind or _KINDS.get(failure.status, _KINDS[400 if failure.status < 500 else 500])  # noqa: PLR2004
    what = {"type": kind, "message": failure.message or f"scripted {failure.status}"}
    return json.dumps({"type": "error", "error": what, "request_id": "req_scripted"}).encode()


def _event(kind: str, **fields: JsonValue) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def _opened(block: Text | ToolUse, ids: Iterator[str]) -> tuple[JsonValue, list[JsonValue]]:
    """Return a block as it is before its first piece, and its pieces."""
    if isinstance(block, Text):
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in _pieces(block.text)]
    deltas = _pieces(json.dumps(block.input))
    empty: JsonValue = {"type": "tool_use", "id": next(ids), "name": block.name, "input": {}}
    return empty, [{"type": "input_json_delta", "partial_json": piece} for piece in deltas]


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def _message(
    reply: Reply, model: str, message_id: str, *, content: list[JsonValue], output_tokens: int
) -> dict[str, JsonValue]:
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply, output_tokens),
    }


def _usage(reply: Reply, output_tokens: int) -> JsonValue:
    return {
        "input_tokens": reply.input_tokens,
        "output_tokens": output_tokens,
        "cache_read_input_tokens": reply.cache_read_tokens,
        "cache_creation_input_tokens": reply.cache_write_tokens,
    }


def _stop_reason(reply: Reply) -> str:
    return reply.stop_reason or ("tool_use" if reply.calls else "end_turn")
