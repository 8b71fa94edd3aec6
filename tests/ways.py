"""Every way a run can end that we know, what it is taken for, and how that is proved.

`python -m tests.ways` prints the table of docs/outcomes.md.

Knows the decision. Does not know how a test brings a way about.
"""

import sys
from dataclasses import dataclass, replace
from enum import StrEnum

from runner.outcome import RULES, Ending, Next, Outcome, StoppedBy, Trouble
from tests.endings import DONE, GOOD, NOT_FOUND, ended, gone

FOLLOWS = {
    Next.CHECK: "checked, delivered",
    Next.FRESH: "a new session at once",
    Next.HOLD: "held",
    Next.WAIT: "waits, no attempt",
    Next.WEATHER: "the queue waits, no attempt",
    Next.AGAIN: "again, one attempt",
    Next.PAUSE: "the queue is paused",
    Next.LEAVE: "as whoever stopped it says",
}


class Proof(StrEnum):
    """How it is known that a run ends so, and lands where the table says."""

    DRIVEN = "driven"
    """A test makes the real CLI end so (or a broken program in its place, where it is about one)."""
    RECORDED = "recorded"
    """A test replays what the real CLI said, kept in a file."""
    DOCUMENTED = "documented"
    """By what the CLI or its SDK says of itself; the decision alone is tested."""


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table."""

    name: str
    outcome: Outcome
    ends: tuple[Ending, ...]
    """As it shows, in the forms that it can have."""
    by: str
    """The test that makes it happen, as `file::function`, or where it is said."""

    @property
    def proof(self) -> Proof:
        """What `by` is."""
        if self.by.endswith(".jsonl"):
            return Proof.RECORDED
        return Proof.DRIVEN if self.by.startswith("test_") else Proof.DOCUMENTED


OVER = Outcome.SESSION_OVER
_SDK = "the SDK's source"
_CLI = "the CLI's lists"
_WORDS = "test_ways.py::test_a_request_that_fails_for_good"
_CLOCK = "test_agent_ends.py::"

WAYS = (
    Way(
        "the model is done",
        Outcome.FINISHED,
        (
            GOOD,
            replace(GOOD, resumed=False),
            *(replace(GOOD, result=replace(DONE, stop_reason=reason)) for reason in ("stop_sequence", "stop", None)),
        ),
        "test_agent.py::test_a_run_reports_what_it_did_and_its_session_goes_on",
    ),
    Way(
        "the same, after a tool's output of 3 MB",
        Outcome.FINISHED,
        (GOOD,),
        "test_agent.py::test_large_frames_pass",
    ),
    Way(
        "the model is done and its process lingers",
        Outcome.FINISHED,
        (replace(GOOD, exit_code=-9, stopped_by=StoppedBy.LINGER), replace(GOOD, stopped_by=StoppedBy.LINGER)),
        "test_agent_ends.py::test_a_cli_that_lingers_after_its_result_is_ended_and_its_result_kept",
    ),
    Way(
        "the agent asked a person",
        Outcome.ASKED,
        (ended(reason="hook_stopped", is_error=False, exit_code=0),),
        "test_agent.py::test_a_tool_of_ours_answers_and_ends_the_run",
    ),
    Way(
        "its budget is spent",
        Outcome.BUDGET,
        (ended("error_max_budget_usd", "budget_exhausted"), ended("error_max_budget_usd", None)),
        "test_agent.py::test_a_run_ends_at_its_budget_and_at_its_turns",
    ),
    Way(
        "the ticket's cap of tokens is reached, and we stop it",
        Outcome.BUDGET,
        (gone(143, stopped_by=StoppedBy.TOKENS),),
        "test_caps_e2e.py::test_turns_and_tokens_end_a_run_and_its_session_goes_on_when_they_are_raised",
    ),
    Way(
        "the ticket's cap of active time is reached, and we stop it",
        Outcome.BUDGET,
        (gone(143, stopped_by=StoppedBy.ACTIVE), gone(143, confirmed=False, stopped_by=StoppedBy.ACTIVE)),
        "test_caps_e2e.py::test_active_time_ends_a_run",
    ),
    Way(
        "the ticket's cap of turns is reached by those of subagents, and we stop it",
        Outcome.TURNS,
        (gone(143, stopped_by=StoppedBy.TURNS),),
        "test_caps_e2e.py::test_what_subagents_use_ends_a_run",
    ),
    Way(
        "its turns are used up",
        Outcome.TURNS,
        (ended("error_max_turns", "max_turns"),),
        "test_agent.py::test_a_run_ends_at_its_budget_and_at_its_turns",
    ),
    Way(
        "the session to resume is not found",
        Outcome.RESUME_FAILED,
        (NOT_FOUND, replace(NOT_FOUND, api_error="unknown")),
        "test_agent.py::test_a_resume_of_an_unknown_session_is_told_from_every_other_failure",
    ),
    Way(
        "a storm of 529, longer than the CLI's retries",
        Outcome.WEATHER,
        (ended(error="server_error", status=529), ended(error="overloaded", status=529, confirmed=False)),
        "test_ways.py::test_a_storm_meets_one_layer_of_retries_and_then_ours",
    ),
    Way(
        "429 of a subscription, with the time when the limit ends",
        Outcome.WEATHER,
        (replace(ended(error="rate_limit", status=429), reset_at_us=1_800_000_000_000_000),),
        "test_ways.py::test_a_subscriptions_limit_says_when_it_ends",
    ),
    Way(
        "429 to a key, with a long `retry-after` (the CLI gives up at once and does not tell the time)",
        Outcome.WEATHER,
        (ended(error="rate_limit", status=429), ended(status=429)),
        _WORDS,
    ),
    Way(
        "500, 503 and other faults of the API",
        Outcome.WEATHER,
        (ended(error="server_error", status=500), ended(status=503), ended(status=504, confirmed=False)),
        _WORDS,
    ),
    Way("408, 409", Outcome.WEATHER, (ended(error="unknown", status=408), ended(status=409)), _WORDS),
    Way(
        "the API cannot be reached (refused, no such host, time-out)",
        Outcome.WEATHER,
        (ended(error="server_error"), ended(error="server_error", confirmed=False)),
        "test_ways.py::test_an_api_that_cannot_be_reached_is_weather",
    ),
    Way("a response is cut in the middle", Outcome.WEATHER, (ended(error="server_error"),), _WORDS),
    Way("a response has garbage in it", Outcome.WEATHER, (ended(error="unknown"),), _WORDS),
    Way(
        "401 in the middle of a conversation",
        Outcome.UNAUTHORIZED,
        (ended(error="authentication_failed", status=401), ended(status=401)),
        "test_ways.py::test_a_ticket_goes_on_after_each_way",
    ),
    Way(
        "401 at the start",
        Outcome.UNAUTHORIZED,
        (ended(error="authentication_failed", status=401, confirmed=False),),
        "test_sessions_e2e.py::test_what_is_not_the_tickets_fault_costs_no_attempt_and_no_session",
    ),
    Way(
        "402, 403, or 400 as the credit is too low",
        Outcome.UNAUTHORIZED,
        (
            ended(error="unknown", status=402),
            ended(error="authentication_failed", status=403),
            ended(error="billing_error", status=400),
            ended(error="billing_error"),
        ),
        _WORDS,
    ),
    Way(
        "the account is on hold, to be verified, or not allowed in its organization; cloud credentials",
        Outcome.UNAUTHORIZED,
        (
            ended(error="account_on_hold"),
            ended(error="verification_required", status=403),
            ended(error="oauth_org_not_allowed", status=400),
            ended(error="cloud_credential_error"),
        ),
        _CLI,
    ),
    Way(
        "400 as a tool's call and its result are no pair",
        OVER,
        (ended(error="invalid_request", status=400), ended(status=400)),
        "test_ways.py::test_a_ticket_goes_on_after_each_way",
    ),
    Way(
        "any other 400 or 413 about the request, and what the CLI refuses itself",
        OVER,
        (
            ended(error="invalid_request", status=400, confirmed=False),
            ended(status=413),
            ended(error="invalid_request"),
        ),
        "test_agent.py::test_an_api_failure_is_not_the_model_speaking",
    ),
    Way("the model refuses on principle", OVER, (ended(error="invalid_request"),), _WORDS),
    Way(
        "the prompt is too long, and the CLI cannot make it shorter",
        OVER,
        (
            ended(reason="prompt_too_long", error="invalid_request", status=400),
            ended(reason="prompt_too_long", is_error=False),
        ),
        _WORDS,
    ),
    Way(
        "the context is full, and the CLI may not make it shorter",
        OVER,
        (ended(reason="blocking_limit", error="invalid_request"), ended(reason="blocking_limit", error="unknown")),
        "test_ways.py::test_a_context_that_is_full_ends_its_session",
    ),
    Way(
        "the context is full again and again right after it was made shorter",
        OVER,
        (ended(reason="rapid_refill_breaker", error="invalid_request"),),
        "test_ways.py::test_a_context_that_is_full_ends_its_session",
    ),
    Way(
        "an image is refused; the CLI leaves it out of the session from then on",
        Outcome.FAILED,
        (
            ended(reason="image_error", error="invalid_request", status=400),
            ended(reason="image_error", error="invalid_request", status=413),
        ),
        "test_ways.py::test_a_refused_image_is_left_out_by_a_resume",
    ),
    Way(
        "the model is not there (404), or another status that we do not know",
        Outcome.FAILED,
        (
            ended(error="model_not_found", status=404),
            ended(error="unknown", status=422),
            ended(status=418),
            ended(status=-1, error="unheard_of"),
        ),
        _WORDS,
    ),
    Way(
        "the same status before a word of the model",
        Outcome.UNEXPLAINED,
        (
            ended(error="model_not_found", status=404, confirmed=False),
            ended(error="unknown", status=422, confirmed=False),
            ended(error="unheard_of", confirmed=False),
        ),
        "test_ways.py::test_a_request_that_fails_before_a_word",
    ),
    Way(
        "the model's calls of tools make no sense, time after time",
        Outcome.FAILED,
        (ended(reason="malformed_tool_use_exhausted"),),
        _WORDS,
    ),
    Way("an answer is too long, time after time", Outcome.FAILED, (ended(error="max_output_tokens"),), _WORDS),
    Way(
        "an answer is empty, time after time",
        Outcome.FAILED,
        (ended(), replace(GOOD, result=replace(DONE, text="")), replace(GOOD, result=replace(DONE, text=" \n"))),
        "test_ways.py::test_an_unfinished_answer_is_no_end_of_the_work",
    ),
    Way(
        "it says that the model is done, whose last answer has more to come",
        Outcome.FAILED,
        tuple(
            replace(GOOD, result=replace(DONE, stop_reason=reason))
            for reason in ("max_tokens", "model_context_window_exceeded", "pause_turn", "tool_use")
        ),
        "test_ways.py::test_an_unfinished_answer_is_no_end_of_the_work",
    ),
    Way(
        "a defect of the CLI, or an end for another reason, known or not, after a word of the model",
        Outcome.FAILED,
        (
            *(ended(reason=reason) for reason in ("model_error", "turn_setup_failed", "unheard_of", None)),
            *(ended(reason=reason, is_error=False) for reason in ("turn_setup_failed", "stop_hook_prevented")),
            *(ended(reason=reason, is_error=False) for reason in ("tool_deferred", "background_requested")),
            *(ended("error_during_execution", reason) for reason in ("aborted_tools", "aborted_streaming", None)),
            ended("error_during_execution", "tool_deferred_unavailable"),
            ended("error_max_structured_output_retries", "structured_output_retry_exhausted"),
            ended("unheard_of", "completed"),
            ended("unheard_of", "completed", is_error=False),
            ended(reason="unheard_of", is_error=False),
            ended(error="unheard_of"),
        ),
        _CLI,
    ),
    Way(
        "an end for such a reason before one",
        Outcome.UNEXPLAINED,
        (
            ended(reason="model_error", confirmed=False),
            ended(reason="turn_setup_failed", is_error=False, confirmed=False),
            ended("error_during_execution", "turn_setup_failed", confirmed=False),
            ended("error_during_execution", None, confirmed=False, resumed=False),
            ended("unheard_of", None, confirmed=False),
        ),
        _CLI,
    ),
    Way(
        "it says that the model is done, which did not say a word",
        Outcome.UNEXPLAINED,
        (replace(GOOD, confirmed=False),),
        "test_ways.py::test_an_empty_answer_is_no_end_of_the_work",
    ),
    Way(
        "nothing comes for too long while the model answers",
        Outcome.STALLED,
        (gone(143, stopped_by=StoppedBy.SILENCE), gone(-9, stopped_by=StoppedBy.SILENCE)),
        _CLOCK + "test_a_silent_model_is_stopped_and_marked_as_cut",
    ),
    Way(
        "nothing comes for too long before its first word",
        Outcome.NEVER_STARTED,
        (gone(143, confirmed=False, stopped_by=StoppedBy.SILENCE),),
        "test_ways.py::test_a_first_answer_that_hangs_is_a_failed_start",
    ),
    Way(
        "a tool never ends",
        Outcome.STALLED,
        (gone(143, stopped_by=StoppedBy.TOOL_SILENCE), gone(-9, stopped_by=StoppedBy.TOOL_SILENCE)),
        _CLOCK + "test_a_tool_has_a_clock_of_its_own",
    ),
    Way(
        "the run is longer than a run may be",
        Outcome.STALLED,
        (gone(143, stopped_by=StoppedBy.RUN),),
        _CLOCK + "test_a_run_has_a_limit_as_a_whole",
    ),
    Way(
        "the CLI starts and says nothing",
        Outcome.NEVER_STARTED,
        (gone(-15, confirmed=False, stopped_by=StoppedBy.START),),
        _CLOCK + "test_a_cli_that_says_nothing_is_a_failed_start",
    ),
    Way(
        "the SDK gives up waiting for the CLI's start, after 60 s",
        Outcome.UNEXPLAINED,
        (gone(confirmed=False, trouble=Trouble.OTHER),),
        "test_ways.py::test_the_sdk_gives_up_on_a_silent_start_by_itself",
    ),
    Way(
        "its process lingers and its result is lost",
        Outcome.FAILED,
        (gone(stopped_by=StoppedBy.LINGER, trouble=Trouble.OTHER), gone(stopped_by=StoppedBy.LINGER)),
        _SDK,
    ),
    Way(
        "we stop it: a drain, the operator",
        Outcome.STOPPED,
        (
            gone(143, stopped_by=StoppedBy.DRAIN),
            gone(-9, stopped_by=StoppedBy.OPERATOR),
            replace(NOT_FOUND, stopped_by=StoppedBy.DRAIN),
        ),
        _CLOCK + "test_a_stop_in_a_tool_leaves_transcript_and_cost",
    ),
    Way(
        "we stop it: the claim is another's",
        Outcome.STOPPED,
        (gone(confirmed=False, stopped_by=StoppedBy.LOST), replace(NOT_FOUND, stopped_by=StoppedBy.LOST)),
        _CLOCK + "test_a_run_that_is_asked_to_stop_first_starts_nothing",
    ),
    Way(
        "the same call fails in the same way again and again, and we stop it",
        Outcome.LOOPED,
        (gone(143, stopped_by=StoppedBy.LOOP),),
        "test_loops_e2e.py::test_a_call_that_fails_again_and_again_ends_its_run",
    ),
    Way(
        "a signal ends it: the kernel's when memory runs out, or anybody's",
        Outcome.KILLED,
        (gone(-9), gone(137), gone(143), gone(-15)),
        _CLOCK + "test_a_killed_run_is_priced_from_its_transcript",
    ),
    Way(
        "its memory has a limit that is too low to start",
        Outcome.NEVER_STARTED,
        (gone(-6, confirmed=False), gone(-11, confirmed=False)),
        "test_ways.py::test_a_cli_without_memory_to_start_is_a_failed_start",
    ),
    Way(
        "a signal ends it before the model said anything",
        Outcome.NEVER_STARTED,
        (gone(-9, confirmed=False), gone(137, confirmed=False)),
        "test_sessions_e2e.py::test_what_is_not_the_tickets_fault_costs_no_attempt_and_no_session",
    ),
    Way(
        "the CLI is missing, or cannot be run",
        Outcome.NO_CLI,
        (
            gone(127, confirmed=False, trouble=Trouble.CLI_MISSING),
            gone(126, confirmed=False, trouble=Trouble.SPAWN_FAILED),
            replace(NOT_FOUND, trouble=Trouble.SPAWN_FAILED),
        ),
        _CLOCK + "test_a_cli_that_is_not_there_is_told_from_one_that_fails",
    ),
    Way(
        "the CLI dies at its start: an option that it does not take",
        Outcome.UNEXPLAINED,
        (gone(1, confirmed=False), gone(3, confirmed=False, resumed=False), gone(0, confirmed=False)),
        "test_ways.py::test_a_cli_that_dies_at_its_start_is_unexplained",
    ),
    Way(
        "garbage comes where a frame is due",
        Outcome.FAILED,
        (gone(trouble=Trouble.PROTOCOL), gone(1, trouble=Trouble.PROTOCOL)),
        "test_ways.py::test_garbage_among_the_frames_ends_the_run_and_not_the_session",
    ),
    Way(
        "a frame is larger than 64 MiB",
        Outcome.FAILED,
        (gone(trouble=Trouble.PROTOCOL),),
        "test_ways.py::test_a_frame_that_is_too_large_ends_the_run",
    ),
    Way(
        "garbage comes instead of the first frame",
        Outcome.UNEXPLAINED,
        (gone(confirmed=False, trouble=Trouble.PROTOCOL),),
        _CLOCK + "test_a_cli_that_is_not_there_is_told_from_one_that_fails",
    ),
    Way(
        "it ends without a result",
        Outcome.FAILED,
        (gone(0), gone(1), gone(128), gone(trouble=Trouble.OTHER)),
        "test_ways.py::test_an_end_without_a_result_is_no_success",
    ),
    Way(
        "it names another session than it was given (and is ended for that)",
        Outcome.KILLED,
        (gone(-9, trouble=Trouble.WRONG_SESSION), gone(143, trouble=Trouble.WRONG_SESSION)),
        _CLOCK + "test_a_cli_that_names_another_session_is_stopped_at_once",
    ),
    Way(
        "it names another session in its result",
        Outcome.UNEXPLAINED,
        (replace(GOOD, confirmed=False, trouble=Trouble.WRONG_SESSION),),
        _SDK,
    ),
    Way(
        "its daemon dies",
        Outcome.ORPHANED,
        (),
        "test_restart.py::test_killed_in_a_tool_the_same_session_goes_on",
    ),
)


def what_follows(outcome: Outcome) -> str:
    """Return a few words on the ticket, and on its session where that ends."""
    rule = RULES[outcome]
    held = f": {rule.hold}" if rule.hold is not None else ""
    return FOLLOWS[rule.next] + held + ("; the session is closed" if rule.closes_session else "")


def counts() -> str:
    """Return how many ways are proved how."""
    return ", ".join(f"{sum(way.proof is proof for way in WAYS)} {proof}" for proof in Proof)


def markdown() -> str:
    """Return the table of the document, and the line that counts."""
    rows = [
        f"| {way.name} | `{way.outcome}` | {what_follows(way.outcome)} | {way.proof}: {way.by.replace('::', ' ')} |"
        for way in WAYS
    ]
    head = "| a run ends so | outcome | what follows | how it is proved |\n|---|---|---|---|\n"
    return head + "\n".join(rows) + f"\n\n{len(WAYS)} ways: {counts()}.\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
