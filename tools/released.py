"""Install a release of releases.toml in an environment of its own: `python -m tools.released`.

    releases.toml ─► commit ─► git archive ─┬─► its lock files ──► environment ─┬─► installed below build/releases
                                            └─► its tools.release ─► wheel ──────┘
                                                                      SHA-256 as recorded, else nothing is installed

The wheel has the engine in Python, so that it has the same bytes on each machine. The environment is made once; its
packages have the hashes of that commit's lock files. Exit status 1: it could not be made.

`python -m tools.released record COMMIT` prints the entry that releases.toml gets for a commit.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from tools.file_lock import file_lock
from tools.server_environment import BUILDERS, EXTRAS, LOCKS, locked, server_requirements

ROOT = Path(__file__).resolve().parent.parent
RELEASES = ROOT / "releases.toml"
ENVIRONMENTS = ROOT / "build" / "releases"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FIELDS = {"version", "commit", "sha256"}
_SHOWN_LINES = 15


class Failure(Exception):
    """What is wrong, and what to do, for the user."""


@dataclass(frozen=True, slots=True)
class Release:
    """An entry of releases.toml: a commit, and the SHA-256 of its wheel with the engine in Python."""

    version: str
    commit: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Installed:
    """A release that is installed. `python`: its interpreter, which has it; `tandemq`: its command."""

    version: str
    commit: str
    sha256: str
    python: str
    tandemq: str


def releases(text: str) -> list[Release]:
    """Return the releases that the text of releases.toml lists, the newest last.

    Raises:
        Failure: the text is not of this form.
    """
    try:
        listed = tomllib.loads(text)["release"]
        found = [Release(**entry) for entry in listed]
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise Failure(f"releases.toml has no [[release]] with {', '.join(sorted(_FIELDS))}: {error}") from error
    for release in found:
        if not (_COMMIT.fullmatch(release.commit) and _SHA256.fullmatch(release.sha256)):
            raise Failure(f"releases.toml: {release.version} needs a commit of 40 and a sha256 of 64 hex digits")
    return found


def choose(version: str | None) -> Release:
    """Return the newest release of a version; None: the last one."""
    listed = releases(RELEASES.read_text(encoding="utf-8"))
    found = [release for release in listed if version in (None, release.version)]
    if not found:
        raise Failure(f"releases.toml has no {version}; it has {', '.join(release.version for release in listed)}")
    return found[-1]


def run(*words: str | Path, cwd: Path = ROOT, environ: Mapping[str, str] | None = None) -> str:
    """Run a command; returns its output.

    Raises:
        Failure: it failed; the text has the end of what it printed.
    """
    given = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TANDEMQ", "GIT_"))}
    command = [*map(str, words)]
    try:
        done = subprocess.run(
            command, cwd=cwd, env=given | dict(environ or {}), capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise Failure(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])
        raise Failure(f"{' '.join(command[:4])} … failed:\n{lines}")
    return done.stdout


def _lacks(commit: str, repository: Path) -> NoReturn:
    try:
        is_shallow = run("git", "rev-parse", "--is-shallow-repository", cwd=repository).strip() == "true"
    except Failure as failure:
        raise Failure(
            f"{repository} has no history, so commit {commit[:12]} cannot be built: tests of upgrades need a clone"
            " made by git"
        ) from failure
    if is_shallow:
        raise Failure(f"this shallow clone lacks commit {commit[:12]}: `git fetch --unshallow` brings it")
    raise Failure(
        f"this clone lacks commit {commit[:12]}: `git fetch origin` brings it if releases.toml names it rightly"
    )


def unpack(commit: str, tree: Path, repository: Path = ROOT) -> int:
    """Unpack the sources of a commit into a new directory; return the time of the commit, seconds since 1970.

    Raises:
        Failure: the clone lacks the commit.
    """
    try:
        run("git", "cat-file", "-e", f"{commit}^{{commit}}", cwd=repository)
    except Failure:
        _lacks(commit, repository)
    date = int(run("git", "show", "-s", "--format=%ct", commit, cwd=repository))
    tree.mkdir(parents=True)
    archive = tree.with_suffix(".tar")
    run("git", "archive", "--format=tar", "--output", archive.absolute(), commit, cwd=repository)
    with tarfile.open(archive) as file:
        file.extractall(tree, filter="data")
    archive.unlink()
    return date


def check_wheel(wheel: Path, release: Release) -> None:
    """Raise Failure if the wheel is not the recorded one."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != release.sha256:
        raise Failure(
            f"the wheel of {release.version}, commit {release.commit[:12]}, has SHA-256 {found}, and releases.toml"
            f" records {release.sha256}: if the commit is right, this machine's zlib compresses in another way; use"
            " that of Debian or Ubuntu"
        )


def _install(target: Path, commit: str) -> Path:
    """Make the environment, without TandemQ; return the wheel of the commit."""
    tree = target / "tree"
    date = unpack(commit, tree)
    environment = target / "environment"
    venv.create(environment, symlinks=True)
    python = environment / "bin" / "python"
    lock = target / "packages.lock"
    texts = [(tree / name).read_text(encoding="utf-8") for name in LOCKS]
    project = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [extra for extra in EXTRAS if extra in project["optional-dependencies"]]  # it may lack a newer one
    lock.write_text(locked(texts, [*server_requirements(extras, tree), *BUILDERS]), encoding="utf-8")
    _pip(python, "--no-compile", "--require-hashes", "--only-binary", ":all:", "-r", lock)
    environ = {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "SOURCE_DATE_EPOCH": str(date)}
    words = ("-m", "tools.release", "--directory", target / "dist", "build", "--engine", "python")
    run(python, *words, cwd=tree, environ=environ)
    (wheel,) = (target / "dist").glob("*.whl")
    shutil.rmtree(tree)
    return wheel


def _pip(python: Path, *words: str | Path) -> None:
    """Install into an environment that has no pip, by that of this one."""
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", *words)


def install(release: Release, directory: Path = ENVIRONMENTS) -> Installed:
    """Install a release, unless it is installed for this Python.

    Raises:
        Failure: it cannot be built, or has other bytes than recorded.
    """
    target = directory / f"{release.version}-{release.commit[:12]}"
    command = target / "environment" / "bin"
    made = Installed(**asdict(release), python=str(command / "python"), tandemq=str(command / "tandemq"))
    mark, facts = target / "installed.json", json.dumps({**asdict(made), "for": sys.version})
    with file_lock(target.with_suffix(".lock")):
        if not mark.exists() or mark.read_text(encoding="utf-8") != facts:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            wheel = _install(target, release.commit)
            check_wheel(wheel, release)
            _pip(command / "python", "--no-index", wheel)
            mark.write_text(facts, encoding="utf-8")
    return made


def entry(commit: str, directory: Path) -> str:
    """Return the entry of releases.toml for a commit."""
    full = run("git", "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}").strip()
    target = directory / f"record-{full[:12]}"
    with file_lock(target.with_suffix(".lock")):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        wheel = _install(target, full)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        shutil.rmtree(target)
    version = wheel.name.split("-")[1]
    return f'[[release]]\nversion = "{version}"\ncommit = "{full}"\nsha256 = "{digest}"'


def main(words: Sequence[str] | None = None) -> int:
    """Install or record; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.released", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", help="of the release to install; default: the last one")
    parser.add_argument("--json", action="store_true", help="print version, commit, sha256, python and tandemq as JSON")
    parser.add_argument("action", nargs="?", choices=["record"], help="print the entry for a commit instead")
    parser.add_argument("commit", nargs="?", default="HEAD", help="of that entry; default: HEAD")
    options = parser.parse_args(words)
    try:
        if options.action == "record":
            print(entry(options.commit, ENVIRONMENTS))
            return 0
        made = install(choose(options.version))
    except Failure as failure:
        print(f"released: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(asdict(made)) if options.json else f"{made.version} ({made.commit[:12]}): {made.tandemq}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
