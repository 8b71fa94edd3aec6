"""What `make demo` shows: the sample, the bill, and that nothing is left of it."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.offline.demo.account import Paid, not_as_meant
from runner.offline.demo.sample import FILES, INTERRUPTED, SAMPLES, SCRIPT, SLOW, Sample
from runner.offline.demo.stage import Stage
from runner.offline.script import Reply
from tickets.front_matter import parse

DEMO = (sys.executable, "-m", "runner.offline.demo")
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
RESUMED = [
    Paid("easy", "done", 1, 1, 500, 500, paid_cut=False, served_cut=False, replies=3),
    Paid(INTERRUPTED, "done", 2, 1, 900, 900, paid_cut=True, served_cut=True, replies=5),
]
FRESH = [RESUMED[0], replace(RESUMED[1], sessions=2, paid_microusd=1500, served_microusd=1500, replies=9)]


def environment(tmp_path: Path, path: str) -> dict[str, str]:
    """Return what the demo gets: a home that is not there, no key, and a place for its directory."""
    (tmp_path / "tmp").mkdir()
    return {"PATH": path, "HOME": str(tmp_path / "nobody"), "TMPDIR": str(tmp_path / "tmp")}


def left_of(tmp_path: Path) -> tuple[list[Path], dict[int, str]]:
    """Return the files and processes that a demo left."""
    return [*(tmp_path / "tmp").iterdir()], Stage(tmp_path / "tmp", "").processes()


def write(directory: Path, sample: Sample, *, edits_of: str) -> None:
    """Write the sample repository with the edits that the scripted model makes in one of its files."""
    for name, content in FILES.items():
        (directory / name).write_text(content)
    for step in sample.steps:
        for call in step.calls:
            if call.name == "Edit" and call.input["file_path"] == edits_of:
                path, old = directory / edits_of, str(call.input["old_string"])
                assert path.read_text().count(old) == 1
                path.write_text(path.read_text().replace(old, str(call.input["new_string"])))


def test_each_ticket_is_taken_and_has_a_scene_of_its_own() -> None:
    """Each sample is a ticket with a check, and the script answers its text with its own scene."""
    for sample in SAMPLES:
        spec = parse(f"{sample.id}.md", sample.id, sample.markdown.encode())
        assert spec.verify == (sample.verify,)
        assert SCRIPT.scene_for(f"{spec.title}\n\n{spec.text}") == sample.scene


def test_each_reply_costs_whole_microdollars() -> None:
    """No reply costs a part of a micro-dollar, so two ledgers that round differently must agree."""
    for scene in SCRIPT.scenes:
        for reply in scene.turns:
            assert isinstance(reply, Reply)
            assert [getattr(reply, name) % 20 for name in TOKENS] == [0, 0, 0, 0]


def test_new_test_sees_the_defect(tmp_path: Path) -> None:
    """The sample's own tests pass; the test that the scripted model adds fails until it mends the code."""
    sample = next(sample for sample in SAMPLES if sample.id == INTERRUPTED)
    codes = []
    for name, edited in (("as-it-was", ()), ("tested", ("test_backoff.py",)), ("mended", ("backoff.py",))):
        directory = tmp_path / name
        directory.mkdir()
        write(directory, sample, edits_of=edited[0] if edited else "")
        done = subprocess.run((sys.executable, "-m", "unittest"), cwd=directory, capture_output=True, check=False)
        codes.append(done.returncode)
    assert codes == [0, 1, 0]


def test_stage_finds_and_ends_what_came_of_it(tmp_path: Path) -> None:
    """A process that lost its parent is found by the directory in its environment, and ended."""
    stage = Stage(tmp_path / "stage", os.environ["PATH"])
    stage.root.mkdir()
    subprocess.run(("sh", "-c", "sleep 60 >&- 2>&- &"), env=stage.environment, check=True)
    stage.wait_for("sleep 60")
    stage.end()
    assert stage.processes() == {}


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"paid_microusd": 899}, "paid $0.000899, and the API served $0.000900"),
        ({"paid_cut": False}, "marked as cut: False"),
        ({"state": "held"}, "is held"),
    ],
)
def test_one_microdollar_or_mark_that_differs_is_a_problem(broken: dict[str, int | bool | str], said: str) -> None:
    """A ticket whose two records differ by a micro-dollar, or in the mark, or that is not done, is a problem."""
    assert [each.problems for each in RESUMED] == [[], []]
    assert said in replace(RESUMED[1], **broken).problems[0]  # type: ignore[arg-type]  # each value is of its field


def test_passes_that_show_nothing_are_a_problem() -> None:
    """A pass without the kill, or in which the session did not go on, or that saved nothing, is a problem."""
    assert not_as_meant(RESUMED, FRESH, interrupted=INTERRUPTED) == []
    assert len(not_as_meant(RESUMED, RESUMED, interrupted=INTERRUPTED)) == 2
    assert len(not_as_meant(FRESH, FRESH, interrupted=INTERRUPTED)) == 2
    assert len(not_as_meant([RESUMED[0], replace(RESUMED[1], runs=1)], FRESH, interrupted=INTERRUPTED)) == 1


def test_what_does_not_hold_is_said(tmp_path: Path) -> None:
    """On a machine without git the demo says so, returns 1 and leaves nothing."""
    env = environment(tmp_path, str(tmp_path))
    done = subprocess.run(DEMO, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "did not hold: " in done.stdout
    assert "'git'" in done.stdout
    assert left_of(tmp_path) == ([], {})


@pytest.mark.proof
@pytest.mark.timeout(150)
def test_demo_holds(tmp_path: Path) -> None:
    """Without key and home the demo kills the daemon, finishes, agrees with the API's record, and leaves nothing."""
    env = environment(tmp_path, os.environ["PATH"])
    done = subprocess.run(DEMO, env=env, capture_output=True, text=True, timeout=140, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count("kill -9") == 2
    assert done.stdout.count("its session goes on") == 1
    assert done.stdout.count("a new session begins") == 1
    row = next(line for line in reversed(done.stdout.splitlines()) if line.startswith(INTERRUPTED))
    resumed_served, resumed, fresh_served, fresh, more = map(float, re.findall(r"\$([\d.]+)", row))
    assert (resumed, fresh) == (resumed_served, fresh_served)
    assert fresh - resumed == pytest.approx(more)
    assert more > 0
    assert left_of(tmp_path) == ([], {})


@pytest.mark.proof
def test_demo_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """Told to stop while an agent's command runs, the demo ends every process and removes its directory."""
    env = environment(tmp_path, os.environ["PATH"])
    with subprocess.Popen(DEMO, env=env, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert any(f"Bash: {SLOW}" in line for line in demo.stdout)
        demo.send_signal(signal.SIGTERM)
        rest = demo.stdout.read()
        assert demo.wait() == 130, rest
    assert left_of(tmp_path) == ([], {})
