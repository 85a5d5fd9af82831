"""The software bill of materials of a release, CycloneDX 1.6: `python3 -m tools.sbom`.

    pyproject.toml        ──► names of what the package and its extras need ──►┐
    requirements*.lock    ──► versions, and which package needs which        ──►│ CycloneDX JSON
    console/static        ──► what the wheel itself contains of others       ──►┘

The versions are those that the tests ran with; an installation may have others. The same inputs give the same bytes.
`make release` writes the bill to dist/ and validates it against CycloneDX's schema.
"""

import argparse
import datetime as dt
import hashlib
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tandemq

ROOT = Path(__file__).resolve().parent.parent
LOCKS = tuple(f"requirements{part}.lock" for part in ("", "-spark", "-console", "-demo"))
"""The first that has a package gives its version: tools of the tests may need another one than the extra `spark`."""
EXTRAS_OF_DEVELOPERS = {"browser", "dev", "docs"}
HTMX_VERSION = "4.0.1"
HTMX_FILES = ("htmx.min.js", "hx-sse.min.js")
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)")
_NEEDED_BY = re.compile(r"^ {4}#(?: via|  ) +([A-Za-z0-9][\w.-]*)(?: \(pyproject\.toml\))?$")


class Failure(Exception):
    """Why no bill can be made, for the user."""


@dataclass
class Package:
    """A package of the locks: its version and the names of the packages that need it."""

    version: str
    needed_by: set[str] = field(default_factory=set)


def canonical(name: str) -> str:
    """Return the name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: Iterable[str]) -> set[str]:
    """Return the names of requirements such as `pyspark[pipelines]>=4.0,<5`."""
    return {canonical(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) for requirement in requirements}


def read_locks(locks: Iterable[str]) -> dict[str, Package]:
    """Return the packages of the texts of locks, by name."""
    found: dict[str, Package] = {}
    for lock in locks:
        package = None
        for line in lock.splitlines():
            if pin := _PIN.match(line):
                package = found.setdefault(canonical(pin[1]), Package(pin[2]))
            elif package is not None and (needed_by := _NEEDED_BY.match(line)):
                package.needed_by.add(canonical(needed_by[1]))
    return found


def reached(roots: Iterable[str], packages: Mapping[str, Package]) -> set[str]:
    """Return the names of the packages that these need, directly or through others, and their own."""
    found: set[str] = set()
    new = set(roots)
    while new:
        found |= new
        new = {name for name, package in packages.items() if package.needed_by & new} - found
    return found


def component(name: str, version: str, **more: Any) -> dict[str, Any]:
    """Return the component of a package of Python."""
    purl = f"pkg:pypi/{name}@{version}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **more}


def contained(static: Path) -> dict[str, Any]:
    """Return the component of htmx, which the wheel contains."""
    files = [
        {
            "type": "file",
            "bom-ref": f"file:tandemq/console/static/{name}",
            "name": f"tandemq/console/static/{name}",
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256((static / name).read_bytes()).hexdigest()}],
        }
        for name in HTMX_FILES
    ]
    purl = f"pkg:npm/htmx.org@{HTMX_VERSION}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": "htmx.org",
        "version": HTMX_VERSION,
        "purl": purl,
        "licenses": [{"license": {"id": "0BSD"}}],
        "components": files,
    }


def bill(project: Mapping[str, Any], packages: Mapping[str, Package], static: Path, date: int) -> dict[str, Any]:
    """Return the bill of the version in `tandemq.__version__`.

    Args:
        project: the table `project` of pyproject.toml.
        packages: of the locks.
        static: the directory of the console's static files.
        date: of the release, seconds since 1970.
    """
    own = canonical(project["name"])
    extras = {
        name: named(needs)
        for name, needs in project["optional-dependencies"].items()
        if name not in EXTRAS_OF_DEVELOPERS
    }
    required = named(project["dependencies"])
    roots = required.union(*extras.values())
    missing = sorted(roots - packages.keys())
    if missing:
        raise Failure(f"no lock has {', '.join(missing)}: run `make lock`")
    always = reached(required, packages)
    by_extra = {extra: reached(needs, packages) for extra, needs in sorted(extras.items())}
    chosen = sorted(always.union(*by_extra.values()))
    main = component(own, tandemq.__version__, licenses=[{"license": {"id": project["license"]}}])
    htmx = contained(static)
    components = [htmx]
    for name in chosen:
        of_extras = [extra for extra, names in by_extra.items() if name in names]
        more: dict[str, Any] = {"scope": "required"}
        if name not in always:
            properties = [{"name": "tandemq:extra", "value": extra} for extra in of_extras]
            more = {"scope": "optional", "properties": properties}
        components.append(component(name, packages[name].version, **more))
    refs = {name: f"pkg:pypi/{name}@{packages[name].version}" for name in chosen}
    dependencies = [{"ref": main["bom-ref"], "dependsOn": [htmx["bom-ref"], *(refs[name] for name in sorted(roots))]}]
    for name in chosen:
        needs = [refs[other] for other in chosen if name in packages[other].needed_by]
        dependencies.append({"ref": refs[name], "dependsOn": needs})
    content = {
        "metadata": {
            "timestamp": dt.datetime.fromtimestamp(date, dt.UTC).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "component": main,
        },
        "components": components,
        "dependencies": dependencies,
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return head | content


def text(date: int) -> str:
    """Return the bill of this repository as JSON. Raises Failure."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = read_locks((ROOT / name).read_text(encoding="utf-8") for name in LOCKS)
    static = ROOT / "src" / "tandemq" / "console" / "static"
    return json.dumps(bill(project, packages, static, date), indent=2, ensure_ascii=False) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Print the bill, or write it to a file."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.sbom", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--date", type=int, default=0, help="of the release, seconds since 1970; default: %(default)s")
    parser.add_argument("--output", type=Path, help="file to write; default: standard output")
    options = parser.parse_args(words)
    try:
        made = text(options.date)
    except Failure as failure:
        print(f"sbom: {failure}", file=sys.stderr)
        return 1
    if options.output is None:
        sys.stdout.write(made)
    else:
        options.output.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
