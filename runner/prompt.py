"""What we say to the agent.

A ticket's text is passed on as it was written; everything of ours around it is a
fact from the log, from git or from the ledger. A session that goes on is not
given its ticket again.

Pure. The caller gathers the facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tickets.ticket import Expects, Spec

RULES_LIMIT = 64 * 1024
"""Bytes of UTF-8 of what is appended to the system prompt: it travels in one argument, which holds
131,071 bytes and no NUL."""

_LISTED, _WORDS_CHARS, _STEP_CHARS = 20, 4000, 200
_RESOLVE = (
    "Resolve them so that both changes keep their meaning, `git add` each, and end the merge with "
    "`git commit --no-edit`, or leave that commit to us."
)


@dataclass(frozen=True, slots=True)
class Handover:
    """What the next run of a ticket has to know of those before it."""

    cut_off: Sequence[str] = ()
    """Tools that were started and did not end, as `Bash: make test`."""
    commits: Sequence[str] = ()
    uncommitted: Sequence[str] = ()
    failed_check: str | None = None
    effects: Sequence[str] = ()
    """What became of each effect, one line each."""
    answers: Sequence[tuple[str, str]] = ()
    """Each question that was answered, and its answer: for a session that takes over."""
    new_answers: Sequence[tuple[str, str]] = ()
    """Those of them that the session which goes on was not told."""
    account: str | None = None
    """What the agent said that it did, when it last finished."""
    said: str = ""
    """Its last words; for a session that takes over, as the plan."""
    plan: Sequence[str] = ()
    left_microusd: int | None = None
    conflicts: Sequence[str] = ()
    """Files of a merge under way that are not resolved."""
    moved_to: str | None = None
    """Where the worktree is, when earlier runs had it elsewhere."""


def first(spec: Spec) -> str:
    """Return the first prompt of a ticket: its title, if it has one, and its text verbatim."""
    return f"{spec.title}\n\n{spec.text}" if spec.title else spec.text


def resumed(handover: Handover) -> str:
    """Return the prompt for a session that goes on."""
    if handover.new_answers:
        opening = f"{_new_answers(handover.new_answers)}\n\nGo on with the ticket."
    else:
        opening = (
            "Your work on this ticket was interrupted: the process that you ran in was stopped. "
            "Go on from where you were; do not start again and do not repeat what is done."
        )
    return "\n\n".join([opening, *_facts(handover)])


def fresh(spec: Spec, handover: Handover) -> str:
    """Return the first prompt of a session that takes over from an earlier one."""
    took_over = (
        "Note from the ticket runner: an earlier session worked on the ticket above and could not go on. "
        "Look at what it left before you continue; do not repeat what is done."
    )
    asked = [f"It asked:\n\n{question}\n\nThe answer:\n\n{answer}" for question, answer in handover.answers]
    return "\n\n".join([first(spec), "---", took_over, *_words(handover), *asked, *_facts(handover)])


def fix(command: str, ending: str, output: str) -> str:
    """Return the prompt that sends a failed check back.

    Args:
        command: The check's shell line.
        ending: How it ended, as `exit code 1`.
        output: The end of what it printed.
    """
    return (
        f"A check of this ticket failed: `{command}` ({ending}). The end of its output:\n\n"
        f"{_fenced(output.strip() or '(it printed nothing)')}\n\n"
        "Mend the cause, not the check. It is run again when you are done."
    )


def conflict(base: str, files: Sequence[str]) -> str:
    """Return the prompt that hands over a merge of the base.

    Args:
        base: As it is called.
        files: To be resolved.
    """
    return (
        f"What this ticket started from, {base}, has moved on, and is being merged into your branch. Git could not "
        f"merge these files; each holds both versions, or lacks one of them:\n{_bullets(files)}\n\n"
        f"{_RESOLVE} Do not abort the merge. The checks are run again when you are done."
    )


def rules(spec: Spec, *, branch: str, verify: Sequence[str], instructions: str | None) -> str:
    """Return what is appended to the system prompt; the CLI records it at a session's first request.

    What is beyond `RULES_LIMIT` is cut off; the repository's instructions come last.
    """
    parts = [
        (
            f"You work unattended on ticket `{spec.id}`, in a git worktree of your own on the branch `{branch}`. "
            "Nobody reads along and nobody can approve anything. Stay in the current directory and on this branch. "
            "Commit in steps with clear messages; do not push: what you commit or leave in the worktree is "
            "checked and delivered for you. `git stash` is off, since all tickets would share it: commit instead. "
            "Do not leave processes running in the background."
        ),
        (
            "If you are interrupted you go on later in this conversation; make each step safe to repeat, and look at "
            "the state of things before you repeat a command whose outcome you did not see."
        ),
    ]
    if verify:
        parts.append("When you are done these are run, and must pass:\n" + "\n".join(f"- `{line}`" for line in verify))
    if spec.expects is Expects.NOTHING:
        parts.append("The ticket may leave the repository unchanged.")
    parts.append("End with a short account of what you did, for the person who reviews it.")
    if instructions is not None:
        parts.append("The repository's own instructions:\n\n" + instructions)
    text = "\n\n".join(parts).replace("\0", "")
    return text.encode(errors="replace")[:RULES_LIMIT].decode(errors="ignore")


def by_default(answer: str) -> str:
    """Return the answer to a question that nobody answered by its deadline."""
    return f"Nobody answered in time, so the default that you gave is taken: {answer}"


def _new_answers(answers: Sequence[tuple[str, str]]) -> str:
    if len({answer for _, answer in answers}) == 1:
        return "Your question has an answer:\n\n" + answers[0][1]
    told = [f"{question}\n\nThe answer:\n\n{answer}" for question, answer in answers]
    return "Your questions have answers:\n\n" + "\n\n".join(told)


def _words(handover: Handover) -> list[str]:
    """Return what an earlier session said of its work."""
    parts = []
    if handover.account:
        parts.append(f"Its account when it last finished:\n\n{_fenced(handover.account[:_WORDS_CHARS])}")
    if handover.plan:
        parts.append("Its plan, as it last was:\n" + _bullets([step[:_STEP_CHARS] for step in handover.plan]))
    if handover.said and handover.said != (handover.account or "").strip():
        parts.append(f"Its last words:\n\n{_fenced(handover.said[:_WORDS_CHARS])}")
    if parts:
        parts.append("That is what it said of itself; what follows is what can be seen.")
    return parts


def _facts(handover: Handover) -> list[str]:
    parts = []
    if handover.moved_to is not None:
        parts.append(
            f"Your worktree has moved: it is `{handover.moved_to}` now, your current directory. "
            "Paths from earlier in this conversation are no longer it; do not use them."
        )
    if handover.cut_off:
        parts.append(
            "These were started and cut off (nobody rejected them, whatever their results say), so their outcome is "
            "unknown. Check before you run them again:\n" + _bullets(handover.cut_off)
        )
    if handover.conflicts:
        parts.append(
            "A merge is under way, and these files are not resolved yet:\n"
            + _bullets(handover.conflicts)
            + f"\n{_RESOLVE}"
        )
    if handover.failed_check is not None:
        parts.append(f"The check `{handover.failed_check}` failed after your earlier work and has to pass.")
    if handover.commits:
        parts.append("Commits on the branch so far:\n" + _bullets(handover.commits))
    if handover.uncommitted:
        parts.append("Changed and not committed:\n" + _bullets(handover.uncommitted))
    if not handover.commits and not handover.uncommitted:
        parts.append("Git shows no change in the worktree yet.")
    if handover.effects:
        parts.append(
            "Effects outside so far; asking for one again returns its first outcome:\n" + _bullets(handover.effects)
        )
    if handover.left_microusd is not None:
        parts.append(f"About ${handover.left_microusd / 1e6:.2f} may still be spent on this ticket.")
    return parts


def _bullets(lines: Sequence[str]) -> str:
    shown = [f"- {line}" for line in lines[:_LISTED]]
    if len(lines) > _LISTED:
        shown.append(f"- and {len(lines) - _LISTED} more")
    return "\n".join(shown)


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
