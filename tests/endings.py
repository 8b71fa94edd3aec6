"""Endings as tests build them, and the values of the CLI's open sets.

The values are those of the CLI that the SDK ships; test_ways.py compares them with it.
"""

from runner.outcome import Ending, Result, StoppedBy, Trouble

TERMINAL_REASONS = (
    "blocking_limit",
    "rapid_refill_breaker",
    "prompt_too_long",
    "image_error",
    "model_error",
    "api_error",
    "malformed_tool_use_exhausted",
    "aborted_streaming",
    "aborted_tools",
    "stop_hook_prevented",
    "hook_stopped",
    "tool_deferred",
    "max_turns",
    "background_requested",
    "completed",
    "budget_exhausted",
    "structured_output_retry_exhausted",
    "tool_deferred_unavailable",
    "turn_setup_failed",
)
ERROR_SUBTYPES = (
    "error_during_execution",
    "error_max_turns",
    "error_max_budget_usd",
    "error_max_structured_output_retries",
)
API_ERRORS = (
    "authentication_failed",
    "oauth_org_not_allowed",
    "account_on_hold",
    "verification_required",
    "billing_error",
    "rate_limit",
    "overloaded",
    "invalid_request",
    "model_not_found",
    "server_error",
    "unknown",
    "max_output_tokens",
    "cloud_credential_error",
)


def ended(
    subtype: str = "success",
    reason: str | None = "api_error",
    *,
    error: str | None = None,
    status: int | None = None,
    is_error: bool = True,
    resumed: bool = True,
    confirmed: bool = True,
    exit_code: int | None = 1,
) -> Ending:
    """Return an ending with a result."""
    result = Result(subtype, is_error=is_error, terminal_reason=reason, api_error_status=status)
    return Ending(resumed=resumed, confirmed=confirmed, result=result, api_error=error, exit_code=exit_code)


def gone(
    exit_code: int | None = None,
    *,
    resumed: bool = True,
    confirmed: bool = True,
    trouble: Trouble | None = None,
    stopped_by: StoppedBy | None = None,
) -> Ending:
    """Return an ending without a result."""
    return Ending(resumed=resumed, confirmed=confirmed, exit_code=exit_code, trouble=trouble, stopped_by=stopped_by)


DONE = Result("success", is_error=False, terminal_reason="completed", text="Done.", stop_reason="end_turn")
GOOD = Ending(resumed=True, confirmed=True, result=DONE, exit_code=0)
NOT_FOUND = ended("error_during_execution", None, confirmed=False)
