"""Frozen values for a program: each as one line of JSON, its fields by their names.

ASCII, so that no terminal obeys what came from a ticket, a file or an agent.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from runner.store.log import Entry


def to_json(value: object) -> str:
    """Return a frozen value, or a list of them, as one line."""
    return json.dumps(_plain(value))


def entry_json(entry: Entry) -> str:
    """Return an event, with its number in the log, as one line."""
    return json.dumps({"id": entry.id, **_fields(entry.event)})


def _fields(value: object) -> dict[str, object]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)} if is_dataclass(value) else {}


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
