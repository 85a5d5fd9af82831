"""The files of a release, built and checked: `python -m tools.release build`, `python -m tools.release check`.

    src and pyproject.toml ──► sdist ──► wheel with the engine in Python ──►┐
                                 └─────► wheel with the compiled engine ──►│ dist/ ──► check ──► SHA256SUMS
    locks (tools/sbom.py) ─────────────► bill of materials, CycloneDX ────►┘

Wheels are built from the sdist. The same sources, packages of the environment and compiler give the same bytes, at any
place and time: all dates are those of the last commit, or SOURCE_DATE_EPOCH. Exit status 1: a build or a check failed.
"""

import argparse
import fnmatch
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import tandemq
from tools import sbom

ROOT = Path(__file__).resolve().parent.parent
CHECKERS = ROOT / ".venv-release" / "bin" / "python"
"""The environment with twine and CycloneDX's schema; `make release` makes it."""
ENGINES = ("python", "compiled")
SOURCES = ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "NOTICE", "README.md", "pyproject.toml", "setup.py", "src")
"""What is built; everything below src is part of it, except what builds and editable installations leave there."""
LEFT_BEHIND = ("__pycache__", "*.pyc", "*.so", "*.egg-info", "engine.c")
SUMS = "SHA256SUMS"
SAFE = ("PATH", "HOME", "TMPDIR", "CC")
"""Variables that builds get; others, such as CFLAGS, would change what they make."""
_HOOK = """
import os, sys
os.umask(0o022)
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
_VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1], encoding="utf-8").read())
sys.exit(None if fault is None else str(fault))
"""


class Failure(Exception):
    """What could not be built, or which check failed, for the user."""


def release_date(environ: Mapping[str, str] = os.environ) -> int:
    """Return the date of a release, seconds since 1970: SOURCE_DATE_EPOCH, else that of the last commit."""
    if given := environ.get("SOURCE_DATE_EPOCH"):
        if not given.isdecimal():
            raise Failure(f"SOURCE_DATE_EPOCH is {given!r}, not a number of seconds since 1970")
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0 or not found.stdout.strip():
        raise Failure(f"git names no last commit of {ROOT}: set SOURCE_DATE_EPOCH")
    return int(found.stdout)


def normalize(archive: Path, date: int) -> None:
    """Rewrite a .tar.gz: members by name, with one date, no owner, and modes that no umask has changed."""
    packed = io.BytesIO()
    with tarfile.open(archive) as source, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            if not (member.isfile() or member.isdir()):
                raise Failure(f"{archive.name} has {member.name}, which is neither a file nor a directory")
            content = source.extractfile(member) if member.isfile() else None
            member.mtime, member.uid, member.gid, member.uname, member.gname = date, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            target.addfile(member, content)
    with archive.open("wb") as file, gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=date) as zipped:
        zipped.write(packed.getvalue())


def _hook(name: str, tree: Path, target: Path, date: int, engine: str) -> Path:
    """Call a function of setuptools' build backend in a directory of sources; returns the file that it made."""
    environ = {key: os.environ[key] for key in SAFE if key in os.environ}
    # Debugging information would name the directory of the build.
    environ |= {"SOURCE_DATE_EPOCH": str(date), "TANDEMQ_ENGINE": engine, "CFLAGS": "-g0", "LC_ALL": "C.UTF-8"}
    made = target / name
    made.mkdir(parents=True)
    command = [sys.executable, "-P", "-s", "-c", _HOOK, name, str(made)]
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        hint = "\nWithout a C compiler and headers of Python: --engine python" if engine == "compiled" else ""
        raise Failure(f"{name} failed for the engine {engine}:\n{lines}{hint}")
    (file,) = made.iterdir()
    return file


def build_sdist(target: Path, date: int) -> Path:
    """Build the sdist from the working tree; returns its path below the target, a directory."""
    tree = target / "tree"
    tree.mkdir(parents=True)
    for path in (ROOT / name for name in SOURCES):
        if path.is_dir():
            shutil.copytree(path, tree / path.name, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        else:
            shutil.copyfile(path, tree / path.name)
    file = _hook("build_sdist", tree, target, date, "")
    normalize(file, date)
    return file


def build_wheel(sdist: Path, target: Path, date: int, engine: str) -> Path:
    """Build a wheel from the sdist alone; returns its path below the target, a directory."""
    tree = target / "tree"
    with tarfile.open(sdist) as archive:
        archive.extractall(tree, filter="data")
    (sources,) = tree.iterdir()
    return _hook("build_wheel", sources, target, date, engine)


def build_all(engines: Sequence[str], directory: Path, date: int) -> list[Path]:
    """Build the sdist and one wheel for each engine, in a new directory."""
    sdist = build_sdist(directory / "sdist", date)
    return [sdist, *(build_wheel(sdist, directory / engine, date, engine) for engine in engines)]


def differences(first: Sequence[Path], second: Sequence[Path]) -> list[str]:
    """Return the names of files of two builds that differ."""
    return [
        one.name
        for one, other in zip(first, second, strict=True)
        if one.name != other.name or one.read_bytes() != other.read_bytes()
    ]


def version_faults(changelog: str, tag: str | None) -> list[str]:
    """Return what disagrees with `tandemq.__version__`: the changelog's first heading, and the tag of a release."""
    version = tandemq.__version__
    heading = re.search(r"^## (\S+)(.*)$", changelog, re.MULTILINE)
    faults = []
    if heading is None or heading[1] != version:
        faults.append(f"CHANGELOG.md begins with {heading[1] if heading else 'no version'}, not {version}")
    if tag is not None and tag != f"v{version}":
        faults.append(f"the tag is {tag}, not v{version}")
    if tag is not None and heading is not None and "unreleased" in heading[2]:
        faults.append(f"CHANGELOG.md calls {heading[1]} unreleased")
    return faults


def wheel_faults(wheel: Path) -> list[str]:
    """Return what is wrong with a wheel: its version, members that do not belong there, its engine."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        metadata = [name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
        version = message_from_bytes(archive.read(metadata[0]))["Version"] if metadata else None
    faults = []
    if version != tandemq.__version__:
        faults.append(f"{wheel.name} is of version {version}, not {tandemq.__version__}")
    tops = {name.partition("/")[0] for name in names}
    allowed = re.compile(r"tandemq|tandemq\.libs|pyspark_rocketmq(_\w+)?|tandemq-[\d.]+\w*\.dist-info")
    faults += [f"{wheel.name} has {top}" for top in sorted(tops) if not allowed.fullmatch(top)]
    engines = [name for name in names if re.fullmatch(r"tandemq/_engine\..+", name)]
    if len(engines) != (not wheel.name.endswith("-py3-none-any.whl")):
        faults.append(f"{wheel.name} has {len(engines)} compiled engines")
    return faults


def is_left_behind(name: str) -> bool:
    """Return whether builds and editable installations leave files or directories of this name behind."""
    return any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_BEHIND)


def sdist_faults(sdist: Path) -> list[str]:
    """Return what is wrong with the sdist: paths outside of its directory, sources that are missing."""
    top = f"tandemq-{tandemq.__version__}"
    with tarfile.open(sdist) as archive:
        names = {member.name for member in archive.getmembers() if member.isfile()}
    faults = [f"{sdist.name} has {name}" for name in sorted(names) if PurePosixPath(name).parts[0] != top]
    paths = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    sources = [path.relative_to(ROOT) for path in paths]
    wanted = {f"{top}/{path}" for path in sources if not any(map(is_left_behind, path.parts))}
    faults += [f"{sdist.name} lacks {name}" for name in sorted(wanted - names)]
    return faults


def checked_by(program: Sequence[str | Path], what: str) -> list[str]:
    """Run a program of the environment of checks; returns what it complains about."""
    done = subprocess.run([CHECKERS, *program], cwd=ROOT, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"{what}:\n{(done.stdout + done.stderr).strip()}"]


def check(directory: Path, date: int, tag: str | None) -> list[str]:
    """Check all files of a release, write its bill of materials and checksums; returns lines to print."""
    if not CHECKERS.exists():
        raise Failure(f"{CHECKERS.relative_to(ROOT)} is missing: `make release` and `make release-check` make it")
    version = tandemq.__version__
    bill = directory / f"tandemq-{version}.cdx.json"
    sdists = sorted(directory.glob("*.tar.gz"))
    wheels = sorted(directory.glob("*.whl"))
    others = (
        {path.name for path in directory.glob("*")} - {path.name for path in [*sdists, *wheels]} - {bill.name, SUMS}
    )
    if [path.name for path in sdists] != [f"tandemq-{version}.tar.gz"] or not wheels or others:
        found = ", ".join(sorted(path.name for path in directory.glob("*"))) or "nothing"
        raise Failure(f"{directory} has to have tandemq-{version}.tar.gz and wheels, and nothing else; it has {found}")
    try:
        bill.write_text(sbom.text(date), encoding="utf-8")
    except sbom.Failure as failure:
        raise Failure(f"no bill of materials: {failure}") from failure
    faults = version_faults((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), tag)
    faults += sdist_faults(sdists[0])
    for wheel in wheels:
        faults += wheel_faults(wheel)
    faults += checked_by(["-m", "twine", "check", "--strict", *sdists, *wheels], "twine check")
    faults += checked_by(["-c", _VALIDATE, bill], f"{bill.name} is not valid CycloneDX")
    if faults:
        raise Failure("\n".join(faults))
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in [*sdists, *wheels, bill]}
    (directory / SUMS).write_text("".join(f"{sums[name]}  {name}\n" for name in sorted(sums)), encoding="utf-8")
    return [f"{sums[name][:16]}…  {(directory / name).stat().st_size:>9,}  {name}" for name in sorted(sums)]


def build(directory: Path, engines: Sequence[str], date: int, *, is_twice: bool) -> list[str]:
    """Build into the directory, without what earlier builds left there; returns lines to print."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandemq-release-") as base:
        files = build_all(engines, Path(base, "first"), date)
        if is_twice:
            again = build_all(engines, Path(base, "second", "elsewhere"), date)
            if wrong := differences(files, again):
                raise Failure(f"a second build in another directory made other bytes: {', '.join(wrong)}")
        for old in [*directory.glob("tandemq-*"), directory / SUMS]:
            old.unlink(missing_ok=True)
        for file in files:
            shutil.copy(file, directory)
    times = "twice, with the same bytes: " if is_twice else ""
    return [f"built {times}{', '.join(file.name for file in files)}"]


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="of the files; default: dist")
    commands = parser.add_subparsers(dest="command", required=True)
    build_parser = commands.add_parser("build", help="build the sdist, and wheels for this machine's Python")
    build_parser.add_argument(
        "--engine", action="append", choices=ENGINES, help="build the wheel with this engine only; default: both"
    )
    build_parser.add_argument("--twice", action="store_true", help="fail if a second build makes other bytes")
    check_parser = commands.add_parser("check", help="check the files, and write the bill of materials and SHA256SUMS")
    check_parser.add_argument("--tag", help="of the release, v1.2.3: version and changelog have to agree with it")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Build or check; return the exit status."""
    options = options_of(words)
    begun = time.monotonic()
    try:
        date = release_date()
        if options.command == "build":
            lines = build(options.directory, options.engine or ENGINES, date, is_twice=options.twice)
        else:
            lines = check(options.directory, date, options.tag)
            lines.append(f"checked {len(lines)} files of {tandemq.__version__}")
    except Failure as failure:
        print(f"release: {failure}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    print(f"{time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
