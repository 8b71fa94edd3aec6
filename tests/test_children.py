"""What we start: with what environment, under what limits, and with nothing left of it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from runner.children import OUTPUT_BYTES, CommandEnd, base_environment, launch_variable, run_command, write_launcher
from runner.processes import Cookie, find
from runner.redact import MARK, Redactor

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture
def cookie(tmp_path: Path) -> Iterator[Cookie]:
    """Return a cookie, and end whatever a failed test left with it."""
    yield Cookie(str(tmp_path), "T-1", 4)
    for process in find(str(tmp_path)):
        os.kill(process.pid, signal.SIGKILL)


def launched(cookie: Cookie, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program through the launcher, as the SDK would."""
    environment = {"ANTHROPIC_API_KEY": "sk-1", "ODD": "ä=\n\udcff"}
    launch = launch_variable(Path(program), cookie=cookie, environment=environment)
    sdk = {"CLAUDE_CODE_ENTRYPOINT": "sdk-py", "CLAUDE_AGENT_SDK_VERSION": "1", "PWD": cookie.home}
    ours = {"NOTIFY_SOCKET": "/run/x", "ANTHROPIC_AUTH_TOKEN": "sk-2", "GIT_DIR": "/x", "CLAUDE_CONFIG_DIR": "/x"}
    return subprocess.run(
        [write_launcher(Path(cookie.home)), *arguments],
        env={**os.environ, **ours, **sdk, **launch},
        cwd=cookie.home,
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
    )


async def run(line: str, cookie: Cookie, *, timeout_s: float = 30, stdin: bytes = b"") -> CommandEnd:
    """Run a line in the home of the cookie."""
    cwd = Path(cookie.home)
    return await run_command(line, cwd=cwd, environment=ENVIRONMENT, cookie=cookie, timeout_s=timeout_s, stdin=stdin)


async def end_of(pid: int) -> None:
    """Wait until a process, which may be gone already, has ended."""
    with suppress(ProcessLookupError), anyio.fail_after(60), ExitStack() as stack:
        pidfd = os.pidfd_open(pid)
        stack.callback(os.close, pidfd)
        await anyio.wait_readable(pidfd)


def test_the_cli_gets_its_environment_and_no_other(cookie: Cookie) -> None:
    """What is launched has what it was given, the cookie, its own pid and what the SDK sets; nothing of ours."""
    done = launched(cookie, "/bin/cat", "/proc/self/environ", "/proc/self/stat")
    text, _, stat = done.stdout.rpartition("\0")
    environment = dict(pair.split("=", 1) for pair in text.split("\0"))
    assert environment == {
        "ANTHROPIC_API_KEY": "sk-1",
        "ODD": "ä=\n\udcff",
        "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
        "CLAUDE_AGENT_SDK_VERSION": "1",
        "PWD": cookie.home,
        "TICKET_RUNNER_CLI": f"{stat.split()[0]} {os.getpid()}",
        **cookie.environment(),
    }


def test_the_cli_starts_afresh(cookie: Cookie) -> None:
    """What is launched is our child, leads a group, ignores no signal, and is the first to go without memory."""
    done = launched(cookie, "/bin/cat", "/proc/self/stat", "/proc/self/status", "/proc/self/oom_score_adj")
    stat, *status, oom_score_adj = done.stdout.splitlines()
    pid, _, _, parent, group, session = stat.split()[:6]
    assert (parent, group, session) == (str(os.getpid()), pid, str(os.getsid(0)))
    ours = sum(1 << number - 1 for number in signal.valid_signals())  # the C library has two more; make ignores them
    masks = dict(line.split(":\t") for line in status if line.startswith(("SigIgn", "SigBlk")))
    assert {name: int(mask, 16) & ours for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}
    assert oom_score_adj == "500"


def test_the_launcher_ends_without_its_parent(cookie: Cookie) -> None:
    """A launcher whose parent is not the daemon that asked for it starts nothing."""
    launch = launch_variable(Path("/bin/echo"), cookie=cookie, environment={})
    command = ["/bin/sh", "-c", '"$0" started; exit $?', str(write_launcher(Path(cookie.home)))]
    done = subprocess.run(command, env=launch, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (125, "")
    assert f"and not {os.getpid()}: the daemon is gone" in done.stderr


@pytest.mark.parametrize(("program", "code"), [("/nowhere/cli", 127), ("/etc/passwd", 126)])
def test_a_cli_that_cannot_be_run_is_named(cookie: Cookie, program: str, code: int) -> None:
    """A CLI that is missing or no program ends the launcher with the shell's code and a line that names it."""
    done = launched(cookie, program)
    assert done.returncode == code
    assert done.stderr.startswith(f"ticket-runner launcher: {program} ")
    assert len(done.stderr.splitlines()) == 1


def test_a_launcher_started_by_hand_says_so(tmp_path: Path) -> None:
    """A launcher that nobody told what to do ends with a line that says so."""
    done = subprocess.run([write_launcher(tmp_path)], env={}, check=False, capture_output=True, text=True)
    assert done.returncode == 125
    assert "started by ticket-runner only" in done.stderr


def test_the_launcher_is_private_and_quoted(tmp_path: Path) -> None:
    """The launcher's file is for its owner only, replaces an old one, and leaves no other file."""
    directory = tmp_path / "it's a home"
    directory.mkdir()
    write_launcher(directory)
    path = write_launcher(directory)
    assert [entry.name for entry in directory.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o700
    cookie = Cookie(str(directory), "T-1", 1)
    assert launched(cookie, "/bin/echo", "a b", "$c").stdout == "a b $c\n"


def test_base_environment_is_a_list_of_what_is_allowed(tmp_path: Path) -> None:
    """Of ours a child gets what programs break without; secrets, sockets and settings stay here."""
    allowed = {"PATH": "/bin", "LC_ALL": "C", "TZ": "UTC", "SSL_CERT_FILE": "/x", "https_proxy": "http://p"}
    refused = [
        *("NOTIFY_SOCKET", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY", "ANTHROPIC_API_KEY", "CLAUDE_CONFIG_DIR"),
        *("GIT_DIR", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "PYTHONPATH", "LD_PRELOAD", "HOME", "TMPDIR", "PWD"),
    ]
    environment = base_environment(
        {"CI": "1", "TZ": "CET"},
        home_dir=tmp_path,
        tmp_dir=tmp_path / "tmp",
        inherited={**allowed, **dict.fromkeys(refused, "ours")},
    )
    own = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    assert environment == {**allowed, **own, "CI": "1", "TZ": "CET"}


async def test_children_are_started_by_the_main_thread_only(cookie: Cookie) -> None:
    """A thread other than the main one is refused, since its end would end the child."""
    with pytest.raises(RuntimeError, match="main thread"):
        await anyio.to_thread.run_sync(lambda: launch_variable(Path("/bin/true"), cookie=cookie, environment={}))


async def test_a_command_says_how_it_ended(cookie: Cookie) -> None:
    """A command's exit code and its output of both kinds, in order, come back."""
    end = await run("echo out; echo err >&2; pwd; exit 3", cookie)
    assert (end.exit_code, end.signal, end.timed_out) == (3, None, False)
    assert end.output == f"out\nerr\n{cookie.home}\n"


async def test_a_command_that_dies_of_a_signal_says_which(cookie: Cookie) -> None:
    """A shell that is killed has a signal and no exit code."""
    end = await run("echo last; kill -SEGV $$", cookie)
    assert (end.exit_code, end.signal, end.timed_out, end.output) == (None, signal.SIGSEGV, False, "last\n")


async def test_a_command_gets_its_environment_and_no_other(cookie: Cookie) -> None:
    """A command has the environment that it was given and its marks, and leads a session of its own."""
    end = await run("cat /proc/$$/environ /proc/$$/stat", cookie)
    text, _, stat = end.output.rpartition("\0")
    pid, _, _, _, group, session = stat.split()[:6]
    marks = {"TICKET_RUNNER_COMMAND": f"{pid} {os.getpid()}", **cookie.environment()}
    assert dict(pair.split("=", 1) for pair in text.split("\0")) == {**ENVIRONMENT, **marks}
    assert group == session == pid


async def test_a_command_reads_its_stdin(cookie: Cookie) -> None:
    """A command gets all of stdin, or an empty one, and one that does not read it hangs nothing."""
    much = b"x" * 1_000_000
    assert (await run("wc -c", cookie, stdin=much)).output.strip() == "1000000"
    assert (await run("wc -c", cookie)).output.strip() == "0"
    assert (await run("true", cookie, stdin=much)).exit_code == 0


async def test_output_that_is_no_utf8_is_replaced(cookie: Cookie) -> None:
    """Bytes that are no UTF-8 are replaced, and the rest of the output is kept."""
    assert (await run(r"printf 'a\377b\303\244'", cookie)).output == "a�bä"


async def test_much_output_is_cut_to_its_end(cookie: Cookie) -> None:
    """Of 10 MB the last bytes are kept, from a whole character on."""
    line = "yes ää | head -c 10000000; printf ended"
    end = await run(line, cookie)
    assert end.exit_code == 0
    assert end.output.endswith("ää\nended")
    assert len(end.output.encode()) == OUTPUT_BYTES - 1
    assert "�" not in end.output


@pytest.mark.parametrize("outlives", [False, True])
@pytest.mark.parametrize("after", [OUTPUT_BYTES - 10, 2 * OUTPUT_BYTES - 10])
async def test_no_part_of_a_secret_is_left_of_much_output(cookie: Cookie, *, outlives: bool, after: int) -> None:
    """A secret is taken out whole where the output is cut, where what is kept for that begins, and everywhere else."""
    secret = "sk-0123456789abcdefghij"
    line = f"yes x | head -c 100000; printf {secret}; yes {secret} | head -c {after}"
    end = await run_command(
        line,
        cwd=Path(cookie.home),
        environment=ENVIRONMENT,
        cookie=cookie,
        timeout_s=30,
        redact=Redactor.of([secret]).text,
        outlives=outlives,
    )
    assert MARK in end.output
    assert len(end.output) <= OUTPUT_BYTES
    assert "j" not in end.output


async def test_the_time_limit_ends_the_whole_tree(cookie: Cookie) -> None:
    """A command over its time is ended with what it put into another session, deaf to TERM or not."""
    line = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 100; true' & echo begun; sleep 100; true"
    end = await run(line, cookie, timeout_s=0.5)
    assert (end.exit_code, end.signal, end.timed_out, end.output) == (None, signal.SIGKILL, True, "begun\n")
    assert find(cookie.home) == []


async def test_what_a_command_leaves_is_ended(cookie: Cookie) -> None:
    """A background child that keeps the output open, or dropped the cookie, delays nothing and is ended."""
    end = await run("sleep 100 & setsid sleep 100 & env -i sleep 100 & echo $!; echo done", cookie)
    pid, done = end.output.split()
    assert (end.exit_code, done) == (0, "done")
    assert find(cookie.home) == []
    await end_of(int(pid))


async def test_what_can_not_be_found_delays_nothing(cookie: Cookie) -> None:
    """A child that dropped the cookie, its session and its parent keeps the output open, and nobody waits for it."""
    end = await run("setsid env -i sleep 100 & echo $!", cookie)
    os.kill(int(end.output), signal.SIGKILL)
    assert end.exit_code == 0


async def test_a_command_ends_no_other_command(cookie: Cookie) -> None:
    """Two commands of one claim run side by side, and the end of one is not the end of the other."""
    os.mkfifo(Path(cookie.home) / "ready")
    os.mkfifo(Path(cookie.home) / "go")
    ends: list[CommandEnd] = []

    async def first() -> None:
        ends.append(await run("echo > ready; read word < go; echo $word", cookie))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await run("read word < ready", cookie)
        await run("echo on > go", cookie)
    assert [(end.exit_code, end.output) for end in ends] == [(0, "on\n")]


async def test_a_cancelled_command_is_ended(cookie: Cookie) -> None:
    """A command whose task is cancelled is ended before the task is."""
    ready = Path(cookie.home) / "ready"
    os.mkfifo(ready)
    descriptor = os.open(ready, os.O_RDWR | os.O_NONBLOCK)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, "setsid sleep 100 & echo > ready; sleep 100", cookie)
        with anyio.fail_after(60):
            await anyio.wait_readable(descriptor)
        assert len(find(cookie.home)) >= 2
        tasks.cancel_scope.cancel()
    os.close(descriptor)
    assert find(cookie.home) == []


async def test_a_command_without_its_directory_is_an_error(cookie: Cookie) -> None:
    """A command in a directory that does not exist is not started."""
    with pytest.raises(FileNotFoundError):
        await run_command("true", cwd=Path("/nowhere"), environment=ENVIRONMENT, cookie=cookie, timeout_s=30)


DAEMON = """
import sys, anyio
from pathlib import Path
from runner.children import run_command
from runner.processes import Cookie
home, line = sys.argv[1:]
anyio.run(lambda: run_command(line, cwd=Path(home), environment={}, cookie=Cookie(home, "T-1", 1), timeout_s=60))
"""


@pytest.fixture
def daemon(cookie: Cookie) -> Iterator["subprocess.Popen[str]"]:
    """Return a daemon that runs a command, whose shell says its pid through the FIFO `ready`."""
    os.mkfifo(Path(cookie.home) / "ready")
    line = "echo $$ > ready; while :; do read x < ready; done"
    command = [sys.executable, "-c", DAEMON, cookie.home, line]
    daemon = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True)
    yield daemon
    daemon.kill()
    daemon.wait()


async def test_the_death_of_the_daemon_ends_the_shell(cookie: Cookie, daemon: "subprocess.Popen[str]") -> None:
    """A shell whose daemon is killed by SIGKILL is killed, too."""
    pid = int(await anyio.Path(cookie.home, "ready").read_text())
    assert [process.pid for process in find(cookie.home)] == [pid]
    daemon.kill()
    daemon.wait()
    await end_of(pid)
    assert find(cookie.home) == []
