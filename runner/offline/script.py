"""What the scripted model will say: frozen values that a JSON file can hold.

A script is scenes; a scene is the turns of the conversations whose user text contains its `match`.
A turn is a reply or a failure. A whole reply is said once and is then found in the conversation
itself; a failure and a broken reply leave no trace there, so they say how often they happen.

Knows no request and no bytes.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Discriminator, JsonValue, Tag, TypeAdapter, ValidationError

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Text:
    """What the model says in words."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call: Bash, Read, Write, Edit, mcp__<server>__<tool>."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: str
    input: dict[str, JsonValue]


def _block(value: object) -> str:
    return "<text>" if isinstance(value, Text) or (isinstance(value, dict) and "text" in value) else "<call>"


Block = Annotated[Annotated[Text, Tag("<text>")] | Annotated[ToolUse, Tag("<call>")], Discriminator(_block)]
"""Words or a call: what has `text` is words, and a mistake in either is told of that one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the model; with a tool call it stops for the tool, else it ends the turn.

    Args:
        delay_s: Seconds before the first byte.
        pace_s: Seconds between the pieces of the stream.
        hang: Open the stream and its first block, then say nothing until the client leaves.
        cut: The same, then drop the connection.
        garbage: The same, then send a frame that is not JSON and end.
        times: How often a hung, cut or garbled reply is served to a conversation before the next
            turn (None: always). A whole reply ignores it.
        stop_reason: Why the model stopped, if for another reason than the content's: "refusal", "max_tokens", ...
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    content: tuple[Block, ...]
    input_tokens: int = 1000
    output_tokens: int = 500
    delay_s: float = 0.0
    hang: bool = False
    cut: bool = False
    garbage: bool = False
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    pace_s: float = 0.0
    times: int | None = 1
    stop_reason: str = ""

    def __post_init__(self) -> None:
        if not self.content:
            raise ValueError("a reply needs content: without it no conversation shows that it was said")
        if self.hang + self.cut + self.garbage > 1:
            raise ValueError("a reply is hung, cut or garbled, not two of them")

    @property
    def broken(self) -> bool:
        """Whether this reply never reaches its end."""
        return self.hang or self.cut or self.garbage

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts among the content, in order."""
        return tuple(block.text for block in self.content if isinstance(block, Text))

    @property
    def calls(self) -> tuple[ToolUse, ...]:
        """The tool calls among the content, in order."""
        return tuple(block for block in self.content if isinstance(block, ToolUse))


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error instead of a reply, `times` times to a conversation (None: always)."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    status: int
    kind: str = ""
    """The error's type; by default the one that the API documents for the status."""
    times: int | None = 1
    headers: dict[str, str] = field(default_factory=dict)
    message: str = ""


def _turn(value: object) -> str:
    return "<failure>" if isinstance(value, Failure) or (isinstance(value, dict) and "status" in value) else "<reply>"


Turn = Annotated[Annotated[Reply, Tag("<reply>")] | Annotated[Failure, Tag("<failure>")], Discriminator(_turn)]
"""A reply or a failure: what has `status` is a failure."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The turns of every conversation whose user text contains `match`; "" is in all of them."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    match: str
    turns: tuple[Turn, ...]

    def call_ids(self, turn: int) -> tuple[str, ...]:
        """Return the tool_use ids of reply number `turn`, from 0.

        The same in every process, and other ones as soon as the scene's match, the turn's number or
        its content is another: a script that is switched during a conversation goes on where its
        turns are those that were said.
        """
        reply = self.turns[turn]
        if isinstance(reply, Failure):
            return ()
        said = [[call.name, call.input] for call in reply.calls]
        digest = hashlib.sha256(json.dumps([self.match, turn, reply.texts, said], sort_keys=True).encode()).hexdigest()
        return tuple(f"toolu_{turn}_{i}_{digest[:16]}" for i in range(len(said)))


@dataclass(frozen=True, slots=True)
class Script:
    """Scenes; the first one that matches a conversation is played."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    scenes: tuple[Scene, ...]

    def scene_for(self, user_text: str) -> Scene | None:
        """Return the first scene whose match is in `user_text`."""
        return next((scene for scene in self.scenes if scene.match in user_text), None)

    def to_json(self) -> str:
        """Return the script as JSON that `from_json` reads back to an equal value."""
        return _SCRIPT.dump_json(self, indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Script":
        """Return the script that `text` holds.

        Raises:
            ValueError: `text` is not JSON, or not a script: all that is wrong, one line each, with its key.
        """
        try:
            return _SCRIPT.validate_json(text)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)
            problems = [_problem(each["loc"], each["type"], each["msg"], each.get("ctx", {})) for each in details]
            raise ValueError("\n".join(problems)) from None


_SCRIPT = TypeAdapter(Script)
_KEYS = sorted({each.name for of in (Script, Scene, Reply, Failure, Text, ToolUse) for each in fields(of)})
_WORDS = {
    "missing": "is required",
    "string": "must be text in quotes",
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "tuple": "must be a list: [...]",
    "dict": "must be an object: {...}",
    "dataclass": "must be an object: {...}",
}
"""By what pydantic's word for a mistake begins with."""


def _problem(loc: Iterable[int | str], kind: str, message: str, context: Mapping[str, object]) -> str:
    """Return what pydantic found and where, as `scenes[0].turns[1].content: is required`."""
    parts = [part for part in loc if not str(part).startswith("<")]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    if kind == "unexpected_keyword_argument":
        close = get_close_matches(str(parts[-1]), _KEYS, 1)
        said = f"unknown key, did you mean {close[0]}?" if close else "unknown key"
    elif kind == "value_error":
        said = str(context["error"])
    else:
        said = _WORDS.get(kind.partition("_")[0], message)
    return f"{key}: {said}" if key else said
