"""Logs that were written by this version and by earlier ones still fold into the same tickets."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from runner.events import FACTS, VERSION, Event, fold_log, to_fact
from tests.record_logs import LIVES, LOGS, record
from tickets.ticket import Cause, Reason, Stop, Ticket

VERSIONS = sorted(LOGS.iterdir())
LINES = TypeAdapter(Event)
FILES = [pytest.param(path, id=f"{path.parent.name}-{path.stem}") for path in sorted(LOGS.glob("*/*.jsonl"))]


def read(path: Path) -> list[Event]:
    """Return the events of a file."""
    return [LINES.validate_json(line) for line in path.read_text().splitlines()]


def folded(path: Path) -> Ticket:
    """Return what the version that wrote the file made of it."""
    tickets = json.loads((path.parent / "tickets.json").read_text())
    return TypeAdapter(Ticket).validate_python(tickets[path.stem])


@pytest.mark.parametrize("path", FILES)
def test_a_log_folds_into_the_ticket_that_it_was(path: Path) -> None:
    """What a version wrote folds into the ticket that it had then, event by event without a gap."""
    events = read(path)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert fold_log(path.stem, events) == folded(path)


@pytest.mark.parametrize("path", FILES)
def test_keys_of_later_versions_change_nothing(path: Path) -> None:
    """With keys in its payloads that this version does not know a log folds into the same ticket."""
    events = [replace(event, payload={**event.payload, "later": ["x"]}, version=99) for event in read(path)]
    assert fold_log(path.stem, events) == folded(path)


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_every_fact_is_recorded(version: Path) -> None:
    """The logs of a version hold every event that a ticket is folded from, and each cause, reason and stop."""
    events = [event for path in version.glob("*.jsonl") for event in read(path)]
    assert {event.name for event in events} >= set(FACTS)
    facts = [asdict(fact) for event in events if (fact := to_fact(event)) is not None]
    for key, values in (("cause", Cause), ("reason", Reason), ("stop", Stop)):
        assert {fact.get(key) for fact in facts} >= {*values}


def test_this_version_writes_what_is_recorded(tmp_path: Path) -> None:
    """The store of this version writes the very logs that are kept of it: other payloads are another version."""
    record(tmp_path)
    kept = LOGS / f"v{VERSION}"
    assert {path.name for path in kept.iterdir()} == {path.name for path in tmp_path.iterdir()}
    assert len(LIVES) == len([*kept.glob("*.jsonl")])
    for path in tmp_path.glob("*.jsonl"):
        assert path.read_text() == (kept / path.name).read_text()
