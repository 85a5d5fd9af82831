"""The units of systemd: valid, hardened, and of commands and options that exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tandemq.cli.main import COMMANDS
from tests.spec import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
KINDS = ("broker", "console", "kafka", "namesrv", "proxy")
EXPOSURE_MAX = 2.0


def setting(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


def test_each_kind_of_process_has_a_unit_that_reports_and_drains() -> None:
    assert [path.name for path in UNITS] == [
        f"tandemq-{kind}{'@' if kind == 'broker' else ''}.service" for kind in KINDS
    ]
    for unit, kind in zip(UNITS, KINDS, strict=True):
        (command,) = setting(unit, "ExecStart")
        program, name, *_ = shlex.split(command)
        assert (program, name) == ("/usr/bin/tandemq", kind)
        assert name in COMMANDS
        assert setting(unit, "Type") == ["notify"]
        # Otherwise children would be stopped before those that started them; shards outlive a killed main process.
        assert setting(unit, "KillMode") == ["process" if kind == "broker" else "mixed"]
        assert int(setting(unit, "WatchdogSec")[0]) >= 5, "the loop turns once a second"
        assert int(setting(unit, "TimeoutStopSec")[0]) >= 30
        assert setting(unit, "RestartPreventExitStatus") == ["2"]
        (variables,) = re.findall(r"\$(TANDEMQ_\w+)", command)
        assert f"\n{variables}=" in (ROOT / "deploy" / "config" / "default").read_text(encoding="utf-8")


@pytest.mark.services
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program is not None, "apt-get install systemd"
    for unit in UNITS:
        # It checks that the program is there, which it is only where the package is installed.
        text = unit.read_text(encoding="utf-8").replace("/usr/bin/tandemq", "/bin/true")
        copy = tmp_path / unit.name.replace("@.", "@a.")
        copy.write_text(text, encoding="utf-8")
        verified = subprocess.run([program, "verify", "--man=no", str(copy)], capture_output=True, text=True)
        # An unknown key is only a warning.
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, ""), unit.name
        limit = ["--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", "--no-pager"]
        rated = subprocess.run([program, "security", *limit, str(copy)], capture_output=True, text=True)
        assert rated.returncode == 0, rated.stdout + rated.stderr
        assert float(re.findall(r"exposure level .*: ([\d.]+)", rated.stdout)[0]) < EXPOSURE_MAX


@pytest.mark.services
def test_systemd_check_sees_unknown_settings_and_exposure(tmp_path: Path) -> None:
    bad = tmp_path / "bad.service"
    bad.write_text("[Service]\nExecStart=/bin/true\nWatchdogSecs=3\n", encoding="utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", "--man=no", str(bad)], capture_output=True, text=True)
    assert "WatchdogSecs" in verified.stderr
    limit = ["--offline=true", f"--threshold={int(EXPOSURE_MAX * 10)}", "--no-pager"]
    assert subprocess.run(["systemd-analyze", "security", *limit, str(bad)], capture_output=True).returncode != 0
