"""What the README and docs/ name is there: tests, files, commands, keys and floors."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from runner.cli import app
from runner.errors import Exit
from runner.offline import Reply, Scene, Script, ScriptedServer, Text, ToolUse
from tickets.front_matter import KEYS
from tickets.ticket import Reason, State

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("runner", "tickets", "tests", "deploy", "docs")


def section(heading: str) -> str:
    """Return the README from `heading` to the next one of its kind."""
    return README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def first_words(heading: str, column: str) -> list[str]:
    """Return the first word in backticks, or the number, of each row of the table whose head begins with `column`."""
    table = section(heading).partition(f"| {column} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `?([\w.-]+)", table, re.MULTILINE)


def options_of_commands() -> dict[str, set[str]]:
    """Return every command of the app with its options."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return {
        name: {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        for name, command in group.commands.items()
    }


COMMANDS = options_of_commands()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_document_names_is_there(document: Path) -> None:
    """Every relative link, every file in backticks and every test that a document names exists."""
    text = document.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    missing = [link for link in links if not (document.parent / link).exists()]
    paths = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w./@-]*)(?:::\w+)?`", text)
    missing += [path for path in paths if not (ROOT / path).exists()]
    for path, name in re.findall(r"(tests/\w+\.py)::(\w+)", text):
        if f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8"):
            missing.append(f"{path}::{name}")
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_into_a_document_meets_a_heading(document: Path) -> None:
    """Every link with a `#` names a heading of its document."""
    for target, anchor in re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", document.read_text(encoding="utf-8")):
        text = (document.parent / target if target else document).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_has_every_command_and_no_other() -> None:
    """The table of commands has the commands of the command line, each once."""
    assert sorted(first_words("Commands", "command")) == sorted(COMMANDS)


def test_options_in_the_table_of_commands_exist() -> None:
    """Each option in a command's row is one of that command."""
    rows = re.findall(r"^\| `(\w+)[^|]*\|(.*)\|$", section("Commands"), re.MULTILINE)
    used = {(name, option) for name, text in rows for option in re.findall(r"`[^`]*?(--[\w-]+)", text)}
    assert used
    assert [(name, option) for name, option in sorted(used) if option not in COMMANDS[name]] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_line_that_is_written_out_exists(document: Path) -> None:
    """Each `ticket-runner COMMAND --option` in code, in a line or in a block, is a command with that option."""
    text = document.read_text(encoding="utf-8")
    code = "\n".join([*re.findall(r"```sh\n(.*?)```", text, re.DOTALL), *re.findall(r"`([^`\n]+)`", text)])
    for name, rest in re.findall(r"(?:^|[\s|])ticket-runner +(?!ticket-runner)(\w+)([^\n|;]*)", code, re.MULTILINE):
        assert name in COMMANDS
        assert set(re.findall(r"(?<!\S)--[\w-]+", rest)) <= COMMANDS[name], name


def test_the_readme_has_every_key_of_a_ticket() -> None:
    """The table of keys is that of the reader of front matter."""
    assert tuple(first_words("A ticket", "key")) == KEYS


def test_the_readme_has_every_state_reason_and_exit_code() -> None:
    """The tables of states, of reasons to hold and of exit codes are those of the code."""
    assert first_words("States", "state") == [*State]
    assert first_words("States", "held:") == [*Reason]
    assert [int(code) for code in first_words("Commands", "exit code")] == [*Exit]


def test_the_readme_shows_the_floors_as_they_are() -> None:
    """The picture has the layers of import-linter, line by line, but for what is not written yet."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (floors,) = (contract["layers"] for contract in contracts if contract["id"] == "floors")
    names = [re.findall(r"\w+", layer) for layer in floors]
    there = [[name for name in layer if [*ROOT.glob(f"runner/{name}*")]] for layer in names]
    picture = section("How it is built").partition("none of its own line\n")[2].partition("\nrunner/")[0]
    assert [line.strip().partition("   ")[0].split() for line in picture.splitlines()] == there


def test_make_targets_exist() -> None:
    """Each `make` that a document shows is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    targets = {*re.findall(r"^(\w+):", makefile, re.MULTILINE), ".venv/.installed"}
    for document in DOCUMENTS:
        shown = re.findall(r"(?:^ *|`)make ([\w./-]+)", document.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(shown) <= targets, document


def test_the_first_steps_work_as_they_are_written(tmp_path: Path) -> None:
    """The block of commands of "Try it without a key" ends with a commit on the ticket's branch."""
    blocks = re.findall(r"```sh\n(.*?)```", section("Try it without a key"), re.DOTALL)
    turns = (Reply((ToolUse("Bash", {"command": "echo hello > hello.txt"}),)), Reply((Text("Done."),)))
    with ScriptedServer(Script((Scene("", turns),))) as server:
        steps = blocks[1].replace("http://127.0.0.1:8765", server.url)
        steps = steps.replace("/tmp/", f"{tmp_path}/")  # noqa: S108  what the README says
        assert steps.count(str(tmp_path)) == 2
        assert server.url in steps
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
        ran = subprocess.run(
            ["bash", "-eu"], input=steps, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stderr
    assert "+hello" in ran.stdout
    assert "Work on hello" in ran.stdout.splitlines()[-2]
