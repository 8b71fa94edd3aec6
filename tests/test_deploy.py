"""What is shipped for the operator: the example configuration and the unit."""

import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from runner.config import Clocks, Config, template
from runner.errors import Exit

DEPLOY = Path(__file__).parent.parent / "deploy"
UNIT = DEPLOY / "ticket-runner@.service"


class _Unit(ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service() -> dict[str, str]:
    """Return the unit's [Service] section."""
    parser = _Unit(interpolation=None)
    parser.read(UNIT)
    return dict(parser["Service"])


def test_the_example_is_the_template() -> None:
    """The shipped configuration is what `init` writes, to the byte, with the unit's state directory."""
    example, state = DEPLOY / "ticket-runner.toml", Path("/var/lib/ticket-runner/example")
    assert example.read_text() == template(Path("/srv/git/example.git"), state_directory=state)
    assert Config.load(example, {}).name == "example"
    assert service()["StateDirectory"] == "ticket-runner/%i"


def test_the_unit_agrees_with_the_daemon() -> None:
    """The unit gives a drain its time and a minute, and does not restart what only a person can mend."""
    unit = service()
    assert int(unit["TimeoutStopSec"].removesuffix("s")) >= Clocks.model_fields["drain_s"].default + 60
    assert {int(code) for code in unit["RestartPreventExitStatus"].split()} == {Exit.USAGE, Exit.CONFIG}
    assert (unit["Type"], unit["Restart"], unit["KillMode"]) == ("exec", "always", "mixed")
    assert unit["LoadCredential"].startswith("anthropic-api-key:")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd on this machine")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """What systemd checks finds nothing wrong with an instance of the unit, and little that it is exposed to."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/ticket-runner", "/bin/true"))
    instance = tmp_path / "ticket-runner@example.service"
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", instance], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    secured = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert secured.returncode == 0, secured.stdout
