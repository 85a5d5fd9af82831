"""Build the Debian package: `python3 -m tools.debian_package`, or `make deb`.

    tools.server_environment ──► /usr/lib/tandemq
    deploy/systemd, config   ──► /usr/lib/systemd/system, /etc/tandemq, /etc/default/tandemq
    the command itself       ──► manual page, completions of bash, zsh and fish
    deploy/debian            ──► control, maintainer scripts

It is for the release of Debian, and the architecture, of the machine that builds it: run it with the `python3` of that
release, which needs python3-venv, python3-dev and gcc. No rights of root are needed. The same sources and lock files
give the same bytes: all times in the package are that of the last commit, or SOURCE_DATE_EPOCH.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

from tools import server_environment

ROOT = Path(__file__).resolve().parent.parent
DEPLOY = ROOT / "deploy"
PREFIX = Path("usr/lib/tandemq")
MAINTAINER = "The TandemQ authors <tandemq@users.noreply.github.com>"
SCRIPTS = ("postinst", "prerm", "postrm")
CONFIGURATION = {
    "broker-a.conf": "etc/tandemq/broker-a.conf",
    "namesrv.conf": "etc/tandemq/namesrv.conf",
    "proxy.conf": "etc/tandemq/proxy.conf",
    "default": "etc/default/tandemq",
}
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/tandemq",
    "zsh": "usr/share/zsh/vendor-completions/_tandemq",
    "fish": "usr/share/fish/vendor_completions.d/tandemq.fish",
}


def version() -> str:
    """Return the version of TandemQ."""
    text = (ROOT / "src" / "tandemq" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE)
    assert found is not None, "tandemq has no __version__"
    return found[1]


def source_epoch(environ: Mapping[str, str] = os.environ) -> int:
    """Return the time that packages get: SOURCE_DATE_EPOCH, else the last commit's, else that of CHANGELOG.md."""
    if text := environ.get("SOURCE_DATE_EPOCH"):
        return int(text)
    return int(of_git("log", "-1", "--format=%ct") or (ROOT / "CHANGELOG.md").stat().st_mtime)


def of_git(*words: str) -> str:
    """Return what git prints; "" without git or in an archive of the sources."""
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def output_of(*words: str | Path, environ: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output."""
    done = subprocess.run([*map(str, words)], env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"debian_package: {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def write(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a file of the package."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


def write_compressed(path: Path, text: str) -> None:
    """Write a compressed file that has no time of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def fill(stage: Path, full_version: str, epoch: int) -> None:
    """Write what stands beside the environment."""
    environment = stage / PREFIX
    (stage / "usr" / "bin").mkdir(parents=True)
    (stage / "usr" / "bin" / "tandemq").symlink_to("../lib/tandemq/bin/tandemq")
    for unit in sorted((DEPLOY / "systemd").iterdir()):
        write(stage / "usr/lib/systemd/system" / unit.name, unit.read_text(encoding="utf-8"))
    for name, place in CONFIGURATION.items():
        write(stage / place, (DEPLOY / "config" / name).read_text(encoding="utf-8"))
    # The environment works at its prefix only: here its Python takes the packages from where they are now.
    python = environment / "bin" / "python"
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    page = output_of(python, "-m", "tools.manual_page", environ=environ)
    write_compressed(stage / "usr/share/man/man1/tandemq.1.gz", page)
    for shell, place in COMPLETIONS.items():
        asking = {**environ, "_TANDEMQ_COMPLETE": f"{shell}_source"}
        program = "import sys; sys.argv = ['tandemq']; from tandemq.cli import main; main()"
        write(stage / place, output_of(python, "-c", program, environ=asking))
    documents = stage / "usr/share/doc/tandemq"
    write(documents / "copyright", (DEPLOY / "debian" / "copyright").read_text(encoding="utf-8"))
    entry = f"tandemq ({full_version}) stable; urgency=medium\n\n  * Changes: CHANGELOG.md of the sources.\n\n"
    write_compressed(documents / "changelog.Debian.gz", f"{entry} -- {MAINTAINER}  {formatdate(epoch)}\n")
    write_compressed(documents / "changelog.gz", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    overrides = DEPLOY / "debian" / "lintian-overrides"
    write(stage / "usr/share/lintian/overrides/tandemq", overrides.read_text(encoding="utf-8"))


def files_of(stage: Path) -> Iterator[Path]:
    """Yield the regular files of the package."""
    yield from (path for path in sorted(stage.rglob("*")) if path.is_file() and not path.is_symlink())


def describe(stage: Path, full_version: str, python: str) -> None:
    """Write the control files."""
    control = stage / "DEBIAN"
    files = [path for path in files_of(stage) if control not in path.parents]
    values = {
        "VERSION": full_version,
        "ARCHITECTURE": output_of("dpkg", "--print-architecture").strip(),
        "MAINTAINER": MAINTAINER,
        "SIZE": str(sum(path.stat().st_size for path in files) // 1024),
        "PYTHON": python,
    }
    text = (DEPLOY / "debian" / "control.in").read_text(encoding="utf-8")
    write(control / "control", re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text))
    write(control / "conffiles", "".join(f"/{place}\n" for place in sorted(CONFIGURATION.values())))
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n" for path in files]
    write(control / "md5sums", "".join(sums))
    for name in SCRIPTS:
        write(control / name, (DEPLOY / "debian" / name).read_text(encoding="utf-8"), mode=0o755)


def settle(stage: Path, epoch: int) -> None:
    """Set modes and times of all files, whatever the umask and the time of the build."""
    programs = (stage / "DEBIAN", stage / PREFIX / "bin")
    for path in [stage, *sorted(stage.rglob("*"))]:
        if not path.is_symlink():
            is_program = path.parent in programs and path.stat().st_mode & 0o100
            path.chmod(0o755 if path.is_dir() or is_program else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def build(target: Path, full_version: str, environment: Path | None = None) -> Path:
    """Build the package into a directory; return its path. `environment`: one that was made before."""
    epoch = source_epoch()
    with tempfile.TemporaryDirectory(prefix="tandemq-deb-") as scratch:
        stage = Path(scratch) / "stage"
        stage.mkdir(mode=0o755)
        if environment is None:
            os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
            server_environment.make(stage / PREFIX, f"/{PREFIX}")
        else:
            shutil.copytree(environment, stage / PREFIX, symlinks=True)
        interpreter = (stage / PREFIX / "bin" / "python").readlink()
        if interpreter.parent != Path("/usr/bin"):
            sys.exit(f"debian_package: run it with Debian's /usr/bin/python3; this is {interpreter}")
        fill(stage, full_version, epoch)
        describe(stage, full_version, interpreter.name)
        settle(stage, epoch)
        target.mkdir(parents=True, exist_ok=True)
        environ = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        output_of("dpkg-deb", "--root-owner-group", "-Zxz", "-z3", "--build", stage, target, environ=environ)
    (package,) = target.glob(f"tandemq_{full_version}_*.deb")
    return package


def main(words: Sequence[str] | None = None) -> int:
    """Build the package and print its path."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.debian_package", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="where it is written; default: dist")
    parser.add_argument("--revision", default="1", help="revision of the package; default: %(default)s")
    parser.add_argument("--environment", type=Path, help="what tools.server_environment has made for /usr/lib/tandemq")
    options = parser.parse_args(words)
    if shutil.which("dpkg-deb") is None:
        sys.exit("debian_package: dpkg-deb is not installed; build the package on Debian or Ubuntu")
    print(build(options.directory, f"{version()}-{options.revision}", options.environment))
    return 0


if __name__ == "__main__":
    sys.exit(main())
