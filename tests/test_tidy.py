"""The rules of the house, checked on the code itself: floors, a core without the world, sizes, docstrings, no sleeps.

Every check is a function from source to complaints, so that each can be shown to complain (the second half of this
file) before it is believed when it is silent (the first half). Source: CONTRIBUTING.md.
"""

import ast
import inspect
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from tests.retired_words import RETIRED_STEMS, RETIRED_WORDS, Retired

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tandemq"
LAB = ROOT / "lab"

# Floors: a module may import from lower floors, and from its own package. "core" modules are deterministic.
FLOORS: dict[str, tuple[int, str]] = {
    "model": (0, "core"),
    "errors": (0, "core"),
    "config": (0, "core"),
    "boundary": (0, "core"),
    "registry": (0, "core"),
    "metrics": (0, "core"),
    "telemetry": (0, "core"),
    "not_cached": (0, "core"),
    "refusals": (0, "core"),
    "turn_budget": (0, "core"),
    "codec": (1, "core"),
    "engine": (2, "core"),
    "storage": (3, "core"),
    "replication": (3, "core"),
    "coordination": (3, "core"),
    "real": (3, "shell"),
    "broker": (4, "core"),
    "nameserver": (4, "core"),
    "grpc": (4, "core"),
    "groupdb": (4, "shell"),
    "client": (4, "shell"),
    "proxy": (5, "shell"),
    "run": (6, "shell"),
    "spark": (6, "shell"),
    "console": (7, "end"),
    "kafka": (7, "end"),
    "load": (7, "end"),
    "demo": (7, "end"),
    "pytest_plugin": (7, "end"),
    "cli": (8, "end"),
    "__main__": (9, "end"),
}
# Packages beside `tandemq`, which it does not import.
BESIDE = {"lab": (7, "end")}
FLOOR_ZERO_KNOWS = {
    "errors": set[str](),
    "model": {"errors"},
    "registry": {"errors"},
    "boundary": {"errors", "registry"},
}

FORBIDDEN_IN_CORE = frozenset(
    {
        "asyncio",
        "socket",
        "ssl",
        "select",
        "selectors",
        "threading",
        "multiprocessing",
        "subprocess",
        "concurrent",
        "signal",
        "time",
        "random",
        "secrets",
        "os",
        "mmap",
        "shutil",
        "tempfile",
        "fcntl",
        "urllib",
        "http",
        "uvloop",
        "kazoo",
        "sqlalchemy",
        "click",
        "rich",
    }
)
# What may be imported from a forbidden module all the same: a type's name, and the choice of the engine at the start.
ALLOWED_IN_CORE = frozenset({("random", "Random"), ("os", "environ")})

FUNCTION_LINES_MAX = 70

# The outermost loops: the only places that may catch everything; they must go on, and count and log what they caught.
OUTERMOST = frozenset(
    {
        "src/tandemq/real/workers.py",
        "src/tandemq/real/monitoring/listener.py",
        "src/tandemq/broker/node.py",
        "src/tandemq/nameserver/node.py",
        "src/tandemq/cli/__init__.py",
        "src/tandemq/client/aio/checked_deliveries.py",  # calls a store of the user's
        "src/tandemq/client/aio/handlers.py",
        "src/tandemq/client/aio/receiving.py",
        "src/tandemq/client/aio/tracing.py",  # calls tracing of the user's
        "src/tandemq/client/aio/transaction_producer.py",
        "src/tandemq/client/aio/transport.py",
        "src/tandemq/client/aio/user_code.py",
        "src/tandemq/run/broker.py",
        "src/tandemq/proxy/service.py",
        "src/tandemq/run/nameserver.py",
        "src/tandemq/run/proxy.py",
    }
)

Complaints = Iterator[str]


def is_ignored(path: Path) -> bool:
    """Whether a file is hidden, or .gitignore names it or a directory that it is in."""
    text = (ROOT / ".gitignore").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    anywhere = [line.rstrip("/") for line in lines if not line.startswith("/")]
    named = [line.strip("/") for line in lines if line.startswith("/")]
    return any(
        place.name.startswith(".")
        or place.as_posix() in named
        or any(fnmatch(place.name, pattern) for pattern in anywhere)
        for place in [path, *path.parents][:-1]
    )


OF_CODE = {"bench", "chaos", "examples", "judge", "lab", "src", "tests", "tools"}
DIRECTORIES = OF_CODE | {".ci", ".github", "deploy", "docs"}
"""Directories of the repository. A store that a process of a test wrote into its working directory is none."""


CHECKED = (
    ast.Import,
    ast.ImportFrom,
    ast.FunctionDef,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.Expr,
    ast.Call,
    ast.Attribute,
    ast.AsyncFunctionDef,
    ast.Await,
    ast.AsyncFor,
    ast.AsyncWith,
)
"""Kinds of nodes that `nodes_of` keeps: one in six, found by one walk through each file."""


@cache
def tracked() -> tuple[Path, ...]:
    """Files of the repository as git sees them, new ones included; without git, all that are not hidden or ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    git = shutil.which("git")
    listed = subprocess.run(command, executable=git, cwd=ROOT, capture_output=True, check=False) if git else None
    if listed is not None and listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not is_ignored(path.relative_to(ROOT))]
    return tuple(sorted(path for path in paths if path.is_file()))


def name_of(path: Path) -> str:
    """Return a path as it is called in complaints and tables: relative to the root."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a tree, itself included, of the kinds that checks look at."""
    return tuple(node for node in ast.walk(tree) if isinstance(node, CHECKED))


def python_files(*roots: str) -> list[Path]:
    """Return the Python files below some directories of the repository."""
    return [p for p in tracked() if p.suffix == ".py" and name_of(p).startswith(tuple(f"{root}/" for root in roots))]


def house_of(path: Path) -> str:
    """Return the package (or the module) of tandemq that a source file belongs to; "" for tandemq/__init__.py.

    A file of the lab belongs to "lab".
    """
    if path.is_relative_to(LAB):
        return LAB.name
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


# --- the checks


def imports_in(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of each import, wherever it stands; name is "" for plain imports."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name


def floor_complaints(house: str, tree: ast.AST) -> Complaints:
    """Imports go downwards: never up, never sideways between packages of one floor."""
    floors = FLOORS | BESIDE
    if house not in floors:
        yield f"{house} stands on no floor; give it one in tests/test_tidy.py"
        return
    floor, kind = floors[house]
    for line, module, name in imports_in(tree):
        first = module.split(".")[0]
        if first in BESIDE and first != house:
            yield f"line {line}: {first} is not in the wheel"
        if first != "tandemq":
            continue
        parts = module.split(".")
        other = parts[1] if len(parts) > 1 else name
        if other in (house, "__version__"):
            continue
        if other not in FLOORS:
            yield f"line {line}: imports tandemq.{other or '*'}, which stands on no floor"
            continue
        below, other_kind = FLOORS[other]
        if floor == below == 0:
            if other not in FLOOR_ZERO_KNOWS.get(house, FLOORS):
                yield f"line {line}: {house} may not know {other}, on the ground floor"
        elif below >= floor:
            yield f"line {line}: {house} (floor {floor}) may not import {other} (floor {below})"
        elif kind == "core" and other_kind != "core":
            yield f"line {line}: {house} is core and may not know {other}"
        elif (house, other) in {("client", "storage"), ("client", "replication"), ("client", "coordination")}:
            yield f"line {line}: the client knows codec, real and floor 0 only, not {other}"
        elif house == "real" and below > 1:
            yield f"line {line}: real drives any node by its verbs and need not import {other}"


def core_complaints(tree: ast.AST) -> Complaints:
    """The core does not know the world: no clocks, sockets, threads, dice, and nothing asynchronous."""
    for line, module, name in imports_in(tree):
        if module.split(".")[0] in FORBIDDEN_IN_CORE and (module, name) not in ALLOWED_IN_CORE:
            yield f"line {line}: the core may not import {module}"
    for node in nodes_of(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"line {node.lineno}: nothing asynchronous in the core"


def size_complaints(tree: ast.AST) -> Complaints:
    """No function is longer than FUNCTION_LINES_MAX, its docstring not counted."""
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {lines} lines; {FUNCTION_LINES_MAX} at most"


def reach_complaints(tree: ast.AST) -> Complaints:
    """No class assigns an attribute of a collaborator that its constructor was given."""
    for owner in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)):
        methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
        begin = next((method for method in methods if method.name == "__init__"), None)
        if begin is None:
            continue
        given = {argument.arg for argument in (*begin.args.args[1:], *begin.args.kwonlyargs)}
        kept = {f"self.{name}" for name, value in _assigned(begin, "self.") if value in given}
        for method in methods:
            aliases = {name for name, value in _assigned(method) if value in kept} | (
                given if method is begin else set()
            )
            for target in _targets(method):
                base = ast.unparse(target.value)
                if base in aliases or any(base == one or base.startswith(f"{one}.") for one in kept):
                    yield f"line {target.lineno}: {ast.unparse(target)} is another part's to change"


def _targets(method: ast.FunctionDef) -> Iterator[ast.Attribute]:
    """Yield the attributes that a method assigns."""
    for node in ast.walk(method):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
        )
        for target in targets:
            found = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (one for one in found if isinstance(one, ast.Attribute))


def _assigned(method: ast.FunctionDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names with that prefix that a method assigns, without it, and their values, as source text."""
    for node in ast.walk(method):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                is_pair = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                names = target.elts if is_pair else [target]  # type: ignore[attr-defined]
                values = node.value.elts if is_pair else [node.value]  # type: ignore[attr-defined]
                for name, value in zip(names, values, strict=False):
                    text = ast.unparse(name)
                    if text.startswith(prefix):
                        yield text.removeprefix(prefix), ast.unparse(value)


def docstring_complaints(tree: ast.Module) -> Complaints:
    """Modules, public classes and public functions say what they are."""
    if not ast.get_docstring(tree):
        yield "the module has no docstring"
    yield from _undocumented(tree.body, "")


def _undocumented(body: list[ast.stmt], inside: str) -> Complaints:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        # What overrides a documented method, or is an overload of one, is told of there.
        marks = {m.attr if isinstance(m, ast.Attribute) else getattr(m, "id", "") for m in node.decorator_list}
        if not ast.get_docstring(node) and not marks & {"override", "overload", "setter"}:
            yield f"line {node.lineno}: {inside}{node.name} has no docstring"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node.body, f"{inside}{node.name}.")


# Prose, which begins with a capital letter and has neither columns nor drawings, up to its end inside a sentence.
_UNFINISHED = re.compile(r"[A-Z](?:(?!  |─).)*(?<![.!?:…)`])", re.DOTALL)


def sentence_complaints(tree: ast.AST) -> Complaints:
    """Docstrings, those of attributes too, end where a sentence ends."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            last = inspect.cleandoc(node.value.value).rstrip().split("\n\n")[-1]
            if _UNFINISHED.fullmatch(last):
                yield f"line {node.end_lineno}: the docstring ends inside a sentence: {last[-30:]!r}"


def sleep_complaints(tree: ast.AST) -> Complaints:
    """Tests wait for a state, with a deadline; they do not sleep."""
    slept = {("time", "sleep"), ("asyncio", "sleep"), ("trio", "sleep")}
    for line, module, name in imports_in(tree):
        if (module, name) in slept:
            yield f"line {line}: imports {module}.{name}"
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            owner = node.func.value
            # asyncio.sleep(0) lets others run and waits for nothing.
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if isinstance(owner, ast.Name) and (owner.id, "sleep") in slept and not (owner.id == "asyncio" and zero):
                yield f"line {node.lineno}: sleeps"


def blind_complaints(tree: ast.AST) -> Complaints:
    """Nothing catches everything, neither by name nor bare, unless it tidies up and raises it again."""
    for node in nodes_of(tree):
        if isinstance(node, ast.ExceptHandler) and not _raises_again(node):
            caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            names = {c.id for c in caught if isinstance(c, ast.Name)}
            if node.type is None or names & {"Exception", "BaseException"}:
                yield f"line {node.lineno}: catches everything"


def _raises_again(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def skip_complaints(tree: ast.AST) -> Complaints:
    """No test is skipped, or expected to fail: a missing part shows as a failure."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Attribute) and node.attr in {"skip", "skipif", "xfail", "importorskip"}:
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if owner in {"pytest", "mark", "unittest"}:
                yield f"line {node.lineno}: {owner}.{node.attr}"


# Both rules are written so that they do not find themselves.
_LEFT_TO_DO = re.compile(r"\b(?:TO[D]O|FIX[M]E|X[X]+(?!:)|HA[C]K|TB[D])\b")
# Package indexes and their mirrors, directories of one machine, and credentials in addresses.
_ADDRESSES = re.compile(
    r"files\.pythonhosted|pypi\.(?:org|python)|repo1?\.maven(?:\.apache)?\.org|(?<!no-emit-)(?:index-[u]rl|trusted-[h]ost)\b"
    r"|(?<![\w./-])/(?:home|root|Users|work)/\w|(?<![\w./-])/tmp/\w|://[^/\s:@]+:[^/\s@]+@"
)


def text_complaints(text: str) -> Complaints:
    """Nothing is left to do, and no file names an index, a machine's directory, or a credential."""
    for number, line in enumerate(text.splitlines(), start=1):
        for rule in (_LEFT_TO_DO, _ADDRESSES):
            if found := rule.search(line):
                yield f"line {number}: {found.group()!r}"


def stem_complaints(path: Path) -> Complaints:
    """File names are nouns of the field."""
    if instead := RETIRED_STEMS.get(path.stem):
        yield f"the name says nothing about its contents; name it after {instead}"


def word_complaints(text: str) -> Complaints:
    """Texts and names use the field's words."""
    for word in RETIRED_WORDS:
        for found in re.finditer(word.pattern, text, re.IGNORECASE):
            yield f"line {text.count(chr(10), 0, found.start()) + 1}: {found.group()!r}; write: {word.instead}"


NAMED_PATH = re.compile(
    r"(?<![\w./-])(?:tests|src|lab|bench|chaos|judge|tools|examples|deploy)/[\w/.-]*\w/?(?![\w*<{$%-])"
)


MADE_PATHS = ("bench/results",)
"""Below them is what commands write."""


def path_complaints(text: str) -> Complaints:
    """A path of the repository that a text names exists."""
    for found in NAMED_PATH.finditer(text):
        if not (ROOT / found.group()).exists() and not found.group().startswith(MADE_PATHS):
            yield f"line {text.count(chr(10), 0, found.start()) + 1}: there is no {found.group()}"


# --- the house as it is


def gather(paths: list[Path], check: Callable[[Path], Complaints]) -> str:
    """Return all complaints, one per line with the file they are about."""
    return "\n".join(f"{name_of(path)}: {complaint}" for path in paths for complaint in check(path))


def test_source_imports_only_downwards() -> None:
    files = [p for p in python_files("src/tandemq", "lab") if house_of(p)]
    assert not gather(files, lambda p: floor_complaints(house_of(p), tree_of(p)))


def test_core_does_not_know_the_world() -> None:
    core = [p for p in python_files("src/tandemq") if FLOORS.get(house_of(p), (0, ""))[1] == "core"]
    assert core
    assert not gather(core, lambda p: core_complaints(tree_of(p)))


def test_parts_of_a_broker_change_only_themselves() -> None:
    assert not gather(python_files("src/tandemq/broker"), lambda p: reach_complaints(tree_of(p)))


def test_functions_stay_below_the_limit() -> None:
    files = python_files("src", "lab", "tests", "bench", "judge", "tools", "examples")
    assert not gather(files, lambda p: size_complaints(tree_of(p)))


def test_source_says_what_it_is() -> None:
    assert not gather(python_files("src", "lab", "bench", "judge", "tools"), lambda p: docstring_complaints(tree_of(p)))


def test_docstrings_end_with_a_sentence() -> None:
    files = python_files("src", "lab", "tests", "bench", "chaos", "judge", "tools", "examples")
    assert not gather(files, lambda p: sentence_complaints(tree_of(p)))


def test_tests_do_not_sleep() -> None:
    assert not gather(python_files("tests"), lambda p: sleep_complaints(tree_of(p)))


def test_nothing_catches_everything_outside_the_outermost_loops() -> None:
    files = [p for p in python_files("src", "lab", "tests", "bench", "judge", "tools") if name_of(p) not in OUTERMOST]
    assert not gather(files, lambda p: blind_complaints(tree_of(p)))


def test_no_test_is_skipped() -> None:
    assert not gather(python_files("tests"), lambda p: skip_complaints(tree_of(p)))


def test_nothing_is_left_to_do_and_no_place_is_named() -> None:
    texts = [p for p in tracked() if p.suffix not in {".png", ".gz", ".zip", ".bin", ".class", ".jar"}]
    texts = [p for p in texts if "golden" not in p.parts]
    assert not gather(texts, lambda p: text_complaints(p.read_text(encoding="utf-8")))


def test_processes_of_tests_leave_nothing_in_the_tree() -> None:
    directories = {name_of(path).partition("/")[0] for path in tracked() if path.parent != ROOT}
    assert directories == DIRECTORIES


def test_paths_that_are_named_exist() -> None:
    folders = ("tools/", "docs/", "lab/", "bench/", "chaos/", "judge/", "src/")
    roots = (".ci/", ".github/", "Makefile", "pyproject.toml", *folders)
    texts = [p for p in tracked() if name_of(p).startswith(roots) or name_of(p).endswith(".md")]
    texts = [p for p in texts if p.suffix in {"", ".py", ".pyi", ".pyx", ".pxi", ".md", ".sh", ".yml", ".toml"}]
    assert not gather(texts, lambda p: path_complaints(p.read_text(encoding="utf-8")))


def test_file_names_are_nouns_of_the_field() -> None:
    pages = [p for p in tracked() if name_of(p).startswith("docs/")]
    assert not gather([*python_files("src", "lab", "judge"), *pages], stem_complaints)


def test_source_and_pages_use_the_words_of_the_field() -> None:
    roots = ("src/", "lab/", "judge/", "docs/", "README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")
    texts = [p for p in tracked() if p.suffix in {".py", ".md"} and name_of(p).startswith(roots)]
    assert not gather(texts, lambda p: word_complaints(p.read_text(encoding="utf-8")))


def test_package_init_of_the_core_holds_design_and_names_only() -> None:
    bad = []
    for path in python_files("src/tandemq"):
        if path.name == "__init__.py" and FLOORS.get(house_of(path), (0, ""))[1] == "core":
            bad += [
                f"{name_of(path)}: line {node.lineno}: code in __init__"
                for node in tree_of(path).body
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.For | ast.While | ast.With)
            ]
    assert not bad, "\n".join(bad)


# --- the house, as a whole


FORMAT_SKIPS_MAX = 35


def module_of(path: Path) -> str:
    """Return the name under which a source file is imported."""
    root = ROOT if path.is_relative_to(LAB) else PACKAGE.parent
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def import_graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports, wherever the import stands: in functions and for typing too."""
    graph: dict[str, set[str]] = {}
    for module, tree in trees.items():
        found = {name for _, owner, item in imports_in(tree) for name in (owner, f"{owner}.{item}") if name in trees}
        graph[module] = found - {module}
    return graph


def circles_in(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules from which imports lead back to themselves."""
    reached = {module: set(following) for module, following in graph.items()}
    changed = True
    while changed:
        changed = False
        for following in reached.values():
            more = set[str]().union(*(reached[module] for module in following)) - following
            following |= more
            changed = changed or bool(more)
    return {module for module, following in reached.items() if module in following}


@cache
def source_graph() -> dict[str, set[str]]:
    """Return the import graph of the package and the lab; `__init__` files only list names and do not count."""
    files = [path for path in python_files("src/tandemq", "lab") if path.name != "__init__.py"]
    return import_graph({module_of(path): tree_of(path) for path in files})


def test_no_part_of_a_broker_knows_the_broker() -> None:
    above = {"tandemq.broker.node"}
    parts = {name: found for name, found in source_graph().items() if name.startswith("tandemq.broker.")}
    holders = {module for module, following in parts.items() if following & above}
    assert holders == set()


def test_node_of_a_broker_names_no_feature_but_sends_and_pulls() -> None:
    inside = "tandemq.broker.features."
    named = {name.removeprefix(inside) for name in source_graph()["tandemq.broker.node"] if name.startswith(inside)}
    assert named == {"built", "sends.processor", "pulls.processor"}


def test_kernel_of_a_broker_knows_no_part_of_it() -> None:
    assert rooms_of(source_graph(), "tandemq.broker")["kernel"] <= {"state", "filter"}


def test_features_of_a_broker_know_its_kernel_and_not_each_other() -> None:
    below = ("tandemq.broker.kernel", "tandemq.broker.state", "tandemq.broker.filter")
    inside = "tandemq.broker.features."
    for module, following in source_graph().items():
        if not module.startswith(inside) or module == "tandemq.broker.features.built":
            continue
        own = f"{inside}{module.removeprefix(inside).split('.')[0]}."
        above = [
            name for name in following if name.startswith("tandemq.broker.") and not name.startswith((own, *below))
        ]
        assert not above, f"{module} imports {above}"


def wide_constructors(tree: ast.Module, most: int) -> Complaints:
    """Yield classes whose constructors take more than a number of arguments: their part of the house is cut wrongly."""
    for holder in [node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)]:
        for method in holder.body:
            if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                count = len(method.args.args) + len(method.args.kwonlyargs) - 1
                if count > most:
                    yield f"{holder.name} takes {count} arguments"


def test_constructors_take_what_a_part_needs_and_no_more() -> None:
    """The kernel and the node get what comes from outside; the clients' producer gets its user's options."""
    found = gather(python_files("src/tandemq"), lambda p: wide_constructors(tree_of(p), 8))
    assert {line.split()[1] for line in found.splitlines()} == {"Broker", "TransactionProducer"}
    found = gather(python_files("src/tandemq/broker"), lambda p: wide_constructors(tree_of(p), 6))
    assert {line.split()[1] for line in found.splitlines()} == {"PullRequest", "Kernel", "Broker"}


def test_imports_run_in_no_circles() -> None:
    assert not circles_in(source_graph())


def rooms_of(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """Return which direct parts of a package (folders and modules) import which others."""
    inside = f"{package}."
    rooms: dict[str, set[str]] = {}
    for module, following in graph.items():
        if module.startswith(inside):
            room = module.removeprefix(inside).split(".")[0]
            found = {name.removeprefix(inside).split(".")[0] for name in following if name.startswith(inside)}
            rooms.setdefault(room, set()).update(found - {room})
    return rooms


def test_imports_inside_a_package_run_one_way() -> None:
    splits = [module.split(".") for module in source_graph()]
    packages = {".".join(parts[:depth]) for parts in splits for depth in range(2, len(parts))}
    circles = {package: circles_in(rooms_of(source_graph(), package)) for package in packages}
    assert not {package: circle for package, circle in circles.items() if circle}


def test_circle_check_sees_imports_for_typing_and_in_functions() -> None:
    sources = {
        "a": "from b import B",
        "b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from c import C",
        "c": "def late() -> None:\n    import a",
        "d": "import a",
    }
    assert circles_in(import_graph({name: ast.parse(text) for name, text in sources.items()})) == {"a", "b", "c"}


def test_no_two_public_classes_share_a_name() -> None:
    for places in (("src/tandemq", "lab"), ("judge",)):  # the judge knows nothing of the others
        names = [
            node.name
            for path in python_files(*places)
            for node in tree_of(path).body
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        ]
        assert {name for name in names if names.count(name) > 1} == set()


def test_the_formatter_formats() -> None:
    mark = "# fmt: " + "skip"
    files = python_files("src", "lab", "tests", "bench", "chaos", "judge", "tools", "examples")
    assert sum(path.read_text(encoding="utf-8").count(mark) for path in files) <= FORMAT_SKIPS_MAX


# --- each check complains when it should


@pytest.mark.parametrize(
    ("house", "source"),
    [
        ("codec", "from tandemq.storage import store"),
        ("storage", "import tandemq.replication.master"),
        ("broker", "from tandemq.client import Producer"),
        ("broker", "from tandemq import nameserver"),
        ("broker", "from tandemq.real import loop"),
        ("client", "from tandemq.storage import store"),
        ("real", "def late() -> None:\n    from tandemq.storage import store"),
        ("errors", "from tandemq.config.settings import BrokerConfig"),
        ("cellar", "import json"),
        ("cli", "from lab.sim import runner"),
        ("lab", "from tandemq.cli import main"),
    ],
)
def test_floor_check_sees_imports_upwards_and_sideways(house: str, source: str) -> None:
    assert list(floor_complaints(house, ast.parse(source)))


@pytest.mark.parametrize(
    ("house", "source"),
    [
        ("storage", "from tandemq.codec import record\nfrom tandemq.storage.segment import Segment"),
        ("broker", "from tandemq.storage import store\nfrom tandemq.replication import master"),
        ("cli", "from tandemq.demo import scene\nfrom tandemq.load import produce"),
        ("lab", "from lab.sim import runner\nfrom tandemq.broker.node import Broker"),
        ("config", "from tandemq.errors import ConfigError"),
    ],
)
def test_floor_check_lets_imports_downwards_pass(house: str, source: str) -> None:
    assert not list(floor_complaints(house, ast.parse(source)))


REACHING = """
class Part:
    def __init__(self, pull: Pull) -> None:
        self._pull = pull
    def f(self) -> None:
        {body}
"""


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (core_complaints, "import time"),
        (core_complaints, "from os import path"),
        (core_complaints, "import concurrent.futures"),
        (core_complaints, "async def f() -> None: ..."),
        (size_complaints, "def f() -> None:\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
        (reach_complaints, REACHING.format(body="self._pull.refusal = None")),
        (reach_complaints, REACHING.format(body="self._pull.reads.choice = None")),
        (reach_complaints, REACHING.format(body="pull, self.x = self._pull, 1\n        pull.count += 1")),
        (docstring_complaints, "x = 1"),
        (docstring_complaints, '"""A module."""\ndef f() -> None: ...'),
        (docstring_complaints, '"""A module."""\nclass A:\n    """A class."""\n    def f(self) -> None: ...'),
        (sentence_complaints, '"""Noun.\n\nBytes are kept until they are\n"""'),
        (sentence_complaints, 'x = 1\n"""Messages of an earlier time,"""'),
        (sleep_complaints, "import time\ntime.sleep(1)"),
        (sleep_complaints, "from time import sleep"),
        (sleep_complaints, "async def f() -> None:\n    await asyncio.sleep(0.1)"),
        (blind_complaints, "try:\n    f()\nexcept:\n    pass"),
        (blind_complaints, "try:\n    f()\nexcept (ValueError, Exception):\n    pass"),
        (skip_complaints, "@pytest.mark.skip\ndef test_f() -> None: ..."),
        (skip_complaints, "def test_f() -> None:\n    pytest.skip('later')"),
    ],
)
def test_check_complains_about(check: Callable[[ast.Module], Complaints], source: str) -> None:
    assert list(check(ast.parse(source)))


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (core_complaints, "from random import Random\nimport json"),
        (size_complaints, "def f() -> None:\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
        (reach_complaints, REACHING.format(body="self._x = self._pull.count\n        self._pull.refuse(None)")),
        (reach_complaints, REACHING.format(body="record = self._pull.find()\n        record.count += 1")),
        (docstring_complaints, '"""A module."""\ndef _f() -> None: ...'),
        (sentence_complaints, '"""Noun.\n\nA   before\nB   after\n"""'),
        (sleep_complaints, "async def f() -> None:\n    await asyncio.sleep(0)"),
        (blind_complaints, "try:\n    f()\nexcept ValueError:\n    pass"),
    ],
)
def test_check_lets_pass(check: Callable[[ast.Module], Complaints], source: str) -> None:
    assert not list(check(ast.parse(source)))


@pytest.mark.parametrize(
    "text",
    [
        "# TO" + "DO: later",
        "until they X" + "X",
        "--index" + "-url somewhere",
        "see /ho" + "me/someone/file",
        "https://user:" + "secret@host/",
    ],
)
def test_text_check_complains_about(text: str) -> None:
    assert list(text_complaints(text))


def test_path_check_complains_about_paths_that_do_not_exist() -> None:
    assert list(path_complaints("make test WHERE=tests/unit/broker/gone")) == [
        "line 1: there is no tests/unit/broker/gone"
    ]
    assert list(path_complaints("\nsee tests/gone.py.")) == ["line 2: there is no tests/gone.py"]
    assert not list(path_complaints("tests/test_tidy.py, tests/unit/ and build/tests/gone, tests/gone-*.py"))


def test_name_check_complains_about_retired_names_only() -> None:
    names = [*RETIRED_STEMS, "json_tables", "commit_log", "partial_frames"]
    assert [name for name in names if list(stem_complaints(PACKAGE / f"{name}.py"))] == list(RETIRED_STEMS)


@pytest.mark.parametrize("word", RETIRED_WORDS, ids=lambda word: word.example)
def test_word_check_complains_about(word: Retired) -> None:
    complaints = list(word_complaints(f"One plain line.\n{word.example}\n"))
    assert all(complaint.startswith("line 2: ") for complaint in complaints)
    assert [complaint for complaint in complaints if complaint.endswith(f"; write: {word.instead}")]


def test_word_check_lets_plain_lines_pass() -> None:
    plain = "One replica reports its log end; the others are notified.\nstore/set-aside/4096\n`--replica DIRECTORY`\n"
    assert not list(word_complaints(plain))
