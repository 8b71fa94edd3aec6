"""What the agent is told: the ticket as it was written, facts as they are, and nothing that breaks a frame."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runner import briefing
from runner.lines import FailedLine
from runner.prompt import RULES_LIMIT, Handover, by_default, conflict, first, fix, fresh, resumed, rules
from runner.session import Kind, Plan
from runner.transcript import Words
from tickets.ticket import Expects, Spec

SPEC = Spec("fix-1", "Make `total` add up.\n", title="Totals")
FAILED = FailedLine("make check", "exit code 1", "no")
EVERYTHING = Handover(
    cut_off=["Bash: make test"],
    commits=["1a2b3c4 Add a test"],
    uncommitted=["M total.py"],
    failed_check="make check",
    conflicts=["a.txt"],
    effects=["comment: done, https://forge.example/1"],
    answers=[("Red or blue?", "Red."), ("Round up or down?", "Down.")],
    new_answers=[("Round up or down?", "Down.")],
    left_microusd=1_234_567,
    moved_to="/new/place",
)
FACTS = (
    "Your worktree has moved: it is `/new/place` now",
    "outcome is unknown. Check before you run them again:\n- Bash: make test",
    "these files are not resolved yet:\n- a.txt\nResolve them",
    "The check `make check` failed",
    "Commits on the branch so far:\n- 1a2b3c4 Add a test",
    "Changed and not committed:\n- M total.py",
    "returns its first outcome:\n- comment: done, https://forge.example/1",
    "About $1.23 may still be spent",
)
LINES = st.lists(st.text(max_size=5), max_size=30)
PAIRS = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3)
HANDOVERS = st.builds(
    Handover,
    cut_off=LINES,
    commits=LINES,
    uncommitted=LINES,
    failed_check=st.none() | st.text(max_size=5),
    effects=LINES,
    answers=PAIRS,
    new_answers=PAIRS,
    conflicts=LINES,
    account=st.none() | st.text(max_size=5),
    said=st.text(max_size=5),
    plan=LINES,
    left_microusd=st.none() | st.integers(0, 10**9),
    moved_to=st.none() | st.text(max_size=5),
)


def rules_of(spec: Spec = SPEC, *, verify: tuple[str, ...] = (), instructions: str | None = None) -> str:
    """Return the rules for a ticket on its branch."""
    return rules(spec, branch=f"ticket/{spec.id}", verify=verify, instructions=instructions)


@given(st.text(), st.text())
def test_ticket_text_is_passed_on_verbatim(title: str, text: str) -> None:
    """A first prompt is the title, if there is one, and the text as it was written; nothing is added."""
    assert first(Spec("t", text, title=title)) == (f"{title}\n\n{text}" if title else text)


@given(st.text(min_size=1), HANDOVERS)
def test_fresh_session_begins_with_the_ticket(text: str, handover: Handover) -> None:
    """A session that takes over reads the whole ticket, then what the earlier one left."""
    prompt = fresh(Spec("t", text), handover)
    assert prompt.startswith(text + "\n\n---\n\nNote from the ticket runner: an earlier session")


def test_resumed_session_is_not_given_the_ticket_again() -> None:
    """A session that goes on is told that it was interrupted and every fact, in their order."""
    prompt = resumed(replace(EVERYTHING, new_answers=()))
    assert prompt.startswith("Your work on this ticket was interrupted")
    assert SPEC.text not in prompt
    assert [fact for fact in FACTS if fact not in prompt] == []
    assert sorted(FACTS, key=prompt.index) == list(FACTS)


def test_answer_opens_the_prompt() -> None:
    """An answered session reads the answer first and is not told that it was interrupted."""
    prompt = resumed(EVERYTHING)
    assert prompt.startswith("Your question has an answer:\n\nDown.\n\nGo on")
    assert "interrupted" not in prompt
    assert [fact for fact in FACTS if fact not in prompt] == []


def test_fresh_session_is_told_the_same_facts() -> None:
    """A session that takes over reads every question with its answer, told to an earlier one or not, and every fact."""
    prompt = fresh(SPEC, EVERYTHING)
    assert "It asked:\n\nRed or blue?\n\nThe answer:\n\nRed.\n\nIt asked:" in prompt
    assert "It asked:\n\nRound up or down?\n\nThe answer:\n\nDown." in prompt
    assert [fact for fact in FACTS if fact not in prompt] == []


def test_fresh_session_reads_what_the_earlier_one_said() -> None:
    """A session that takes over reads account, plan and last words of the earlier one, marked as such and bounded."""
    facts = Handover(
        account="I added one.", plan=["completed: Add one", "in_progress: Add two"], said="Now two. " * 999
    )
    prompt = fresh(SPEC, facts)
    assert "Its account when it last finished:\n\n```\nI added one.\n```\n\n" in prompt
    assert "Its plan, as it last was:\n- completed: Add one\n- in_progress: Add two\n\n" in prompt
    assert "Its last words:\n\n```\nNow two. Now two." in prompt
    assert "That is what it said of itself; what follows is what can be seen.\n\nGit shows" in prompt
    assert len(prompt) < 5000
    assert "Now two." not in resumed(facts)


def test_what_was_said_is_told_once() -> None:
    """Last words that are the account are not told again, and where nothing was said nothing is told."""
    assert fresh(SPEC, Handover(account="Done. ", said="Done.")).count("Done.") == 1
    assert "of itself" not in fresh(SPEC, Handover())


def test_nothing_asked_is_not_told() -> None:
    """A new session of a ticket that asked nothing hears of no question."""
    assert "It asked" not in fresh(SPEC, Handover())


def test_answers_are_told_apart() -> None:
    """One answer to two questions is told once, and two answers each with its question."""
    once = resumed(Handover(new_answers=[("Up?", "Do."), ("Red?", "Do.")]))
    assert once.startswith("Your question has an answer:\n\nDo.\n\nGo on")
    each = resumed(Handover(new_answers=[("Up?", "Yes."), ("Red?", "No.")]))
    told = "Up?\n\nThe answer:\n\nYes.\n\nRed?\n\nThe answer:\n\nNo.\n\nGo on"
    assert each.startswith("Your questions have answers:\n\n" + told)


def test_nothing_known_is_said_as_such() -> None:
    """Without facts the agent reads only that git shows no change."""
    prompt = resumed(Handover())
    assert prompt.endswith("do not repeat what is done.\n\nGit shows no change in the worktree yet.")


@pytest.mark.parametrize("handover", [Handover(commits=["1 a"]), Handover(uncommitted=["M a"])])
def test_change_is_not_denied(handover: Handover) -> None:
    """Where git shows a change, of either kind, nobody says that there is none."""
    assert "no change" not in resumed(handover)


@given(st.integers(0, 60))
def test_long_lists_are_counted(count: int) -> None:
    """Of a long list the first twenty lines are told and the rest is counted."""
    prompt = resumed(Handover(uncommitted=[f"M file-{n}" for n in range(count)]))
    assert prompt.count("- M file-") == min(count, 20)
    assert (f"- and {count - 20} more" in prompt) == (count > 20)


@given(st.text(st.sampled_from("`~a\n"), max_size=30))
def test_output_of_a_check_cannot_leave_its_fence(output: str) -> None:
    """Whatever a check prints, its output stands between two fences that it does not contain."""
    lines = fix("make check", "exit code 1", output).split("\n")
    marks = [number for number, line in enumerate(lines) if line.startswith("```") and set(line) == {"`"}]
    fence = max((lines[number] for number in marks), key=len)
    opening, closing = (number for number in marks if lines[number] == fence)
    assert "\n".join(lines[opening + 1 : closing]) == (output.strip() or "(it printed nothing)")
    assert lines[closing + 2].startswith("Mend the cause")


def test_failed_check_says_what_failed_and_how() -> None:
    """A failed check is sent back with its command, how it ended and the end of its output."""
    prompt = fix("make check", "exit code 2", "a.py:1: no\n")
    assert prompt.startswith("A check of this ticket failed: `make check` (exit code 2).")
    assert "\n```\na.py:1: no\n```\n" in prompt


def test_a_conflict_names_the_base_and_the_files() -> None:
    """A merge that git could not make is handed over with the base, each file and what to do."""
    prompt = conflict("`main`", ["a.txt", "b.txt"])
    assert prompt.startswith("What this ticket started from, `main`, has moved on")
    assert "\n- a.txt\n- b.txt\n\nResolve them" in prompt
    assert "`git add` each" in prompt


def test_an_answer_by_default_says_that_nobody_answered() -> None:
    """What a deadline answered is told apart from what a person said."""
    assert by_default("Red.") == "Nobody answered in time, so the default that you gave is taken: Red."


def test_rules_name_the_place_and_the_checks() -> None:
    """The rules name ticket and branch and each check, and leave out what does not apply."""
    text = rules_of(verify=("make check", "make test"))
    assert "ticket `fix-1`" in text
    assert "branch `ticket/fix-1`" in text
    assert "must pass:\n- `make check`\n- `make test`\n\n" in text
    assert "unchanged" not in text
    assert "instructions" not in text
    assert "must pass" not in rules_of()


def test_rules_allow_no_change_where_none_is_expected() -> None:
    """A ticket that expects nothing is told that it may leave the repository as it is."""
    assert "may leave the repository unchanged" in rules_of(Spec("t", "Look.", expects=Expects.NOTHING))


def test_repository_instructions_come_last() -> None:
    """The repository's own instructions end the rules, whole when they are short."""
    assert rules_of(instructions="Use tabs.").endswith("\n\nThe repository's own instructions:\n\nUse tabs.")


@pytest.mark.parametrize("letter", ["a", "é", "字", "🎫"])
def test_rules_fit_into_one_argument(letter: str) -> None:
    """Instructions of any length and script are cut where a character ends, at the limit in bytes."""
    size = len(rules_of(instructions=letter * RULES_LIMIT).encode())
    assert RULES_LIMIT - 4 < size <= RULES_LIMIT


@given(st.text(st.characters(), max_size=50), st.lists(st.text(st.characters(), max_size=9), max_size=3))
@example("a\0b\udc80", ["\0"])
def test_rules_are_an_argument_that_a_process_takes(instructions: str, verify: list[str]) -> None:
    """Rules hold no NUL and nothing that is not UTF-8, whatever the repository and the ticket hold."""
    assert b"\0" not in rules_of(verify=tuple(verify), instructions=instructions).encode()


@pytest.mark.parametrize(
    ("kind", "resume", "failed", "begins", "holds"),
    [
        (Kind.FIRST, False, None, SPEC.title, "It asked:\n\nRed or blue?"),
        (Kind.FALLBACK, False, FAILED, SPEC.title, "It asked:\n\nRed or blue?"),
        (Kind.FALLBACK, False, FAILED, SPEC.title, "A check of this ticket failed"),
        (Kind.FIX, True, FAILED, "Your question has an answer:\n\nDown.", "A check of this ticket failed"),
        (Kind.RESUMED, True, None, "Your question has an answer:\n\nDown.", "Go on"),
    ],
)
def test_every_run_is_told_the_answers_that_it_lacks(
    kind: Kind, resume: bool, failed: FailedLine | None, begins: str, holds: str
) -> None:
    """A new session is told all that was answered and one that goes on what is new, also with a failed check."""
    prompt = briefing._prompt(SPEC, EVERYTHING, failed, Words, Plan(kind, "s", 1, resume=resume), 1)
    assert prompt.startswith(begins)
    assert holds in prompt


def test_what_has_nothing_to_be_told_is_told_nothing() -> None:
    """The first run reads the ticket alone, and a failed check goes back alone."""
    first_run, goes_on = Plan(Kind.FIRST, "s", 1, resume=False), Plan(Kind.RESUMED, "s", 1, resume=True)
    assert briefing._prompt(SPEC, Handover(), None, Words, first_run, 1) == first(SPEC)
    back = briefing._prompt(SPEC, Handover(), FAILED, Words, goes_on, 1)
    assert back == fix(FAILED.command, FAILED.ending, FAILED.output)


def test_a_failed_command_tells_its_ending_in_the_first_line() -> None:
    """However many lines a command has, the line that the table shows of it says how it ended."""
    assert str(FAILED) == "`make check`: exit code 1\nno"
    assert str(FailedLine("cd lib\nmake check\n", "exit code 1", "no")) == "`cd lib ...`: exit code 1\nno"
    assert str(FailedLine("x" * 3_000, "exit code 1", "")).endswith("x ...`: exit code 1\n")
