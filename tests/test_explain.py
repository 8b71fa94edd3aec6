"""`explain` and the table over real rows: each line of who waits, for what, and what would make it run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import transcript
from runner.budget import Cost, CostKind
from runner.commands import Command, Verb, perform
from runner.events import Name
from runner.outcome import Outcome
from runner.store import claims, questions, queue, runs, tickets
from runner.why import next_step
from tests.shell import Shell
from tests.shown import Overview, Why
from tests.stores import SECOND, Place
from tickets.folder import Folder
from tickets.source import Refused
from tickets.ticket import Cause, Held, PutBack, Reason, Spec, State, Ticket

HOUR = 3_600 * SECOND


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a command line over an empty queue."""
    return Shell(tmp_path)


@pytest.fixture
def place(shell: Shell) -> Iterator[Place]:
    """Return the queue's database, open as its daemon has it."""
    place = shell.database()
    place.epoch = place.start(shell.home.name)
    yield place
    place.store.close()


def claim(shell: Shell, place: Place, ticket: str) -> int:
    """Let the queue's daemon claim the next ticket, which is this one; return the token."""
    row = place.claim(home=shell.home.name)
    assert row is not None
    assert row.ticket.id == ticket
    return row.ticket.token


def told(shell: Shell, ticket: str) -> Why:
    """Return what `explain` says, which is what the table says."""
    explained = Why.model_validate(json.loads(shell("explain", ticket, "--json").out)["why"])
    view = Overview.model_validate_json(shell("status", "--json", "--done").out)
    assert view.why[ticket] == explained
    return explained


def test_the_place_in_line_is_the_order_of_claims(shell: Shell, place: Place) -> None:
    """Those that are due are counted as they will be claimed: by priority, then by age; the rest waits for its time."""
    place.take("a", "b")
    place.take("urgent", priority=5)
    later = Spec("later", "text", priority=9, not_before_us=10_000_000_000 * SECOND)
    place.store.transact(tickets.take_in, "folder", later)
    said = {ticket: told(shell, ticket).sentence for ticket in ("urgent", "a", "b", "later")}
    assert said.pop("later") == "waits until 2286-11-20T17:46:40Z: as it asks (not_before)"
    assert said == {
        "urgent": "no daemon runs; it is next",
        "a": "no daemon runs; 1 before it",
        "b": "no daemon runs; 2 before it",
    }
    claim(shell, place, "urgent")
    assert told(shell, "a").sentence == "no daemon runs; it is next"


def test_slots_are_taken_while_a_daemon_runs(shell: Shell, place: Place) -> None:
    """Tickets that a daemon of this home runs take slots; another home's do not, nor those whose daemon is dead."""
    shell.configure("concurrency = 1")
    place.take("mine", "theirs", "next")
    claim(shell, place, "mine")
    elsewhere = place.start("other:/home")
    assert place.claim(elsewhere, home="other:/home")
    assert told(shell, "mine").sentence == "interrupted: it goes on at the next start"
    assert told(shell, "theirs").sentence.startswith("claimed by the daemon of other:/home on host, silent since ")
    assert told(shell, "next").sentence == "no daemon runs; it is next"
    assert "   slots  0 of 1 taken; number 1 of those that are due" in shell("explain", "next").out.splitlines()
    with shell.home.lock():
        assert told(shell, "next").sentence == "no slot is free (1 of 1 taken); it is next"
    place.store.transact(claims.set_tree, "theirs", 1, home="other:/home", branch="ticket/theirs", base_sha="0" * 40)
    place.store.transact(tickets.apply, "theirs", PutBack(1, Cause.DRAIN))
    assert told(shell, "theirs").sentence == "its worktree is in other:/home: only the daemon of that home works on it"


def test_a_question_says_since_when_and_until_when(shell: Shell, place: Place) -> None:
    """With a default for every question the last deadline is when the ticket goes on; without one a person has to."""
    place.take("a")
    token = claim(shell, place, "a")
    run = place.run("a")
    until_us = place.store.transact(
        questions.ask, "a", token, "Which colour?", run=run, default="blue", deadline_s=3_600
    )
    place.store.transact(tickets.apply, "a", Held(token, Reason.QUESTION, "Which colour?"))
    assert until_us == place.clock.now_us + HOUR
    waits = told(shell, "a")
    assert (waits.then, waits.until_us) == ("`ticket-runner answer a TEXT`", until_us)
    assert waits.sentence.endswith("d ago: Which colour?")
    place.store.transact(perform, Command(Verb.ANSWER, "a", text="red"))
    assert told(shell, "a").sentence == "no daemon runs; it is next"


def test_a_question_without_a_default_waits_for_a_person(shell: Shell, place: Place) -> None:
    """One question with a default does not let a ticket go on while another waits for a person."""
    place.take("a")
    token = claim(shell, place, "a")
    run = place.run("a")
    place.store.transact(questions.ask, "a", token, "Which?", run=run, default="blue", deadline_s=60)
    place.store.transact(questions.ask, "a", token, "Why?", run=run)
    place.store.transact(tickets.apply, "a", Held(token, Reason.QUESTION, "Which?\n\nWhy?"))
    assert told(shell, "a").until_us is None


def test_a_failed_try_says_which_of_how_many(shell: Shell, place: Place) -> None:
    """After a failure of its own a ticket waits and says how often it has failed of how often it may."""
    shell.configure("[limits]\nattempts = 5")
    place.take("a")
    token = claim(shell, place, "a")
    far = 10_000_000_000 * SECOND
    place.store.transact(tickets.apply, "a", PutBack(token, Cause.ATTEMPT, far, "turns"))
    assert told(shell, "a").sentence == "waits until 2286-11-20T17:46:40Z: try 1 of 5 failed: turns"


def test_a_paused_queue_is_why_all_its_tickets_wait(shell: Shell, place: Place) -> None:
    """A pause is told at each ready ticket, with who ends it."""
    place.take("a")
    place.store.transact(queue.pause, reason="ticket", note="the key was refused\nHTTP 401", by="fix")
    assert told(shell, "a").sentence == "the queue is paused: the key was refused"
    assert told(shell, "a").then == "`ticket-runner resume`, and `ticket-runner start`"


def test_what_a_ticket_does_is_the_last_that_was_logged(shell: Shell, place: Place) -> None:
    """While a process holds the home a running ticket says in which tool it is."""
    place.take("a")
    claim(shell, place, "a")
    place.store.transact(lambda tx: tx.log("a", Name.TOOL_STARTED, tool="Bash", summary="make test", tool_use_id="t"))
    with shell.home.lock():
        assert told(shell, "a").sentence.startswith("in Bash for ")
        assert told(shell, "a").sentence.endswith(": make test")
        place.store.transact(perform, Command(Verb.CANCEL, "a"))
        assert told(shell, "a").sentence == "asked to stop (cancel)"


def test_explain_has_the_facts_behind_its_sentence(shell: Shell, place: Place) -> None:
    """The long form has what was spent and what is left, tries, session, slots and the last events."""
    place.take("a", "b")
    claim(shell, place, "a")
    place.store.transact(runs.end_run, place.run("a"), outcome=Outcome.BUDGET, cost=Cost(15_000, CostKind.MEASURED))
    place.store.transact(tickets.apply, "a", Held(1, Reason.BUDGET, "spent $0.0150 of $5.0000; it is kept"))
    lines = shell("explain", "a").out.splitlines()
    assert lines[0] == "a  held"
    for line in (
        "     why  budget: spent $0.0150 of $5.0000; it is kept",
        f"    next  {next_step(Ticket('a', State.HELD, Reason.BUDGET))}",
        "   spent  $0.0150 of $5.0000, $4.9850 left",
        "   tries  claim 1 of round 1; 0 of 3 failures that hold it, 0 waits in a row",
        "   slots  0 of 2 taken",
        " session  a-session-1, generation 1",
        "    caps  limits.ticket_usd: $0.0150 of $5.0000 spent",
        "          limits.day_usd: $0.0000 of $50.0000 spent",
        "  daemon  none runs",
    ):
        assert line in lines
    assert "ticket.held" in lines[-1]
    assert "   slots  0 of 2 taken; number 1 of those that are due" in shell("explain", "b").out.splitlines()


def test_a_run_that_goes_on_shows_what_it_has_come_to(shell: Shell, place: Place) -> None:
    """While a daemon runs it, its turns and their price are read from what Claude Code has written of it."""
    place.take("a")
    claim(shell, place, "a")
    run = place.run("a", None)
    file = transcript.path(shell.home.claude, shell.home.worktrees / "a", "a-session-1")
    assert not any(line.startswith("     now") for line in shell("explain", "a").out.splitlines()[:3])
    usage = {"input_tokens": 1000, "output_tokens": 500}
    message = {"id": "m", "model": "claude-sonnet-4-5", "role": "assistant", "usage": usage}
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"type": "assistant", "message": message, "timestamp": "2026-01-01T00:00:00Z"}) + "\n")
    line = "     now  run a/1 goes on: 1 turns, ~$0.0105 so far"
    assert line not in shell("explain", "a").out.splitlines()
    with shell.home.lock():
        assert line in shell("explain", "a").out.splitlines()
        assert line in shell("show", "a").out.splitlines()
        place.store.transact(runs.end_run, run, outcome=Outcome.ORPHANED, cost=Cost(10_500, CostKind.ESTIMATED))
        assert json.loads(shell("show", "a", "--json").out)["live"] is None
    assert "~$0.0105 for these tickets" in shell("status").out


def test_no_sentence_is_wrapped_in_a_pipe(shell: Shell, place: Place) -> None:
    """What a program reads has each sentence in one line, however long it is."""
    note = " ".join(f"word{number}" for number in range(200))
    place.take("a")
    claim(shell, place, "a")
    place.store.transact(tickets.apply, "a", Held(1, Reason.WORKTREE, note))
    for command in ("explain", "show"):
        assert any(line.endswith(note) for line in shell(command, "a").out.splitlines())


def test_files_that_wait_in_the_folder_are_told(shell: Shell) -> None:
    """Before any daemon has run, and after, `status` names the files that nothing has taken in, or will take."""
    shell.queue.mkdir(parents=True)
    for name in ("new", "other"):
        (shell.queue / f"{name}.md").write_text("Do this.\n")
    assert "2 files wait in the folder: new, other" in shell("status").out
    assert json.loads(shell("status", "--json").out)["waiting"] == ["new", "other"]
    shell.know("new")
    (shell.queue / "bad.md").write_text("---\nbuget_usd: 1\n---\nDo this.\n")
    told = shell("status").out
    assert "1 file waits in the folder: other\n" in told
    assert "\nnot taken: bad.md:2: unknown key `buget_usd`" in told
    ended = shell("explain", "other")
    assert (ended.code, ended.err) == (0, "")
    assert "why  waits in the folder: nothing has taken it in\n    next  `ticket-runner start`" in ended.out


def test_a_file_that_cannot_be_taken_says_why(shell: Shell) -> None:
    """`explain` of a file that is no ticket tells what is wrong with it, whether or not a daemon has seen it."""
    shell.queue.mkdir(parents=True)
    (shell.queue / "bad.md").write_text("---\nbuget_usd: 1\n---\nDo this.\n")
    for _ in range(2):
        assert "unknown key `buget_usd`" in shell("explain", "bad").out
        shell.know()
    place = shell.database()
    (shell.queue / "twin.md").write_text("Do this.\n")
    place.store.transact(queue.refuse, [Refused("twin.md", "differs from ticket t-win", "f")])
    place.store.close()
    assert "not taken: differs from ticket t-win" in shell("explain", "twin").out
    assert "files wait" not in shell("status").out
    with shell.home.lock():
        (shell.queue / "mine.md").write_text("---\nbuget_usd: 1\n---\nDo this.\n")
        assert "2 files wait in the folder: bad, mine" in shell("status").out, "the daemon says what is wrong"
    (shell.queue / "link.md").symlink_to("bad.md")
    assert "a symbolic link is not followed" in shell("explain", "link").out


@pytest.mark.parametrize("name", ["bad", "bad.md", "bad:3", "bad\x01"])
def test_a_file_that_was_refused_is_told_once(shell: Shell, place: Place, name: str) -> None:
    """With the daemon down a file that it refused is told as such, whatever its name, and waits for nothing."""
    (shell.queue / f"{name}.md").write_text("---\nbuget_usd: 1\n---\nDo this.\n")
    (shell.queue / "good.md").write_text("Do this.\n")
    time = iter((0.0, 2.0))
    source = Folder(shell.queue, lambda: next(time))
    source.take(lambda _: None)
    place.store.transact(queue.refuse, source.take(lambda _: None).refused)
    assert json.loads(shell("status", "--json").out)["waiting"] == ["good"]
    assert shell("status").out.count("not taken: bad") == 1
    assert shell("explain", name).out.count("not taken: ") == 1


def test_what_is_nowhere_cannot_be_explained(shell: Shell) -> None:
    """Neither ticket nor file: said as everywhere."""
    assert shell("explain", "nothing").code == 1
    shell.know("something")
    ended = shell("explain", "somthing")
    assert (ended.code, ended.out) == (1, "")
    assert "did you mean something?" in ended.err
