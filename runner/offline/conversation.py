"""What a request to the Messages API holds, read as a conversation.

The request is the only memory of what was said: a conversation that a new process resumes, or that
another server began, is found where it stands. Assistant messages are not counted, since Claude Code
adds some of its own after an interruption.

Knows requests and scripts. Does not know HTTP.
"""

import json
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, JsonValue

from runner.offline.script import Reply, Scene


class Block(BaseModel):
    """A content block, of which only what is read here is kept."""

    type: str
    text: str = ""
    id: str = ""
    content: "str | list[Block] | None" = None


class Message(BaseModel):
    """One message; content that is a plain string is one text block."""

    role: str
    content: str | list[Block]

    @property
    def blocks(self) -> list[Block]:
        """The content as blocks."""
        return [Block(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class Tool(BaseModel):
    """A tool that the request offers."""

    name: str = ""


class Metadata(BaseModel):
    """Whom the request is for; Claude Code puts its session id in there."""

    user_id: str = ""


class Request(BaseModel):
    """The body of POST /v1/messages."""

    model: str
    messages: list[Message]
    max_tokens: int = 0
    stream: bool = False
    tools: list[Tool] = []
    metadata: Metadata = Metadata()


def conversation_text(body: Mapping[str, JsonValue]) -> str:
    """Return all that the model was told in the messages: user texts and tool results."""
    return "\n".join(_told(Request.model_validate(body).messages))


def final_text_of(body: Mapping[str, JsonValue]) -> str:
    """Return what the model was told last: the texts and tool results after its own last message."""
    return "\n".join(_told(unanswered(Request.model_validate(body).messages)))


def unanswered(messages: list[Message]) -> list[Message]:
    """Return the user messages after the assistant's last one."""
    last = max((number for number, message in enumerate(messages) if message.role == "assistant"), default=-1)
    return messages[last + 1 :]


def user_texts(messages: list[Message]) -> list[str]:
    """Return the texts of user messages, without tool results and without what Claude Code adds to them."""
    return [
        block.text
        for message in messages
        if message.role == "user"
        for block in message.blocks
        if block.type == "text" and not block.text.lstrip().startswith("<system-reminder>")
    ]


def _told(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        if message.role == "user":
            for block in message.blocks:
                yield from _texts(block)


def _texts(block: Block) -> Iterator[str]:
    if block.type == "text":
        yield block.text
    elif isinstance(block.content, str):
        yield block.content
    else:
        for inner in block.content or []:
            yield from _texts(inner)


def session_id_of(request: Request) -> str:
    """Return the Claude Code session that the request belongs to, or "" for another client."""
    try:
        user = json.loads(request.metadata.user_id)
    except ValueError:
        return request.metadata.user_id.rpartition("_session_")[2]
    return str(user.get("session_id", "")) if isinstance(user, dict) else ""


def turns_held(scene: Scene, messages: list[Message]) -> int:
    """Return the number of the turn of `scene` after the last one that `messages` hold.

    A reply with tool calls is known by the calls' ids, one without by its exact texts.
    """
    position = 0
    for message in messages:
        if message.role == "assistant":
            for turn in range(position, len(scene.turns)):
                if _holds(message, scene, turn):
                    position = turn + 1
                    break
    return position


def _holds(message: Message, scene: Scene, turn: int) -> bool:
    reply = scene.turns[turn]
    if not isinstance(reply, Reply) or reply.broken:
        return False
    if ids := scene.call_ids(turn):
        return any(block.id in ids for block in message.blocks)
    said = [block.text.strip() for block in message.blocks if block.type == "text"]
    return all(text.strip() in said for text in reply.texts)


def is_aside(request: Request) -> bool:
    """Whether Claude Code asks something of its own: the session's title, or whether the account may ask.

    With CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1, Claude Code 2.1.332 asks neither. The title is wanted
    at once with the first prompt, without tools, for `<session>`, the prompt, `</session>`; it is in the total cost.
    """
    texts = user_texts(request.messages)
    title = not request.tools and len(request.messages) == 1 and any(text.startswith("<session>\n") for text in texts)
    return title or request.max_tokens == 1
