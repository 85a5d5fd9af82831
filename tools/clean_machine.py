"""Run a command in a new root with Python and make only: `python3 -m tools.clean_machine -- make test`.

    files of the working tree, without ignored ones ──►┐
    packages of Debian (mmdebstrap)                 ──►│ root ──► chroot, own mounts and processes ──► command
    settings of pip, certificates, name resolution  ──►┘

A machine that has everything hides what a new one lacks: a program, a package, a file that is not in the repository.
The root has the packages that .ci/packages lists for `setup`, and none that another target needs; `.ci/run` installs
those by itself. The root is removed at the end. Needs the rights of root, and the package mmdebstrap.
"""

import argparse
import configparser
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "project"
"""Directory of the files of the repository in the new root."""
PASSED_ON = (
    "PIP_",
    "SSL_CERT_",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "GOPROXY",
)
"""Variables that the command gets, by the begin of their names in any case: settings of package indexes and proxies."""
SETTINGS = ("etc/pip.conf", "etc/resolv.conf", "etc/hosts", "usr/local/share/ca-certificates")
OF_HOME = (".config/pip/pip.conf", ".pip/pip.conf", ".m2/settings.xml")
SOURCES = ("/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list")
_ENTER = """
set -e
mount --rbind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/dev/shm"
mount -t proc proc "$0/proc"
mount -t sysfs -o ro sysfs "$0/sys"
if [ -n "$1" ]; then mount --bind "$1" "$0/root/.cache/pip"; fi
root=$0
shift
exec chroot "$root" "$@"
"""


class Failure(Exception):
    """What prevents the run, for the user."""


def packages_of(target: str) -> list[str]:
    """Return the packages that .ci/packages lists for a target of the Makefile."""
    rows = [line.split() for line in (ROOT / ".ci" / "packages").read_text(encoding="utf-8").splitlines()]
    return [row[0] for row in rows if row and row[0] != "#" and target in row[1].split(",")]


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the command gets."""
    begins = tuple(name.lower() for name in PASSED_ON)
    return {name: value for name, value in environ.items() if name.lower().startswith(begins)}


def named_paths(environ: Mapping[str, str], settings: Sequence[Path]) -> Iterator[Path]:
    """Yield the existing absolute paths that values of variables and pip's settings name: certificates, wheels."""
    values = list(environ.values())
    for path in settings:
        if path.name == "pip.conf" and path.is_file():
            parser = configparser.RawConfigParser()
            parser.read(path, encoding="utf-8")
            values += [value for name in parser.sections() for _, value in parser.items(name)]
    for value in values:
        yield from (Path(word) for word in value.split() if word.startswith("/") and Path(word).exists())


def copy_into(root: Path, path: Path) -> None:
    """Copy a file or directory of this machine to its own path in the root, instead of what is there.

    Links of this machine are followed; those of the root are not, as they lead to this machine.
    """
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, ignore_dangling_symlinks=True)
    else:
        shutil.copyfile(path, target)


def copy_project(target: Path) -> int:
    """Copy the files of the working tree, new ones included and ignored ones not; return their number."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, capture_output=True, check=False)
    if listed.returncode != 0:
        raise Failure(f"git cannot list the files of {ROOT}: {listed.stderr.decode().strip()}")
    names = [
        name
        for name in listed.stdout.decode().split("\0")
        if (ROOT / name).is_file() and not (ROOT / name).is_symlink()
    ]
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return len(names)


def copy_extra(path: Path, target: Path) -> None:
    """Copy an ignored file or directory of the repository to its place in the copy."""
    if not path.exists() or not path.resolve().is_relative_to(ROOT):
        raise Failure(f"--with {path}: there is no such file or directory in {ROOT}")
    place = target / path.resolve().relative_to(ROOT)
    if path.is_dir():
        shutil.copytree(path, place, dirs_exist_ok=True)
    else:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, place)


def of_suite(sources: str, suite: str) -> str:
    """Return a list of package sources, in either format of apt, for a suite.

    A list that names the suite stays as it is; of others the first mirror is taken. Raises Failure if there is none.
    """
    suites = re.compile(r"^(Suites: *|deb +(?:\[[^]]*\] +)?\S+ +)(\S+)(.*)$", re.MULTILINE)
    named = [word for entry in suites.finditer(sources) for word in f"{entry[2]} {entry[3]}".split()]
    if suite in named:
        return sources
    for part in re.split(r"\n\s*\n|\n(?=deb )", sources):
        entry = suites.search(part)
        if entry is not None and "security" not in entry[2]:
            rest = "" if entry[1].startswith("Suites") else entry[3]
            return f"{part[: entry.start()]}{entry[1]}{suite}{rest}{part[entry.end() :].rstrip()}\n"
    raise Failure("the list of package sources names no mirror of Debian; name one with --sources")


def make_root(root: Path, suite: str, sources: Path, packages: Sequence[str], apt_options: Sequence[str] = ()) -> None:
    """Make a minimal Debian with some packages."""
    command = ["mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=APT::Install-Recommends "false"']
    command += [f"--aptopt={option}" for option in apt_options]
    command += [f"--include={','.join(packages)}", suite, str(root), str(sources)]
    made = subprocess.run(command, check=False)
    if made.returncode != 0:
        raise Failure(f"mmdebstrap made no root (exit status {made.returncode})")


def furnish(root: Path, environ: Mapping[str, str]) -> None:
    """Give the root this machine's settings of names, certificates and package indexes."""
    home = Path.home()
    settings = [Path("/", name) for name in SETTINGS] + [home / name for name in OF_HOME]
    for path in [path for path in settings if path.exists()] + list(named_paths(environ, settings)):
        copy_into(root, path)
        if path.is_relative_to(home) and home != Path("/root"):
            copy_into(root / "root", Path("/", path.relative_to(home)))


def run_in(root: Path, command: Sequence[str], environ: Mapping[str, str], cache: Path | None) -> int:
    """Run a command in the project's directory of the root; return its exit status. Its processes end with it.

    Ctrl-C and SIGTERM kill them all.
    """
    own = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    (root / "root" / ".cache" / "pip").mkdir(parents=True, exist_ok=True)
    inside = ["/bin/sh", "-c", f'cd /{PROJECT} && exec "$@"', "sh", *command]
    words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, str(root), str(cache or "")]
    with subprocess.Popen([*words, *inside], env={**environ, **own}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.kill()  # `unshare` takes the command and all its processes with it
            raise


def check_machine(sources: Path | None) -> Path:
    """Return the list of package sources to use. Raises Failure if this machine cannot make a root."""
    if os.geteuid() != 0:
        raise Failure("making a root and entering it needs the rights of root")
    for program, package in (("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux"), ("git", "git")):
        if shutil.which(program) is None:
            raise Failure(f"{program} is not installed: apt-get install {package}")
    candidates = [Path(name) for name in SOURCES] if sources is None else [sources]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        raise Failure(f"no list of package sources: {', '.join(map(str, candidates))}; name one with --sources")
    return found


def options_of(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.clean_machine", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "command", nargs="*", default=["make", "test"], help="with its arguments, after --; default: make test"
    )
    parser.add_argument("--suite", default="bookworm", help="release of Debian; default: %(default)s")
    parser.add_argument(
        "--sources", type=Path, help="sources.list or .sources file of apt; default: this machine's of Debian"
    )
    parser.add_argument(
        "--apt-option",
        action="append",
        default=[],
        help="for apt; an old copy of testing needs 'Acquire::Check-Valid-Until \"false\"'; repeatable",
    )
    parser.add_argument(
        "--with",
        dest="paths",
        action="append",
        default=[],
        type=Path,
        help="an ignored file or directory of the repository to copy too, such as dist; repeatable",
    )
    parser.add_argument("--package", action="append", default=[], help="one more package in the root; repeatable")
    parser.add_argument("--directory", type=Path, help="where the root is made; default: a temporary directory")
    parser.add_argument("--keep", action="store_true", help="do not remove the root; its path is printed")
    parser.add_argument("--no-pip-cache", action="store_true", help="download packages of Python again")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the tool; return the command's exit status, or 2 if it could not run."""
    options = options_of(words)
    begun = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)

    def tell(text: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {text}", flush=True)

    try:
        sources = check_machine(options.sources)
        cache = Path.home() / ".cache" / "pip"
        base = Path(tempfile.mkdtemp(prefix="tandemq-machine-", dir=options.directory))
        try:
            packages = [*packages_of("setup"), *options.package]
            tell(f"a root of Debian {options.suite} with {', '.join(packages)} is made in {base}")
            root = base / "root"
            chosen = base / sources.name
            chosen.write_text(of_suite(sources.read_text(encoding="utf-8"), options.suite), encoding="utf-8")
            make_root(root, options.suite, chosen, packages, options.apt_option)
            environ = passed_on(os.environ)
            furnish(root, environ)
            tell(f"{copy_project(root / PROJECT)} files of {ROOT} are copied to /{PROJECT}")
            for path in options.paths:
                copy_extra(path, root / PROJECT)
            tell(f"{' '.join(options.command)}")
            is_cached = cache.is_dir() and not options.no_pip_cache
            status = run_in(root, options.command, environ, cache if is_cached else None)
            tell(f"exit status {status}")
            return status
        finally:
            if options.keep:
                tell(f"the root is kept: {base / 'root'}")
            else:
                shutil.rmtree(base)
                tell("the root is removed")
    except Failure as failure:
        print(f"clean_machine: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
