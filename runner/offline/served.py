"""What the scripted server remembers of a request.

Knows how to read a request's conversation. Does not know scripts or HTTP.
"""

from dataclasses import dataclass

from pydantic import JsonValue

from runner.offline.conversation import Request, unanswered, user_texts


@dataclass
class Served:
    """One request to /v1/messages and what became of it.

    Args:
        number: From 1, in the order in which requests were read.
        scene: The match of the scene that was played; None: none matched, or an aside.
        turn: The number of the turn, from 0; one past the last when the scene was used up.
        aside: Claude Code asked something of its own, outside of the conversation.
        tools: The names of the tools that the request offers.
        complete: The last byte of a reply was written to a client that was still connected.
        over: Nothing more is going to be sent.
        status: The HTTP status; 0 until it is sent.
        cost_microusd: What the reply costs if it is complete.
        begun_microusd: What a streamed reply announces in its first event (all input, one output token), once
            that is sent. Claude Code 2.1.332 counts it for a stream that broke or was interrupted before its first
            words (after them: a token for each four characters), and nothing if it is terminated or killed then. Of a
            reply that is cut with no `pace_s`, it may never read that event.
    """

    number: int
    at_us: int
    scene: str | None
    turn: int | None
    aside: bool
    model: str
    session_id: str
    tools: tuple[str, ...]
    body: dict[str, JsonValue]
    complete: bool = False
    over: bool = False
    status: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_microusd: int = 0
    begun_microusd: int = 0

    @property
    def last_user_texts(self) -> tuple[str, ...]:
        """What the user said since the model last spoke, without tool results and Claude Code's reminders."""
        return tuple(user_texts(unanswered(Request.model_validate(self.body).messages)))
