"""Find import cycles in src/tandemq, with TYPE_CHECKING blocks and imports inside functions counted.

    python tools/import_cycles.py            all cycles of modules; exit code 1 if there are any
    python tools/import_cycles.py client     only those that contain a module of tandemq.client
    python tools/import_cycles.py client --packages      also cycles between the entries of each package

A cycle is a strongly connected component of the import graph with at least two nodes.
"""

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src"
Graph = dict[str, set[str]]


def module_names() -> dict[str, Path]:
    """Return the files of all modules of the package, by their names."""
    names = {}
    for path in sorted(ROOT.rglob("tandemq/**/*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """Return the modules that a file imports anywhere in its text; a package only if the name is not a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules:
                    yield full
                elif node.module in modules:
                    yield node.module


def import_graph() -> Graph:
    """Return the modules that each module imports."""
    modules = module_names()
    return {name: set(imported(path, modules)) - {name} for name, path in modules.items()}


def cycles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components with at least two nodes (Tarjan, without recursion), sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, children = work[-1]
            child = next((c for c in children if c in graph and (c not in index or c in on_stack)), None)
            if child is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = stack[stack.index(node) :]
                    del stack[stack.index(node) :]
                    on_stack.difference_update(component)
                    if len(component) > 1:
                        found.append(sorted(component))
            elif child in index:
                low[node] = min(low[node], index[child])
            else:
                index[child] = low[child] = len(index)
                stack.append(child)
                on_stack.add(child)
                work.append((child, iter(sorted(graph[child]))))
    return sorted(found)


def package_graphs(graph: Graph) -> dict[str, Graph]:
    """Return, for each package, which of its entries import which other ones."""
    found: dict[str, Graph] = {}
    for name, targets in graph.items():
        for target in targets:
            left, right = name.split("."), target.split(".")
            shared = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
            if shared is not None:
                entries = found.setdefault(".".join(left[:shared]), {})
                entries.setdefault(right[shared], set())
                entries.setdefault(left[shared], set()).add(right[shared])
    return found


def main() -> int:
    """Print the cycles; 1 if there are any."""
    parser = argparse.ArgumentParser(description="Find import cycles in src/tandemq.")
    parser.add_argument("package", nargs="?", default="", help="only this package below tandemq, for instance client")
    parser.add_argument("--packages", action="store_true", help="also cycles between the entries of each package")
    args = parser.parse_args()
    prefix = f"tandemq.{args.package}".rstrip(".")

    def is_wanted(name: str) -> bool:
        return name == prefix or name.startswith(prefix + ".")

    graph = import_graph()
    lines = [f"modules: {' '.join(c)}" for c in cycles(graph) if any(map(is_wanted, c))]
    if args.packages:
        for package, entries in sorted(package_graphs(graph).items()):
            if is_wanted(package):
                lines += [f"entries of {package}: {' '.join(c)}" for c in cycles(entries)]
    print("\n".join(lines) or f"no import cycle in {prefix}")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
