"""`python -m judge HISTORY`: find anomalies in a history of messages."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from judge.anomalies import RULES, Anomaly
from judge.history import HistoryError
from judge.verdict import Verdict, judge

EXIT_ANOMALIES, EXIT_UNREADABLE = 3, 2
SHOWN = 10
_TEXT_MAX = 400


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(
        prog="python -m judge",
        description="Find anomalies in a history of messages. docs/internals/histories.md describes the format.",
        epilog="Exit code 0: no anomaly. 3: anomalies were found. 2: the history cannot be read, or the command line.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("history", nargs="?", metavar="HISTORY", help="file of JSON lines; - for standard input")
    found.add_argument(
        "--allow",
        action="append",
        default=[],
        choices=list(RULES),
        metavar="RULE",
        help="a rule whose anomalies are reported and do not count; may be repeated",
    )
    found.add_argument("--show", type=int, default=SHOWN, metavar="N", help=f"anomalies per rule; default: {SHOWN}")
    found.add_argument("--json", action="store_true", help="print the result as JSON, with all anomalies")
    found.add_argument("--rules", action="store_true", help="print the rules and their definitions")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Judge a history and print the result; return the exit code."""
    command = parser()
    args = command.parse_args(arguments)
    if args.rules:
        for name, rule in RULES.items():
            print(f"{name:16} {rule.definition}; needs {rule.needs}")
        return 0
    if args.history is None:
        command.error("which history? Name its file, or - for standard input")
    try:
        with _opened(args.history) as lines:
            verdict = judge(lines)
    except (HistoryError, OSError, UnicodeDecodeError) as error:
        print(f"{args.history}: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    bad = {rule: count for rule, count in verdict.counts.items() if rule not in args.allow}
    if args.json:
        print(json.dumps(_as_json(args.history, verdict, args.allow), indent=2))
    else:
        _print(args, verdict)
    return EXIT_ANOMALIES if bad else 0


@contextmanager
def _opened(name: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdin
    else:
        with Path(name).open(encoding="utf-8") as file:
            yield file


def _as_json(name: str, verdict: Verdict, allowed: Iterable[str]) -> dict[str, Any]:
    return {
        "history": name,
        "run": verdict.header.run,
        "system": verdict.header.system,
        "promises": asdict(verdict.header.promises),
        "lines": verdict.lines,
        "operations": dict(sorted(verdict.operations.items())),
        "counts": dict(verdict.counts),
        "allowed": sorted(allowed),
        "notJudged": verdict.not_judged,
        "anomalies": [anomaly._asdict() for anomaly in verdict.anomalies],
    }


def _print(args: argparse.Namespace, verdict: Verdict) -> None:
    header, operations = verdict.header, verdict.operations
    named = ", ".join(f"{count:,} {name}" for name, count in sorted(operations.items()))
    print(f"{args.history}: {' '.join(filter(None, (header.system, header.run)))} {verdict.lines:,} lines: {named}")
    shown: dict[str, list[Anomaly]] = {}
    for anomaly in verdict.anomalies:
        of_rule = shown.setdefault(anomaly.rule, [])
        if len(of_rule) < args.show:
            of_rule.append(anomaly)
    wanted = {line for found in shown.values() for anomaly in found for line in anomaly.lines}
    texts = {} if args.history == "-" else _texts(args.history, wanted)
    for rule, count in verdict.counts.items():
        print(f"{rule}: {count:,}{' (allowed)' if rule in args.allow else ''}, {RULES[rule].definition}")
        for anomaly in shown.get(rule, ()):
            print(f"  {anomaly.text}")
            for line in anomaly.lines:
                print(f"    line {line}{': ' + texts[line] if line in texts else ''}")
    for text in verdict.not_judged:
        print(text)
    print("no anomaly was found" if not verdict.counts else f"{sum(verdict.counts.values()):,} anomalies")


def _texts(name: str, wanted: set[int]) -> dict[int, str]:
    """Return the texts of lines."""
    if not wanted:
        return {}
    with _opened(name) as lines:
        found = {number: text.rstrip("\n") for number, text in enumerate(lines, 1) if number in wanted}
    return {
        number: text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}… ({len(text)} characters)"
        for number, text in found.items()
    }


if __name__ == "__main__":
    sys.exit(main())
