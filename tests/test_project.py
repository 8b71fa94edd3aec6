"""What is true of the project as a whole: its files, its lock, its tests and its dependencies."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
WHOLE = (ROOT / "runner" / "cli.py").exists()  # some truths hold only once everything is there
TRACKED = [
    ROOT / name
    for name in subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    .stdout.rstrip("\0")
    .split("\0")
    if (ROOT / name).is_file()
]
SOURCES = [
    path for path in TRACKED if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in {"runner", "tickets"}
]
TESTS = [path for path in TRACKED if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]


class Node(NamedTuple):
    """A node of a test file's syntax, and where it is."""

    node: ast.AST
    where: str


NODES = [
    Node(node, f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}")
    for path in TESTS
    for node in ast.walk(ast.parse(path.read_text()))
]


def called(node: ast.AST) -> str:
    """Return the last name of what `node` calls, empty if it calls nothing by name."""
    match node:
        case ast.Call(ast.Name(name)) | ast.Call(ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def test_files_hold_no_foreign_words() -> None:
    """No tracked file names a package registry's host, the place of a checkout, or work left for later."""
    words = ("py" + "pi.org", "python" + "hosted", "registry." + "npmjs", f"{ROOT}/", "pragma: " + "no ")
    markers = ("TO" + "DO", "FIX" + "ME", "X" * 3)
    foreign = re.compile("|".join([*map(re.escape, words), *(rf"\b{marker}\b" for marker in markers)]))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TRACKED
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if foreign.search(line)
    ]
    assert found == []


def test_lock_has_hashes_and_no_addresses() -> None:
    """The lock pins every package with hashes and says nothing about where it came from."""
    assert "://" not in LOCK
    assert "file:" not in LOCK
    assert "--index" not in LOCK
    entries = re.findall(r"^(?![#\s])(?:.*\\\n)*.+$", LOCK, re.MULTILINE)
    assert len(entries) > 50
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_lock_satisfies_pyproject() -> None:
    """The lock has every package that pyproject.toml asks for, in a version that it accepts."""
    locked = {
        canonicalize_name(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", LOCK, re.MULTILINE)
    }
    asked = [
        Requirement(text)
        for group in (
            PYPROJECT["build-system"]["requires"],
            PYPROJECT["project"]["dependencies"],
            *PYPROJECT["project"]["optional-dependencies"].values(),
            *PYPROJECT["dependency-groups"].values(),
        )
        for text in group
    ]
    missing = [
        str(requirement)
        for requirement in asked
        if not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"))
    ]
    assert missing == []


def test_each_dependency_is_imported_and_each_import_declared() -> None:
    """What runner/ and tickets/ import from outside is what pyproject.toml declares, no less and no more."""
    declared = {canonicalize_name(Requirement(text).name) for text in PYPROJECT["project"]["dependencies"]}
    declared -= {"tzdata"}  # what it holds is data, and zoneinfo finds it by itself
    imported = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names):
                    imported |= {alias.name.split(".")[0] for alias in names}
                case ast.ImportFrom(str(module), level=0):
                    imported.add(module.split(".")[0])
                case _:
                    pass
    distributions = packages_distributions()
    foreign = imported - sys.stdlib_module_names - {"runner", "tickets"}
    used = {canonicalize_name(name) for module in foreign for name in distributions.get(module, [module])}
    assert used - declared == set()
    if WHOLE:
        assert declared - used == set()


def test_pure_files_are_covered_and_kept_pure() -> None:
    """The files whose every branch must be covered are those that import-linter keeps pure."""
    covered = {
        name.removesuffix(".py").replace("/", ".") for name in PYPROJECT["tool"]["coverage"]["report"]["include"]
    }
    contracts = {contract["id"]: contract for contract in PYPROJECT["tool"]["importlinter"]["contracts"]}
    pure = set(contracts["pure"]["source_modules"])
    assert pure == covered


def test_every_test_says_one_true_thing() -> None:
    """Every test has a docstring of one sentence that ends with a period."""
    unclear = [
        f"{where} {node.name}"
        for node, where in NODES
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        if not re.fullmatch(r"(?:(?![.!?]\s+[A-Z]).)+\.", ast.get_docstring(node) or "", re.DOTALL)
    ]
    assert unclear == []


def test_no_test_sleeps() -> None:
    """Tests wait for what they need, not for time to pass."""
    assert [where for node, where in NODES if called(node) == "sleep"] == []


def test_no_test_replaces_parts_of_ours() -> None:
    """No test imports a mock library or sets attributes through monkeypatch."""
    mocks = {"mo" + "ck", "unittest." + "mo" + "ck", "pytest_" + "mo" + "ck"}
    found = []
    for node, where in NODES:
        match node:
            case ast.Import(names):
                modules = {alias.name for alias in names}
            case ast.ImportFrom(str(module), names):
                modules = {module} | {f"{module}.{alias.name}" for alias in names}
            case ast.Attribute(ast.Name("monkeypatch"), "setattr" | "delattr"):
                modules = mocks
            case _:
                modules = set()
        found += [where] if modules & mocks else []
    assert found == []


def test_no_test_is_skipped_without_a_reason() -> None:
    """A test that is skipped or expected to fail says why."""
    names = {"skip", "skipif", "xfail", "importorskip"}
    explained = {
        id(node.func)
        for node, _ in NODES
        if isinstance(node, ast.Call)
        if any(keyword.arg == "reason" for keyword in node.keywords) or (called(node) == "skip" and node.args)
    }
    silent = [
        where
        for node, where in NODES
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value) in {"pytest", "pytest.mark"}
        if id(node) not in explained
    ]
    assert silent == []


@pytest.mark.proof
def test_wheel_holds_both_packages_and_the_command(tmp_path: Path) -> None:
    """A wheel built from the checkout has runner/, tickets/ and the command, and neither tests nor tools."""
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", tmp_path)
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, ROOT], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("ticket_runner-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"runner", "tickets"}
    assert {str(path.relative_to(ROOT)) for path in SOURCES} <= set(names)
    assert "ticket-runner = runner.cli:main" in entry_points
