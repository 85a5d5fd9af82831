"""The page docs/reference/tests.md: what is tested how, with the figures of the last runs.

    python3 -m tools.tested            print the page; `make reference` and `make docs` write it
    python3 -m tools.tested --record   put the outcomes of runs (build/durations/*.json) into tools/tested.json

Numbers of test functions and versions of peers are read from the source, so they are always those of this commit. A run
of a whole target leaves its outcome in build/durations (tests/conftest.py).
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
OUTCOMES = ROOT / "build" / "durations"
RECORD = Path(__file__).with_name("tested.json")
MARKERS = frozenset({"slow", "system", "services"})
OF_PROCESSES = ("spark", "blackbox", "interop", "browser", "clusters", "packaging", "versions")
"""Directories whose tests have the marker `system` without saying so (tests/conftest.py)."""
_HEAD = """\
# What is tested

Made from the tests. A parametrised test counts once as a function; a run counts each of its cases. A run without a
figure is not recorded yet: `python3 -m tools.tested --record` records those of `build/durations`.
"""


class Kind(NamedTuple):
    """A kind of test: a target of the Makefile, and which tests it runs."""

    target: str
    shows: str
    below: tuple[str, ...] = ()
    """Variable names of the Makefile, or paths; (): no tests of pytest."""
    without: tuple[str, ...] = ()
    has: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset({"slow"})


_ELSEWHERE = ("$(ELSEWHERE)",)
KINDS = (
    Kind(
        "check",
        "types, style, floors of the packages, words; commands, settings and links of the pages exist",
        ("tests/test_tidy.py", "tests/test_docs.py"),
    ),
    Kind(
        "test",
        "each part alone: formats, protocols, state machines; clusters in one thread by sampled seeds",
        ("tests",),
        _ELSEWHERE,
        lacks=MARKERS,
    ),
    Kind("test-python", "the engine in Python does what the compiled one does", ("$(OF_ENGINE)",), lacks=MARKERS),
    Kind(
        "blackbox",
        "processes, sockets, files and signals; the commands of the operators' pages",
        ("tests",),
        _ELSEWHERE,
        frozenset({"system"}),
        frozenset({"slow", "services"}),
    ),
    Kind(
        "services",
        "the same with ZooKeeper, etcd, Redis, certificates of openssl, units of systemd",
        ("tests/unit", "tests/blackbox"),
        ("$(OF_SPARK)",),
        frozenset({"services"}),
    ),
    Kind("interop", "unmodified clients, brokers, proxies and commands of RocketMQ; their stores", ("tests/interop",)),
    Kind("browser", "the console in a real browser, also with thousands of topics", ("tests/browser",)),
    Kind("spark", "the data pipeline on a local Spark: nothing lost or doubled through failures", ("$(OF_SPARK)",)),
    Kind("spark-cluster", "the same on a Spark master with workers, installed from the wheel", ("tests/clusters",)),
    Kind(
        "packaging",
        "the Debian package and the image in roots of their own; the Helm chart, its rolling update; a full disk",
        ("tests/packaging",),
    ),
    Kind(
        "versions",
        "upgrades from the last release and back under load; its stores, clients and commands",
        ("tests/versions",),
        lacks=frozenset(),
    ),
    Kind(
        "versions-sample",
        "the shortest of these",
        ("tests/versions",),
    ),
    Kind("mutations", "the simulation notices each of these faults in the brokers", ("tests/mutations",)),
    Kind(
        "soak",
        "long searches, and waits in real time",
        ("tests",),
        ("tests/browser", "tests/versions"),
        frozenset({"slow"}),
        frozenset(),
    ),
    Kind("sim", "whole clusters from seeds, with faults of networks, disks, clocks and registries"),
    Kind("chaos", "real brokers and registries with real faults, 200 runs"),
    Kind("fuzz-engine", "malformed frames, records and filters under AddressSanitizer"),
    Kind("newcomers", "a new user's first message by one page, each in a clean root"),
)


class Test(NamedTuple):
    """A test function: its file, from the root, and its markers."""

    path: str
    name: str
    markers: frozenset[str]


def _names_of(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset(found.attr for node in nodes for found in ast.walk(node) if isinstance(found, ast.Attribute))


def _tests_in(body: Iterable[ast.stmt], path: str, inherited: frozenset[str]) -> Iterator[Test]:
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _tests_in(node.body, path, inherited | _names_of(node.decorator_list))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            # Marks of single parameters are no marks of the function, which counts once, without them.
            marks = [each for each in node.decorator_list if "parametrize" not in ast.dump(each)]
            yield Test(path, node.name, MARKERS & (inherited | _names_of(marks)))


@cache
def all_tests() -> tuple[Test, ...]:
    """Return all test functions."""
    found: list[Test] = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        path = file.relative_to(ROOT).as_posix()
        module = ast.parse(file.read_text(encoding="utf-8"))
        marks = [
            node.value
            for node in module.body
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == "pytestmark" for target in node.targets)
        ]
        is_of_processes = path.count("/") == 1 or path.split("/")[1] in OF_PROCESSES
        inherited = _names_of(marks) | (frozenset({"system"}) if is_of_processes else frozenset())
        found += _tests_in(module.body, path, inherited)
    return tuple(found)


@cache
def makefile() -> str:
    """Return the Makefile, with continued lines joined."""
    return (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")


def _paths(words: Iterable[str]) -> tuple[str, ...]:
    """Return paths, with variables of the Makefile replaced by their values."""
    found: list[str] = []
    for word in words:
        variable = re.fullmatch(r"\$\((\w+)\)", word)
        if variable is None:
            found.append(word)
            continue
        value = re.search(rf"^{variable[1]}\s*:=(.*)$", makefile(), re.MULTILINE)
        assert value is not None, f"the Makefile has no variable {variable[1]}"
        found += _paths(value[1].split())
    return tuple(found)


def tests_of(kind: Kind) -> list[Test]:
    """Return the test functions of a kind."""

    def is_below(path: str, places: tuple[str, ...]) -> bool:
        return any(path == place or path.startswith(f"{place}/") for place in places)

    below, without = _paths(kind.below), _paths(kind.without)
    return [
        test
        for test in all_tests()
        if is_below(test.path, below)
        and not is_below(test.path, without)
        and kind.has <= test.markers
        and not kind.lacks & test.markers
    ]


def _found(path: str, pattern: str) -> list[str]:
    """Return what a pattern finds in a file, sorted: each is there."""
    found = re.findall(pattern, (ROOT / path).read_text(encoding="utf-8"))
    assert found, f"{path} has no {pattern}"
    return sorted({version for each in found for version in ([each] if isinstance(each, str) else each)})


def peers() -> dict[str, list[str]]:
    """Return the versions of peers that tests run."""
    number = r"(\d+\.\d+\.\d+)"
    java = "tests/interop/java.py"
    newest = _found("tests/interop/peers.py", rf'NEWEST_VERSION = "{number}"')
    pair = rf'_VERSIONS = \("{number}", "{number}"\)'
    drivers = "tests/interop/grpc_drivers"
    return {
        "Java client": _found(java, f"CLIENT{pair}") + newest,
        "Java name server, broker": _found(java, f"SERVER{pair}") + newest,
        "Go client": _found("tests/interop/go/go.mod", rf"rocketmq-client-go/v2 v{number}"),
        "C++ client": _found("requirements-cpp-client.lock", rf"rocketmq=={number}"),
        "gRPC client, Java": _found("tests/interop/grpc_clients.py", rf'"java-{number}"'),
        "gRPC client, Python": _found("requirements-grpc-client.lock", rf"rocketmq-python-client=={number}"),
        "gRPC client, Node.js": _found(f"{drivers}/node/package.json", rf'"rocketmq-client-nodejs": "{number}"'),
        "Kafka consumer, Java": _found("bench/spark/kafka.py", rf'KAFKA = "{number}"'),
        "Kafka consumer, Spark": _found("bench/spark/kafka.py", rf'CONNECTOR = "{number}"'),
        "Kafka consumer, aiokafka": _found("requirements-kafka-clients.lock", rf"aiokafka=={number}"),
        "Kafka consumer, librdkafka": _found("requirements-kafka-clients.lock", rf"confluent-kafka=={number}"),
        "gRPC client, Rust": _found(f"{drivers}/rust/Cargo.toml", rf'rocketmq = .*?"={{0,1}}{number}"'),
    }


def record() -> dict[str, Any]:
    """Return the recorded outcomes of runs, by target."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return found


def _last(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "–"
    failed = f", {outcome['failed']} failed" if outcome["failed"] else ""
    return f"{outcome['passed']:,} passed{failed} in {outcome['seconds']:,} s, {outcome['date']}"


def page() -> str:
    """Return the page."""
    recorded = record()
    lines = [_HEAD, "| Command | What it shows | Test functions | Last run |", "|---|---|---|---|"]
    for kind in KINDS:
        count = f"{len(tests_of(kind)):,}" if kind.below else "–"
        lines.append(f"| `make {kind.target}` | {kind.shows} | {count} | {_last(recorded.get(kind.target))} |")
    lines += [f"| all | together | {len(all_tests()):,} | – |", "", "| Peer | Versions |", "|---|---|"]
    lines += [f"| {name} | {', '.join(versions)} |" for name, versions in peers().items()]
    return "\n".join(lines) + "\n"


def main(words: Sequence[str] | None = None) -> int:
    """Print the page, or record the outcomes of runs."""
    parser = argparse.ArgumentParser(prog="tools.tested", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", action="store_true", help="put build/durations/*.json into tools/tested.json")
    if not parser.parse_args(words).record:
        print(page(), end="")
        return 0
    targets = {kind.target for kind in KINDS}
    new = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in OUTCOMES.glob("*.json")}
    merged = record() | {target: outcome for target, outcome in new.items() if target in targets}
    RECORD.write_text(json.dumps(dict(sorted(merged.items())), indent=2) + "\n", encoding="utf-8")
    print(f"recorded: {', '.join(sorted(new)) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
