"""Find and read the configuration's file, and say what is wrong with it.

Knows TOML and how pydantic reports; does not know the keys.
"""

import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from runner.errors import ConfigError

FILE = "ticket-runner.toml"
VARIABLE = "TICKET_RUNNER_CONFIG"

_WORDS = {
    "missing": "is required",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be text in quotes",
    "tuple_type": "must be a list: [...]",
    "dict_type": "must be a table of text",
    "path_type": "must be a path in quotes",
    "is_instance_of": "must be a path in quotes",
    "model_type": "must be a table",
    "byte_size": 'must be a size, such as "2 GiB"',
    "byte_size_unit": 'must be a size, such as "2 GiB"',
}
_BOUNDS = {"gt": "above", "ge": "at least", "le": "at most"}


def find_config(start: Path, environ: Mapping[str, str], chosen: Path | None = None) -> Path:
    """Return the configuration's file: `chosen`, $TICKET_RUNNER_CONFIG, or the first upwards from `start`.

    Raises:
        ConfigError: There is none.
    """
    if chosen is not None:
        return chosen
    if named := environ.get(VARIABLE):
        return Path(named)
    directory = start.resolve()
    for place in (directory, *directory.parents):
        if (path := place / FILE).is_file():
            return path
    raise ConfigError(
        f"no configuration: {FILE} is neither in {directory} nor above it;"
        f" name it with --config or ${VARIABLE}, or make one with `ticket-runner init`"
    )


def read_toml(path: Path) -> dict[str, object]:
    """Return the tables of a TOML file.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path.name}: not UTF-8: byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path.name}: not TOML: {error}") from error


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    """Yield `key: what is wrong` for each problem; never a value, which may be a secret."""
    keys = list(keys_of(model))
    for detail in error.errors(include_url=False, include_input=False):
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in detail["loc"]).removeprefix(".")
        kind, context = detail["type"], detail.get("ctx", {})
        bound = next(
            (f"must be {word} {context[name]:,.7g}" for name, word in _BOUNDS.items() if name in context), None
        )
        if kind == "extra_forbidden":
            yield f"{key}: unknown key{_hint(key, keys)}"
        elif kind == "value_error":
            yield f"{key}: {context['error']}"
        elif kind == "literal_error":
            yield f"{key}: must be {context['expected']}"
        else:
            yield f"{key}: {bound or _WORDS.get(kind, detail['msg'])}"


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every key with its table's name before it: `limits.ticket_usd`, `effects.NAME.command`."""
    for name, field in model.model_fields.items():
        if (table := table_of(field)) is None:
            yield prefix + name
        else:
            yield from keys_of(table, f"{prefix}{name}." + ("NAME." if is_many(field) else ""))


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a key that is a table, or has tables of any name in it; None for any other key."""
    kinds = [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def is_many(field: FieldInfo) -> bool:
    """Return whether a key has tables of any name in it."""
    return get_origin(field.annotation) is dict


def _hint(key: str, keys: list[str]) -> str:
    table, _, leaf = key.rpartition(".")
    tables = [] if table else [other.rpartition(".")[0] for other in keys if "." in other]
    leaves = {other.rpartition(".")[2]: other for other in [*keys, *tables]}
    leaves |= {other.rpartition(".")[2]: other for other in keys if other.rpartition(".")[0] == table}
    near = get_close_matches(leaf, leaves, 1)
    return f", did you mean {leaves[near[0]]}?" if near else ""
