"""Values as the text that a column holds."""

import json
from collections.abc import Mapping, Sequence

from runner.events import Value


def to_json(value: Mapping[str, Value] | Sequence[str] | None) -> str | None:
    """Return `value` as compact JSON, None as None."""
    return None if value is None else json.dumps(value, separators=(",", ":"), allow_nan=False)


def to_words(text: str | None) -> tuple[str, ...] | None:
    """Return the words of a list that `to_json` wrote."""
    return None if text is None else tuple(str(word) for word in json.loads(text))


def to_payload(text: str) -> dict[str, Value]:
    """Return the payload that `to_json` wrote."""
    payload = json.loads(text)
    assert isinstance(payload, dict)  # noqa: S101  # the column's own invariant
    return payload
