"""Write a configuration in which every key is there, explained, with its default.

Made from the model, so that it cannot say anything else.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import wrap

from pydantic import BaseModel, ByteSize
from pydantic.fields import FieldInfo

from runner.config.file import table_of
from runner.config.schema import Config

_HEAD = """\
# What one ticket-runner daemon may use, spend and run: one queue over one repository.
# A line `#key = value` shows the default, or an example where the text above it says
# what the default is; take the # away to change it. Relative paths start at this file.
"""
_WIDTH = 100


def template(repository: Path | str, *, state_directory: Path | None = None) -> str:
    """Return the text of a configuration for `repository`, all else at its default.

    Under systemd the state directory is said too: a command that is typed has no $STATE_DIRECTORY to find it by.
    """
    given = {"repository": str(repository)}
    if state_directory is not None:
        given["state_directory"] = str(state_directory)
    return "\n".join([_HEAD, *_table(Config, given, "")])


def _table(model: type[BaseModel], given: Mapping[str, str], name: str) -> Iterator[str]:
    if name:
        yield from _comment(model.__doc__ or "")
        yield f"[{name}]\n" if _is_valid_empty(model) else f"#[{name}]\n"
    tables = []
    for key, field in model.model_fields.items():
        if (table := table_of(field)) is not None:
            tables.append((f"{key}.{field.examples[0]}" if field.examples else key, table))
            continue
        yield from _comment(field.description or "")
        yield f"{key} = {_toml(given[key])}\n" if key in given else f"#{key} = {_toml(_shown(field))}\n"
    for key, table in tables:
        yield from _table(table, {}, key)


def _is_valid_empty(model: type[BaseModel]) -> bool:
    return not any(field.is_required() for field in model.model_fields.values())


def _shown(field: FieldInfo) -> object:
    if field.examples:
        example: object = field.examples[0]
        return example
    default: object = field.get_default()
    return default


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in wrap(text, _WIDTH - 2))


def _toml(value: object) -> str:
    match value:
        case ByteSize():
            return f'"{value.human_readable(separator=" ")}"'
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
        case list() | tuple():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)
