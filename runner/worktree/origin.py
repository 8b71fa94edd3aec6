"""The place that the repository comes from and goes back to: what may be one, and why it did not answer.

Invariant: a password in its URL reaches git by the environment alone.

Knows URLs and git's messages; does not know our copies.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from runner.worktree.command import Result, redact_url
from runner.worktree.errors import (
    GitFailed,
    RepositoryDenied,
    RepositoryMissing,
    RepositoryOfOtherHash,
    RepositoryUnreachable,
)

_SCHEMES = frozenset({"https", "http", "ssh", "git", "file"})
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://.")
_SCP = re.compile(r"[A-Za-z0-9_][^/:]*:[^:]")
_DENIED = re.compile(
    r"Authentication failed|Permission denied|could not read (Username|Password)|terminal prompts disabled"
    r"|Host key verification failed|returned error: 40[13]|access denied|Invalid username|dubious ownership"
)
_MISSING = re.compile(r"does not appear to be a git repository|[Nn]ot found|does not exist|returned error: 404")
_OTHER_HASH = "mismatched algorithms: client sha1; server sha256"
_UNREACHABLE = re.compile(
    r"Could not resolve|unable to look up|unable to connect|Failed to connect|Could not connect"
    r"|Connection (refused|timed out|reset|closed)|[Oo]peration timed out|No route to host|Network is unreachable"
    r"|name resolution|hung up unexpectedly|early EOF|RPC failed|returned error: (429|5\d\d)|transfer closed"
    r"|Broken pipe|unexpected disconnect|unable to access '\w+://"
)


def is_path(origin: str) -> bool:
    """Whether a checked origin is a directory of this machine."""
    return origin.startswith("/")


def checked(origin: str) -> str:
    """Return what git is given; relative paths become absolute, since git runs elsewhere.

    Raises:
        RepositoryMissing: It is nothing that we let git reach: an option, or a transport that runs a command.
    """
    url = _URL.match(origin)
    if url and url[1] in _SCHEMES:
        return origin
    if url or "::" in origin or origin.startswith("-") or re.search(r"[\x00-\x1f\x7f]", origin) or not origin:
        raise RepositoryMissing(redact_url(origin), "not a path, host:path, or URL of a kind that is allowed")
    if _SCP.match(origin) and not Path(origin).exists():
        return origin
    return os.fspath(Path(origin).expanduser().resolve())


def with_url(environment: Mapping[str, str], url: str) -> dict[str, str]:
    """Add the remote's URL to git's environment: neither arguments nor a file may hold its password."""
    count = int(environment.get("GIT_CONFIG_COUNT", "0"))
    return {
        **environment,
        "GIT_CONFIG_COUNT": str(count + 1),
        f"GIT_CONFIG_KEY_{count}": "remote.origin.url",
        f"GIT_CONFIG_VALUE_{count}": url,
    }


def secrets_of(environment: Mapping[str, str], url: str) -> tuple[str, ...]:
    """Return what must be in no message, the longest first."""
    userinfo = re.match(r"\w+://([^/@\s]+)@", url)
    values = [*environment.values(), *(userinfo[1].split(":") if userinfo else ())]
    return tuple(sorted((value for value in values if len(value) > 5), key=len, reverse=True))  # noqa: PLR2004 - "true"


def why(shown: str, verb: str, result: Result) -> Exception:
    """Return the error that says why the origin did not do as asked."""
    said = result.stderr
    if _OTHER_HASH in said:
        return RepositoryOfOtherHash(shown, said)
    if _DENIED.search(said):
        return RepositoryDenied(shown, said)
    if _MISSING.search(said):
        return RepositoryMissing(shown, said)
    if result.timed_out or _UNREACHABLE.search(said):
        return RepositoryUnreachable(shown, said)
    return GitFailed(shown, verb, said)
