"""`check`: what a start needs is looked at, all of it, each with what was found, and nothing is changed by looking."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner import preflight
from runner.preflight import Finding
from tests.shell import Shell, git

KEY = "sk-ant-api03-made-up"
NAMES = {"state directory", "machine", "credential", "claude code", "api", "tools", "database", "repository"}
CLI = "#!/bin/sh\n"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a configuration whose CLI says a version at once."""
    shell = Shell(tmp_path)
    program(shell, 'echo "9.9.9 (Claude Code)"')
    return shell


def program(shell: Shell, script: str, mode: int = 0o755) -> Path:
    """Let the configuration's CLI be a shell script."""
    path = shell.place / "claude"
    path.write_text(CLI + script + "\n")
    path.chmod(mode)
    shell.configure(f'[agent]\ncli_path = "{path}"')
    return path


def check(shell: Shell, environ: Mapping[str, str] | None = None) -> dict[str, Finding]:
    """Return the findings by what was looked at."""
    found = {
        finding.what: finding
        for finding in preflight.check(shell.config, {"ANTHROPIC_API_KEY": KEY} if environ is None else environ)
    }
    assert found.keys() >= NAMES
    assert KEY not in str(found)
    return found


def wrong(found: Mapping[str, Finding]) -> dict[str, str]:
    """Return what is wrong."""
    return {what: finding.said for what, finding in found.items() if not finding.ok}


def test_all_is_well(shell: Shell) -> None:
    """Where all is there each finding says what was found, and twice is like once."""
    head = git("-C", str(shell.repository), "rev-parse", "HEAD")
    for _ in range(2):
        found = check(shell)
        assert wrong(found) == {}
        assert re.fullmatch(r"disk [\d.]+ .iB free, memory [\d.]+ .iB free", found["machine"].said)
        assert {what: found[what].said for what in NAMES - {"machine"}} == {
            "state directory": str(shell.state),
            "credential": "$ANTHROPIC_API_KEY",
            "claude code": f"9.9.9 (Claude Code), {shell.place}/claude",
            "api": "Claude Code's own address",
            "tools": "Bash, Read, Edit, Write, Glob, Grep, TaskCreate, TaskGet, TaskList, TaskUpdate",
            "database": f"sqlite:///{shell.home.database}",
            "repository": f"{shell.repository}, base main at {head[:12]}",
        }


def test_everything_wrong_is_told_at_once(shell: Shell) -> None:
    """One thing that is wrong hides no other."""
    program(shell, "exit 3")
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\n[git]\nbase = "trunk"')
    said = wrong(check(shell, {}))
    assert [*said] == ["credential", "claude code", "repository"]
    assert said["credential"].startswith("no key for Claude: looked at $ANTHROPIC_API_KEY")
    assert f"{shell.place}/claude does not run" in said["claude code"]
    assert "has no branch 'trunk'; it has main" in said["repository"]


def test_a_machine_below_a_floor_is_told(shell: Shell) -> None:
    """Floors are told with what is free and what to do, before any ticket has to wait for them."""
    floors = '[machine]\nmin_free_disk = "1000 PiB"\nmin_free_memory = "1000 PiB"'
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\n{floors}')
    said = wrong(check(shell))
    assert [*said] == ["machine"]
    assert "machine.min_free_disk is 1000.0 PiB: make room" in said["machine"]
    assert "machine.min_free_memory is 1000.0 PiB: end something" in said["machine"]


def test_the_address_of_the_api_is_told_without_its_password(shell: Shell) -> None:
    """Whoever checks sees where tickets will go: by the environment, and before that by the configuration."""
    environ = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "http://me:secret@127.0.0.1:8765/v"}
    assert check(shell, environ)["api"].said == "127.0.0.1:8765/v"
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\nbase_url = "http://proxy.example"')
    assert check(shell, environ)["api"].said == "http://proxy.example"


def test_a_tool_that_does_not_exist_is_doubtful(shell: Shell) -> None:
    """A name that is no tool's, in the configuration or in a ticket's file, is told, and stops nothing."""
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\ntools = ["Bash", "Raed"]')
    shell.queue.mkdir(parents=True)
    (shell.queue / "fix.md").write_text("---\ntitle: Fix\ntools: [grep, Xyz, mcp__docs__find]\n---\nDo it.\n")
    (shell.queue / "bad.md").write_text("---\ntools: 1\n---\nDo it.\n")
    found = check(shell)["tools"]
    assert (found.ok, found.doubtful) == (True, True)
    assert found.said.partition(": ")[2] == (
        "agent.tools has Raed, did you mean Read?; fix.md:3 has grep, did you mean Grep?; fix.md:3 has Xyz"
    )
    assert re.search(r"^look +tools +no tool of Claude Code's", shell("check").out, re.MULTILINE)


def test_a_cli_without_the_right_to_run_is_told(shell: Shell) -> None:
    """A file that is no program is no CLI."""
    path = program(shell, "", mode=0o644)
    assert wrong(check(shell)) == {
        "claude code": f"{path} (agent.cli_path): there is no such program: no ticket could be worked on"
    }


def test_a_repository_without_commits_is_told(shell: Shell) -> None:
    """A repository that has nothing to start from is told with what to do."""
    git("init", "-q", str(shell.place / "empty"))
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"', repository=str(shell.place / "empty"))
    assert "has no commits: push a first one" in wrong(check(shell))["repository"]


def test_another_repositorys_state_is_refused(shell: Shell) -> None:
    """A state directory that has copies of another repository is not used for this one."""
    check(shell)
    git("clone", "-q", str(shell.repository), str(shell.place / "other"))
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"', repository=str(shell.place / "other"))
    assert "use a state directory per repository" in wrong(check(shell))["repository"]


def test_gits_password_has_to_be_there(shell: Shell) -> None:
    """The variable that git's password, or its user, is in is named when it is missing, and its value never."""
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\n[git]\npassword_env = "GIT_TOKEN"')
    missing = wrong(check(shell))
    assert missing == {"repository": "git.password_env: the daemon's environment has no GIT_TOKEN"}
    found = check(shell, {"ANTHROPIC_API_KEY": KEY, "GIT_TOKEN": "s3cret-token"})
    assert wrong(found) == {}
    assert "s3cret-token" not in str(found)
    names = '[git]\npassword_env = "GIT_TOKEN"\nusername_env = "GIT_USER"'
    shell.configure(f'[agent]\ncli_path = "{shell.place}/claude"\n{names}')
    missing = wrong(check(shell, {"ANTHROPIC_API_KEY": KEY, "GIT_TOKEN": "s3cret-token"}))
    assert missing == {"repository": "git.username_env: the daemon's environment has no GIT_USER"}


def test_a_running_daemon_is_not_disturbed(shell: Shell) -> None:
    """While a daemon holds the home it is named, and its repository is left alone."""
    check(shell)
    with shell.home.lock():
        found = check(shell)
        assert wrong(found) == {}
        assert found["state directory"].said == f"{shell.state}, held by the daemon with pid {os.getpid()}"
        assert found["repository"].said == f"{shell.repository} (in use by the running daemon, not tried)"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:////var/lib/a/db", "sqlite:////var/lib/a/db"),
        ("postgresql+psycopg://me:s3cret@db.example/tickets", "db.example/tickets"),
        ("postgresql+psycopg:///tickets?user=me&password=s3cret", "postgresql+psycopg:///tickets"),
    ],
)
def test_a_databases_secrets_are_not_shown(url: str, said: str) -> None:
    """Of a database's URL neither password nor options are said."""
    assert preflight.without_secrets(url) == said


def test_looking_leaves_the_queue_and_the_checkout_alone(shell: Shell) -> None:
    """`check` takes no ticket, and neither the user's checkout nor its refs change."""
    shell("add", shell.ticket("fix"))
    before = git("-C", str(shell.repository), "for-each-ref"), git("-C", str(shell.repository), "status", "--short")
    check(shell)
    after = git("-C", str(shell.repository), "for-each-ref"), git("-C", str(shell.repository), "status", "--short")
    assert after == before
    assert [*shell.files()] == ["fix.md"]
    assert "no tickets" in shell("status").out


@pytest.mark.parametrize("state", ["/proc/x", "inside"])
def test_a_wrong_state_directory_is_told_with_the_rest(shell: Shell, state: str) -> None:
    """Where the state directory cannot be made, or must not be, what is in it is called not looked at."""
    place = state if state.startswith("/") else str(shell.repository / state)
    shell.file.write_text(shell.file.read_text().replace(str(shell.state), place))
    said = wrong(check(shell))
    assert [*said] == ["state directory", "database", "repository"]
    assert said["state directory"].startswith(place)
    assert said["database"] == said["repository"] == "not looked at: the state directory is wrong"
