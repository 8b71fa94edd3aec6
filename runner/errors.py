"""What goes wrong in a way that we foresee.

The class says what happened; the message says to which ticket and what to do;
`exit_code` is what a command returns for it. What follows for a run is decided
in outcome.py and nowhere else.
"""

from enum import IntEnum


class Exit(IntEnum):
    """What a command returns. 64 and up are those of sysexits.h."""

    OK = 0
    FAILED = 1
    NOTHING_TO_DO = 3
    TICKET_HELD = 4
    USAGE = 64
    FORCED = 70
    LOCKED = 75
    CONFIG = 78


class RunnerError(Exception):
    """Anything that we foresee."""

    exit_code = Exit.FAILED


class UsageError(RunnerError):
    """The command's words are wrong."""

    exit_code = Exit.USAGE


class ConfigError(RunnerError):
    """The configuration, or the machine under it, has to be changed by a person."""

    exit_code = Exit.CONFIG
