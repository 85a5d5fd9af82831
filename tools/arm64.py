"""The compiled engine on ARM64, made and tried on another machine: `python3 -m tools.arm64`.

    engine.pyx ──► Cython ──► aarch64-linux-gnu-gcc ──► tandemq/_engine.….so ──►┐
    packages of Debian for arm64 (mmdebstrap) ──► Python and its headers     ──►│ qemu-aarch64-static ──► pytest
    packages of requirements.lock for aarch64                                ──►┘

Qemu runs the instructions of ARM64 on this machine's kernel. It shows no races of memory accesses, which ARM64 orders
less strictly, and no speed. All is kept in build/arm64; what is deleted is made again. Needs the rights of root.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import clean_machine, sbom

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src" / "tandemq" / "engine"
PYTHON = "python3.11"
SUITE = "bookworm"
TRIPLET = "aarch64-linux-gnu"
SUFFIX = f".cpython-311-{TRIPLET}.so"
PROGRAMS = (
    ("mmdebstrap", "mmdebstrap"),
    (f"{TRIPLET}-gcc", "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    ("qemu-aarch64-static", "qemu-user-static"),
)
PACKAGES = {"click", "hypothesis", "isal", "msgspec", "numpy", "pytest", "pytest-timeout", "rich"}
"""What the tests of the engine import, beside the package."""
PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in (17, 26, 28, 34)))
TESTS = ("tests/unit/engine",)


class Failure(Exception):
    """What failed, for the user."""


def run(*words: str | Path, environ: Mapping[str, str] | None = None) -> None:
    """Run a command in the repository. Raises Failure if it fails."""
    done = subprocess.run(words, cwd=ROOT, env=None if environ is None else {**os.environ, **environ}, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(map(str, words[:4]))} … ended with {done.returncode}")


def check_machine() -> None:
    """Raise Failure if a program is missing."""
    missing = [package for program, package in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise Failure(f"not installed: apt-get install --no-install-recommends {' '.join(missing)}")


def make_root(root: Path, sources: Path) -> None:
    """Unpack Python for ARM64 with its headers; nothing of it is run during that."""
    packages = f"{PYTHON},lib{PYTHON}-dev,libstdc++6"  # the last one for numpy
    command = ["mmdebstrap", "--quiet", "--variant=extract", "--architectures=arm64", f"--include={packages}"]
    root.parent.mkdir(parents=True, exist_ok=True)
    chosen = root.parent / sources.name
    chosen.write_text(clean_machine.of_suite(sources.read_text(encoding="utf-8"), SUITE), encoding="utf-8")
    run(*command, SUITE, root, chosen)


def blocks_of(lock: str, names: set[str]) -> str:
    """Return the lines of a lock that pin these packages, with their hashes."""
    blocks = re.split(r"^(?=\S)", lock, flags=re.MULTILINE)
    return "".join(block for block in blocks if sbom.canonical(block.partition("==")[0]) in names)


def make_site(site: Path) -> None:
    """Install the packages that the tests need, those of the lock."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    chosen = site.parent / "requirements.txt"
    chosen.write_text(blocks_of(lock, sbom.reached(PACKAGES, sbom.read_locks([lock]))), encoding="utf-8")
    platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
    options = ["--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp", "--no-deps", "--no-compile"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--target", str(site)]
    run(*pip, *platforms, *options, "-r", chosen)


def make_engine(root: Path, module: Path) -> None:
    """Compile the engine for ARM64, with the package beside it."""
    shutil.rmtree(module.parent, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "tandemq", module.parent, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    generated = module.parent.parent / "engine.c"
    run(
        sys.executable,
        "-m",
        "cython",
        "-3",
        "--module-name",
        "tandemq._engine",
        SOURCES / "engine.pyx",
        "-o",
        generated,
    )
    includes = [SOURCES, root / "usr" / "include" / PYTHON, root / "usr" / "include" / TRIPLET / PYTHON]
    # Debian's pyconfig.h includes that of the architecture by a path below /usr/include.
    options = ["-O3", "-fPIC", "-shared"]
    paths = [f"-I{path}" for path in [*includes, root / "usr" / "include"]]
    run(f"{TRIPLET}-gcc", *options, *paths, generated, "-o", module)


def try_engine(base: Path, words: Sequence[str]) -> None:
    """Run tests with the compiled engine and Python for ARM64."""
    environ = {
        "PYTHONPATH": f"{base / 'packages'}:{base / 'site'}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TANDEMQ_ENGINE": "compiled",
    }
    python = ("qemu-aarch64-static", "-L", base / "root", base / "root" / "usr" / "bin" / PYTHON)
    run(*python, "-m", "pytest", "-q", "-o", "timeout=1200", *words, environ=environ)


def main(words: Sequence[str] | None = None) -> int:
    """Make what is missing, compile and run the tests; return the exit status."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.arm64", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", default=TESTS, help=f"and options of pytest; default: {' '.join(TESTS)}")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "arm64", help="default: build/arm64")
    options = parser.parse_args(words)
    base = options.directory.resolve()
    begun = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True)

    try:
        check_machine()
        if not (base / "root" / "usr" / "bin" / PYTHON).exists():
            tell(f"Debian {SUITE} for arm64 is unpacked")
            make_root(base / "root", clean_machine.check_machine(None))
        if not (base / "packages" / "pytest").exists():
            tell("packages of requirements.lock for aarch64 are installed")
            make_site(base / "packages")
        tell("the engine is compiled")
        make_engine(base / "root", base / "site" / "tandemq" / f"_engine{SUFFIX}")
        tell("its tests are run")
        try_engine(base, options.tests)
        tell("passed")
    except (Failure, clean_machine.Failure) as failure:
        print(f"arm64: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
