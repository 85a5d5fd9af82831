"""Build the image without a registry: `python3 -m tools.image`, or `make image`.

    mmdebstrap ─► a base to build in: Python with headers, a compiler, pip's settings of this machine
               ─► a base to run in: Python and the libraries it needs; no shell, no package manager
    buildah    ─► deploy/image/Containerfile on both ─► dist/tandemq-VERSION-ARCHITECTURE.tar, for `docker load`

It needs the rights of root and the packages mmdebstrap and buildah; no daemon. All times in the image are that of the
last commit, or SOURCE_DATE_EPOCH. The archive is in the format of Docker: that of OCI has no health check.
"""

import argparse
import datetime as dt
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools import clean_machine
from tools.debian_package import of_git, output_of, source_epoch, version
from tools.server_environment import BUILT

ROOT = Path(__file__).resolve().parent.parent
CONTAINERFILE = ROOT / "deploy" / "image" / "Containerfile"
BUILD_PACKAGES = ("ca-certificates", "gcc", "libc6-dev", "python3-dev", "python3-venv")
RUN_PACKAGES = ("base-files", "libpython3-stdlib", "libstdc++6", "netbase", "python3-minimal")
LEFT_OUT = (
    "bin/*",
    "sbin/*",
    "etc/*",
    "media",
    "mnt",
    "root/.*",
    "srv",
    "usr/bin/*",
    "usr/lib/python3/dist-packages",
    "usr/lib/python3.*/ensurepip",
    "usr/lib/python3.*/idlelib",
    "usr/lib/python3.*/lib2to3",
    "usr/lib/python3.*/pydoc_data",
    "usr/lib/*/perl-base",
    "usr/sbin/*",
    "usr/share/*",
    "var/cache/*",
    "var/lib/apt",
    "var/log/*",
)
"""What a server does not need of the packages."""
KEPT = (
    "etc/os-release",
    "etc/protocols",
    "etc/services",
    "etc/ssl",
    "etc/mime.types",
    "usr/bin/python3*",
    "usr/share/python3",
)
PASSWD = "root:x:0:0:root:/:/sbin/nologin\ntandemq:x:10001:10001:TandemQ:/var/lib/tandemq:/sbin/nologin\n"
GROUP = "root:x:0:\ntandemq:x:10001:\n"


def debootstrap(target: Path, variant: str, packages: Sequence[str], suite: str, epoch: int) -> None:
    """Make a root of Debian's packages."""
    sources = clean_machine.check_machine(None)
    words = ["mmdebstrap", "--quiet", f"--variant={variant}", '--aptopt=APT::Install-Recommends "false"']
    words += [f"--include={','.join(packages)}", suite, str(target), str(sources)]
    output_of(*words, environ={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})


def reduce(root: Path, certificates: str) -> None:
    """Remove what a server does not need, and add the accounts and the certificates of authorities."""
    kept = {path for pattern in KEPT for path in root.glob(pattern)}
    for pattern in LEFT_OUT:
        for path in sorted(root.glob(pattern)):
            if path in kept or not (path.exists() or path.is_symlink()):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for name, text in (("passwd", PASSWD), ("group", GROUP), ("ssl/certs/ca-certificates.crt", certificates)):
        path = root / "etc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    # A read-only root cannot keep bytecode.
    compiling = ("-I", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/usr/lib")
    subprocess.run(["chroot", str(root), "/usr/bin/python3", *compiling], check=False)


class Builder:
    """buildah with a storage of its own, removed with its directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory."""
        self.directory = directory
        stores = ["--root", str(directory / "storage"), "--runroot", str(directory / "run")]
        self._words = ["buildah", *stores, "--storage-driver", "vfs"]

    def run(self, *words: str | Path) -> str:
        """Run a command of buildah; return its output."""
        environ = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
        return output_of(*self._words, *words, environ=environ)

    def import_root(self, root: Path, tag: str, variables: Sequence[tuple[str, str]] = ()) -> None:
        """Make an image of a root."""
        context = self.directory / f"context-{root.name}"
        context.mkdir()
        output_of("tar", "-C", root, "--numeric-owner", "--one-file-system", "-cf", context / "root.tar", ".")
        lines = ["FROM scratch", "ADD root.tar /", *(f"ENV {name}={json.dumps(text)}" for name, text in variables)]
        (context / "Containerfile").write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.run("bud", "--quiet", "--tag", tag, "--file", context / "Containerfile", context)
        shutil.rmtree(context)


def copy_context(target: Path) -> None:
    """Copy what the Containerfile copies."""
    text = re.sub(r"\\\n", " ", CONTAINERFILE.read_text(encoding="utf-8"))
    named = [words.split()[:-1] for words in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)]
    for name in [str(CONTAINERFILE.relative_to(ROOT)), *(name for names in named for name in names)]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns(*BUILT))
        else:
            shutil.copy(ROOT / name, target / name)


def build(archive: Path, suite: str) -> None:
    """Build the image into an archive."""
    epoch = source_epoch()
    moment = dt.datetime.fromtimestamp(epoch, dt.UTC).isoformat()
    with tempfile.TemporaryDirectory(prefix="tandemq-image-") as name:
        scratch = Path(name)
        builder = Builder(scratch)
        debootstrap(scratch / "builds", "minbase", BUILD_PACKAGES, suite, epoch)
        authorities = sorted((scratch / "builds/usr/share/ca-certificates/mozilla").glob("*.crt"))
        certificates = "".join(path.read_text(encoding="ascii") for path in authorities)
        passed = clean_machine.passed_on(os.environ)
        clean_machine.furnish(scratch / "builds", passed)
        builder.import_root(scratch / "builds", "localhost/tandemq-builds", list(passed.items()))
        debootstrap(scratch / "runs", "extract", RUN_PACKAGES, suite, epoch)
        reduce(scratch / "runs", certificates)
        builder.import_root(scratch / "runs", "localhost/tandemq-runs")
        context = scratch / "context"
        copy_context(context)
        values = {
            "BUILD_BASE": "localhost/tandemq-builds",
            "BASE": "localhost/tandemq-runs",
            "VERSION": version(),
            "REVISION": of_git("rev-parse", "HEAD") or "unknown",
            "CREATED": moment,
            "SOURCE_DATE_EPOCH": str(epoch),
        }
        arguments = [word for key, text in values.items() for word in ("--build-arg", f"{key}={text}")]
        tag = f"localhost/tandemq:{version()}"
        file = CONTAINERFILE.relative_to(ROOT)
        words = ["bud", "--format", "docker", "--squash", "--pull-never", "--timestamp", str(epoch), "--tag", tag]
        builder.run(*words, *arguments, "--file", context / file, context)
        archive.parent.mkdir(parents=True, exist_ok=True)
        archive.unlink(missing_ok=True)
        builder.run("push", tag, f"docker-archive:{archive}:{tag}")


def main(words: Sequence[str] | None = None) -> int:
    """Build the image and print its path."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.image", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="where it is written; default: dist")
    parser.add_argument("--suite", default="bookworm", help="release of Debian; default: %(default)s")
    options = parser.parse_args(words)
    if os.geteuid() != 0:
        sys.exit("image: making roots of Debian needs the rights of root")
    for program in ("buildah", "mmdebstrap"):
        if shutil.which(program) is None:
            sys.exit(f"image: {program} is not installed: apt-get install {program}")
    machine = re.sub(r"\s", "", output_of("dpkg", "--print-architecture"))
    archive = options.directory.resolve() / f"tandemq-{version()}-{machine}.tar"
    build(archive, options.suite)
    print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
