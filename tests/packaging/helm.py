"""Helm for the tests, and the validation of what it renders: both made once, below build/.

The command `helm` of this machine is used if there is one. Otherwise Go builds it from its module. A Go before 1.22, as
Debian 12 has it, first gets a newer one, which is a Go module itself; Go checks both against its checksum database.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.spec import ROOT

CHART = ROOT / "deploy" / "helm" / "tandemq"
BUILT = ROOT / "build" / "helm"
VERSION = "v3.16.4"
GO_NEEDED = (1, 22)
TOOLCHAIN = "golang.org/toolchain@v0.0.1-go1.22.12.linux-"
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
VERSIONS = ("1.28", "1.33", "1.37")
"""Versions of Kubernetes: the oldest that the chart permits, one between, and the newest with a schema."""
LOCK = ROOT / "requirements-kubernetes.lock"
PROGRAM = Path(__file__).with_name("kubernetes_documents.py")


def run(*words: str | Path, text: str = "", environ: dict[str, str] | None = None) -> str:
    """Run a command that has to succeed, and return its output."""
    environ = {**os.environ, **(environ or {})}
    done = subprocess.run(list(map(str, words)), input=text, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, f"{' '.join(map(str, words))}:\n{done.stdout}{done.stderr}"
    return done.stdout


@cache
def program() -> Path:
    """Return Helm, built if this machine has none."""
    found = shutil.which("helm")
    if found is not None:
        return Path(found)
    target = BUILT / VERSION
    if not (target / "helm").is_file():
        target.mkdir(parents=True, exist_ok=True)
        environ = {"GOBIN": str(target), "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-trimpath"}
        run(_go(), "install", f"helm.sh/helm/v3/cmd/helm@{VERSION}", environ=environ)
    return target / "helm"


def _go() -> Path:
    found = shutil.which("go")
    assert found is not None, "apt-get install golang-go"
    version = re.search(r"go(\d+)\.(\d+)", run(found, "version"))
    assert version is not None
    if (int(version[1]), int(version[2])) >= GO_NEEDED:
        return Path(found)
    return newer_go(Path(found))


def newer_go(go: Path) -> Path:
    """Download a Go that can build Helm."""
    module = TOOLCHAIN + PROCESSORS[platform.machine()]
    facts = json.loads(run(go, "mod", "download", "-json", module))
    root = Path(facts["Dir"])
    # Files of modules are not executable.
    for path in (*(root / "bin").iterdir(), *(root / "pkg" / "tool").rglob("*")):
        if path.is_file():
            path.chmod(0o755)
    return root / "bin" / "go"


@cache
def validator() -> Path:
    """Return the Python of an environment with kubernetes-validate, made if its lock file is new."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    directory = BUILT / f"validator-{digest}"
    python = directory / "bin" / "python"
    if not (directory / ".ready").exists():
        run(sys.executable, "-m", "venv", "--clear", directory)
        run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "-r", LOCK)
        (directory / ".ready").touch()
    return python


def documents(*options: str) -> list[dict[str, Any]]:
    """Render the chart with options of `helm template`, and return its objects, which are valid."""
    text = run(program(), "template", "queues", CHART, "--namespace", "apps", "--kube-version", "1.33.0", *options)
    result = json.loads(run(validator(), PROGRAM, *VERSIONS, text=text))
    assert result["problems"] == []
    found: list[dict[str, Any]] = result["documents"]
    return found


def refusal(*options: str) -> str:
    """Return why Helm does not render the chart with these options."""
    words = [str(program()), "template", "queues", str(CHART), "--kube-version", "1.33.0", *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr
