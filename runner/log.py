"""The log of the process: structlog's set-up and how an event of the store looks in it.

Text on a terminal, `<N>` priorities and JSON under systemd's journal, JSON elsewhere.
An event is logged after its commit, so the log never tells what the store does not hold.
A line that cannot be written (a closed pipe, a full disk) is lost, and nothing else is.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from io import TextIOWrapper
from typing import TextIO

import structlog

from runner.events import Event, Name
from runner.redact import Redactor

WARNINGS = frozenset(
    {
        Name.QUEUE_PAUSED,
        Name.FILE_REFUSED,
        Name.TICKET_HELD,
        Name.TICKET_PARKED,
        Name.TICKET_ORPHANED,
        Name.BUDGET_WARNED,
        Name.SESSION_CLOSED,
        Name.AGENT_STALLED,
        Name.EFFECT_UNKNOWN,
        Name.EFFECT_FAILED,
    }
)
"""What a person may want to look at."""

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Of syslog, as sd-daemon(3) reads them at the start of a line."""


def configure(redactor: Redactor, stream: TextIO | None = None) -> None:
    """Set structlog up for this process, on standard error unless `stream` is given."""
    out = stream or sys.stderr
    lines = _unbuffered(out)

    def redacted(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
        return {key: redactor.value(value) for key, value in event.items()}

    def redacted_line(_logger: object, _method: str, line: str | bytes | MutableMapping[str, object]) -> str:
        return redactor.text(str(line))  # a value that is no JSON becomes text only in the renderer

    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=not out.isatty()),
        structlog.processors.format_exc_info,
        redacted,
    ]
    if out.isatty():
        processors.append(
            structlog.dev.ConsoleRenderer(
                pad_event_to=24,
                repr_native_str=True,  # no control character of an agent's reaches the terminal
                exception_formatter=structlog.dev.plain_traceback,  # rich's shows the values of variables
            )
        )
    else:
        processors.append(structlog.processors.JSONRenderer(sort_keys=False))
    processors.append(redacted_line)
    if os.environ.get("JOURNAL_STREAM") and not out.isatty():
        processors.append(_with_priority)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(lines),
        cache_logger_on_first_use=False,
    )


def show(event: Event) -> None:
    """Log an event that was committed."""
    ids = {key: value for key, value in (("ticket", event.ticket), ("run", event.run)) if value}
    _write("warning" if event.name in WARNINGS else "info", str(event.name), {**ids, **event.payload})


def defect(name: str, **values: object) -> None:
    """Log a defect of ours, with the exception that is being handled."""
    _write("exception", name, values)


def warn(name: str, **values: object) -> None:
    """Log something that is in no table and that a person may want to look at."""
    _write("warning", name, values)


def _write(method: str, name: str, values: Mapping[str, object]) -> None:
    with suppress(OSError):
        getattr(structlog.get_logger(), method)(name, **values)


def _unbuffered(stream: TextIO) -> TextIO:
    """Return a stream to the same file, without a buffer: what failed in one fails again at the exit, as code 120."""
    try:
        file = open(stream.fileno(), "wb", buffering=0, closefd=False)  # noqa: SIM115  it is closed by nobody
    except OSError:  # it is no file
        return stream
    return TextIOWrapper(file, encoding=stream.encoding, errors=stream.errors, write_through=True)


def _with_priority(_logger: object, method: str, line: str | bytes | MutableMapping[str, object]) -> str:
    level = "error" if method == "exception" else method
    return f"<{_PRIORITY.get(level, 6)}>{line!s}"
