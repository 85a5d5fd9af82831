"""Make an environment of the servers: `python3 -m tools.server_environment TARGET --prefix /usr/lib/tandemq`.

    TARGET/bin/tandemq                       the command; it runs bin/python, a link to the Python that runs this tool
    TARGET/pyvenv.cfg                        makes that Python use this environment and nothing else of the machine
    TARGET/lib/python3.11/site-packages      TandemQ with the compiled engine, and its dependencies from the lock files

The Debian package and the image contain it. It works at PREFIX only, and only with the Python that made it. It has the
extras of servers: console, kafka, proxy, zookeeper. Tests and headers of dependencies are left out. Needs a C compiler,
the headers of Python, the module venv, and a package index that pip reaches; the standard library alone runs this tool.
"""

import argparse
import compileall
import csv
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ("requirements.lock", "requirements-console.lock")
EXTRAS = ("console", "kafka", "proxy", "zookeeper")
BUILDERS = ("cython", "setuptools")
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "src")
BUILT = ("__pycache__", "*.pyc", "*.so", "engine.c", "*.egg-info")
"""What builds leave behind in `src`."""
LEFT_OUT = (
    "**/tests",
    "**/*_tests.*.so",
    "**/*.a",
    "**/include",
    "bin",
    "**/*.pyi",
    "**/__pycache__",
    "*.dist-info/direct_url.json",
)
"""What servers do not need of the dependencies, and the scripts that pip makes."""


def name_of(requirement: str) -> str:
    """Return the normalized name of a package in a requirement."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    assert found is not None, f"{requirement!r} has no name"
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def server_requirements(extras: Sequence[str] = EXTRAS, root: Path = ROOT) -> list[str]:
    """Return the names of what the servers need directly, from pyproject.toml; `root`: of the sources."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(item for extra in extras for item in project["optional-dependencies"][extra])]
    return sorted({name_of(item) for item in listed})


def locked(texts: Iterable[str], names: Iterable[str]) -> str:
    """Return the blocks of lock files for some packages and all that those need.

    A block is a requirement, its hashes, and comments that name the packages that need it (`# via`).
    """
    blocks: dict[str, str] = {}
    needed_by: dict[str, set[str]] = {}
    for text in texts:
        for block in re.findall(r"^[A-Za-z0-9].*\n(?:[ \t].*\n)*", text, re.MULTILINE):
            name = name_of(block)
            blocks.setdefault(name, block)
            via = block.partition("# via")[2].replace("#", " ").split()
            needed_by.setdefault(name, set()).update(name_of(word) for word in via if word[0].isalnum())
    found = {name_of(name) for name in names}
    missing = found - blocks.keys()
    assert not missing, f"the lock files do not have {', '.join(sorted(missing))}"
    while more := {name for name, users in needed_by.items() if name not in found and users & found}:
        found |= more
    return "".join(blocks[name] for name in sorted(found))


def run(*words: str | Path, environ: Mapping[str, str]) -> None:
    """Run a command; its output is shown if it fails."""
    done = subprocess.run([*map(str, words)], env={**environ}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"server_environment: {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")


def install(site: Path, scratch: Path) -> None:
    """Install TandemQ and its dependencies into a directory, by pip of an environment in the directory `scratch`."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in LOCKS]
    builder = scratch / "builder"
    venv.create(builder, with_pip=True)
    python = builder / "bin" / "python"
    environ = {
        **os.environ,
        "TANDEMQ_ENGINE": "compiled",
        "LDFLAGS": "-s",
        "CFLAGS": f"-ffile-prefix-map={scratch}=.",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    environ.pop("PYTHONPATH", None)
    for name, packages in (("build.lock", BUILDERS), ("servers.lock", server_requirements())):
        (scratch / name).write_text(locked(texts, packages), encoding="utf-8")
    pip = (python, "-m", "pip", "--quiet")
    run(*pip, "install", "--require-hashes", "--no-deps", "-r", scratch / "build.lock", environ=environ)
    source = scratch / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns(*BUILT))
        else:
            shutil.copy(ROOT / name, source)
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", scratch, source, environ=environ)
    (wheel,) = scratch.glob("tandemq-*.whl")
    into = (*pip, "install", "--no-compile", "--no-deps", "--target", site)
    run(*into, "--only-binary", ":all:", "--require-hashes", "-r", scratch / "servers.lock", environ=environ)
    run(*into, wheel, environ=environ)


def is_there(site: Path, line: str) -> bool:
    """Return whether the file of a line in RECORD was not left out."""
    name = next(csv.reader([line]))[0]
    return not name.startswith("..") and (site / name).exists()


def make(target: Path, prefix: str) -> Path:
    """Make the environment; return its directory of packages."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = target / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="tandemq-environment-") as scratch:
        install(site, Path(scratch))
    for pattern in LEFT_OUT:
        for path in list(site.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for record in site.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if is_there(site, line)), encoding="utf-8")
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    (target / "bin").mkdir()
    (target / "bin" / "python").symlink_to(python)
    command = target / "bin" / "tandemq"
    command.write_text(
        f"#!{prefix}/bin/python -I\nimport sys\n\nfrom tandemq.cli import main\n\nsys.exit(main())\n", encoding="utf-8"
    )
    command.chmod(0o755)
    (target / "pyvenv.cfg").write_text(
        f"home = {python.parent}\ninclude-system-site-packages = false\nversion = {sysconfig.get_python_version()}\n",
        encoding="utf-8",
    )
    return site


def main(words: Sequence[str] | None = None) -> int:
    """Make an environment."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.server_environment", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("target", type=Path, help="a directory that does not exist")
    parser.add_argument("--prefix", default="/usr/lib/tandemq", help="where it will be; default: %(default)s")
    parser.add_argument(
        "--compile", action="store_true", help="add bytecode, which is never checked against the source"
    )
    options = parser.parse_args(words)
    if options.target.exists():
        parser.error(f"{options.target} exists already")
    site = make(options.target, options.prefix)
    if options.compile:
        compileall.compile_dir(
            site,
            quiet=1,
            stripdir=str(options.target),
            prependdir=options.prefix,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
