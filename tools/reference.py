"""Pages of docs/reference that are written from the code: python -m tools.reference.

    commands.md     every command of the command line with its arguments and options, from click
    settings.md     every setting of a broker and of a name server, from the fields of `tandemq.config.settings`
    metrics.md      every metric family of a broker and of a name server, and the alert rules of deploy/monitoring
    console-api.md  every operation of the console's JSON API; tools/console_api.py
    codes.md        every request code, from the docstrings in `tandemq.model.codes`
    histories.md    every operation, field, promise and rule of histories, from `judge`
    spark-options.md  every option of the formats for Spark, from the tables in `tandemq.spark.sources`
    tests.md        kinds of tests, their numbers and last figures, versions of peers; tools/tested.py

`make reference` and `make docs` write them, and git ignores them. tests/test_docs.py fails when something has no
description.
"""

import ast
import dataclasses
import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import click

import tandemq
from judge import history
from judge.anomalies import RULES
from tandemq.cli import main as command_line
from tandemq.config import settings
from tandemq.config.files import LIVE_KEYS, LIVE_RANGES, ZERO_IS_UNLIMITED
from tandemq.config.settings import BrokerConfig, MonitoringConfig, NameServerConfig, ProxyConfig, TlsConfig
from tandemq.model import codes
from tandemq.spark.sources.cluster import kafka_options
from tandemq.telemetry.families import Family
from tools import tested
from tools.console_api import api_page
from tools.dashboards import alert_rules

REPOSITORY = Path(__file__).resolve().parent.parent
REFERENCE = REPOSITORY / "docs" / "reference"

_COMMANDS_HEAD = """\
# Commands

Every command of `tandemq`, as `--help` describes it. Made from the code. When to use which, exit codes and examples:
[operations](../guides/operations.md). All take `--help`; the tables leave it out.
"""
_SETTINGS_HEAD = """\
# Settings

Every setting of a broker and of a name server, under RocketMQ's own names. Made from the code. How files are read, and
what happens to keys that TandemQ does not have: [configuration](configuration.md). What each choice of flushing and
copying promises: [guarantees](guarantees.md). As in RocketMQ, both are asynchronous unless set otherwise.

*While running* says whether [a request](configuration.md#changes-while-running) can change the setting, and the range
that it accepts; a file may have values outside that range.
"""
_HISTORIES_HEAD = """\
# Histories, the format

Made from the code of `judge`. A history is a file of JSON lines: the header, then operations and their outcomes, in the
order in which they happened. How to write and judge one: [histories](../internals/histories.md).

```json
{"format": "message-history", "version": 1, "run": "seed 7", "promises": {"duplicates": "sends"}}
{"t": 1.5, "p": "a", "f": "send", "type": "invoke", "op": 1, "id": "a-1", "topic": "Orders", "hash": "0f3a"}
{"t": 2.0, "p": "a", "f": "send", "type": "ok", "op": 1, "status": "SEND_OK", "q": "Orders/broker-a/0", "offset": 0}
{"t": 3.0, "p": "c", "f": "poll", "type": "ok", "group": "g", "q": "Orders/broker-a/0", "messages": [[0, "a-1"]]}
```
"""
_METRICS_HEAD = """\
# Metrics

Every metric of a broker and of a name server, and every alert rule. Made from the code and from
`deploy/monitoring/rules.yml`. How to scrape, dashboards, and differences from RocketMQ:
[monitoring](../guides/monitoring.md).

Beside the labels in the tables, `rocketmq_…` of a broker have `cluster`, `node_type` and `node_id` (the group), and
`tandemq_…` of a broker have `cluster`, `broker` (the group) and `broker_id`. A histogram has the samples `…_bucket`,
`…_sum` and `…_count`.
"""
_CODES_HEAD = """\
# Request codes

Every request code, the nodes that answer it, and its purpose. Made from the code. Fields and responses:
[requests](requests.md). A registry is a name server with `registryEnable`. Codes from 7301 on are TandemQ's own. A node
that is not listed for a code refuses it with 3 and a remark that names it, and so do all nodes for codes that are not
in this table: [compatibility](compatibility.md#versions) lists those of RocketMQ.
"""
_OPTIONS_HEAD = """\
# Options of the Spark formats

Every option of the sources and the sink for Spark. Made from the code. Case does not matter. Unknown, malformed or
contradictory options are refused before a job starts, with the most similar valid name. What they are for, columns and
offsets: [the data pipeline](../guides/pipeline.md).
"""
_SPARK = REPOSITORY / "src" / "tandemq" / "spark" / "sources"
_MEASURED = ("broker", "nameserver", "real", "run", "telemetry")
"""Packages with metric families."""


def commands_page() -> str:
    """Return the page of commands as Markdown."""
    lines = [*_COMMANDS_HEAD.splitlines(), "", "## tandemq", *_describe("tandemq", command_line)]
    for path, command in leaf_commands(command_line, "tandemq"):
        lines += ["", f"## {path}", *_describe(path, command)]
    return "\n".join(lines) + "\n"


def leaf_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield (words, command) for each visible command that does something itself, sorted by name within its group."""
    if isinstance(command, click.Group):
        if command.invoke_without_command and path != "tandemq":
            yield path, command
        for name, child in sorted(command.commands.items()):
            if not child.hidden:
                yield from leaf_commands(child, f"{path} {name}")
    else:
        yield path, command


def _describe(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield from ("", "```text", " ".join([path, *command.collect_usage_pieces(context)]), "```")
    for paragraph in (command.help or "").replace("\b\n", "").split("\n\n"):
        yield from ("", _escape(" ".join(paragraph.split())))
    rows = [
        row
        for parameter in command.get_params(context)
        if "--help" not in parameter.opts and (row := parameter.get_help_record(context)) and row[1]
    ]
    if rows:
        yield from ("", "| Option | Meaning |", "|---|---|")
        yield from (f"| `{names.replace('|', chr(92) + '|')}` | {_escape(text)} |" for names, text in rows)


def _escape(text: str) -> str:
    """Return text that Markdown shows as it is, also in a table."""
    for character in "\\`*_<[|":
        text = text.replace(character, f"\\{character}")
    return text


def settings_page() -> str:
    """Return the page of settings as Markdown."""
    lines = _SETTINGS_HEAD.splitlines()
    meanings = _meanings()
    kinds: tuple[tuple[str, type[BrokerConfig | NameServerConfig | ProxyConfig]], ...]
    kinds = (("Broker", BrokerConfig), ("Name server", NameServerConfig), ("Proxy", ProxyConfig))
    for heading, config in kinds:
        lines += [
            "",
            f"## {heading}",
            "",
            "| Key | Default | Unit | While running | Meaning |",
            "|---|---|---|---|---|",
        ]
        owners = {
            field.name: kind for kind in (config, MonitoringConfig, TlsConfig) for field in dataclasses.fields(kind)
        }
        order = [config, MonitoringConfig, TlsConfig]
        for field in sorted(dataclasses.fields(config), key=lambda field: order.index(owners[field.name])):
            key, unit = field.metadata["key"], field.metadata["unit"]
            cells = [f"`{key}`", _as_written(field.default), unit, _while_running(config, key)]
            cells.append(_linked(meanings[owners[field.name].__name__, field.name]))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _as_written(default: object) -> str:
    if default in ("", ()):
        return "empty"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{';'.join(default)}`"
    return f"`{default}`"


def _while_running(config: type[BrokerConfig | NameServerConfig | ProxyConfig], key: str) -> str:
    defaults = config()
    if key not in LIVE_KEYS or isinstance(defaults, ProxyConfig):
        return "no"
    if key in defaults.config_black_list:
        return "file only, by `configBlackList`"
    if key not in LIVE_RANGES:
        return "yes"
    low, high = LIVE_RANGES[key]
    unlimited = "0, or " if key in ZERO_IS_UNLIMITED else ""
    return f"{unlimited}{low} and more" if high >= 1 << 62 else f"{unlimited}{low} to {high}"


def _meanings() -> dict[tuple[str, str], str]:
    """Return the text below each field of the configuration classes, by class and field."""
    found = {}
    tree = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for item, after in pairwise([*node.body, None]):
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    assert isinstance(after, ast.Expr), f"{node.name}.{item.target.id} has no meaning below it"
                    assert isinstance(after.value, ast.Constant), f"{node.name}.{item.target.id} has no text below it"
                    found[node.name, item.target.id] = " ".join(str(after.value.value).split())
    return found


def _linked(text: str) -> str:
    """Turn citations of pages, such as docs/guides/operations.md, "TLS between brokers", into links."""

    def link(cited: re.Match[str]) -> str:
        page = REPOSITORY / cited[1]
        path = f"../{Path(cited[1]).relative_to('docs')}"
        titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        if cited[2] is None:
            return f"[{titles[0]}]({path})"
        title = next(title for title in titles if cited[2] in title)
        anchor = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        return f"[{cited[2]}]({path}#{anchor})"

    return re.sub(r'(docs/[\w./-]+\.md)(?:, "([^"]+)")?', link, text)


def metrics_page() -> str:
    """Return the page of metrics and alert rules as Markdown."""
    lines = _METRICS_HEAD.splitlines()
    found = metric_families()
    for heading, prefix in (
        ("RocketMQ's metrics", "rocketmq_"),
        ("TandemQ's metrics", "tandemq_"),
        ("Process", "process_"),
    ):
        lines += ["", f"## {heading}", "", "| Name | Type | Labels | Meaning |", "|---|---|---|---|"]
        for name in sorted(found):
            if name.startswith(prefix):
                family = found[name]
                lines.append(
                    f"| `{name}` | {family.kind.value} | {', '.join(family.labels)} | {_escape(family.help)} |"
                )
    lines += ["", "## Alerts", "", "| Alert | Severity | After | Meaning, and what to do |", "|---|---|---|---|"]
    for rule in alert_rules():
        text = re.sub(r"\{\{ \$(?:labels\.)?(\w+).*?\}\}", r"<\1>", f"{rule.summary}. {rule.description}")
        lines.append(f"| `{rule.name}` | {rule.severity} | {rule.after or 'at once'} | {_escape(text)} |")
    return "\n".join(lines) + "\n"


def codes_page() -> str:
    """Return the page of request codes as Markdown."""
    lines = [*_CODES_HEAD.splitlines(), "", "| Code | Name | Answered by | Purpose |", "|---|---|---|---|"]
    meanings = _texts_below(Path(codes.__file__), "RequestCode")
    for code in sorted(codes.RequestCode):
        assert code.name in meanings, f"{code.name} has no text below it"
        nodes, _, purpose = meanings[code.name].partition(": ")
        lines.append(f"| {code.value} | {code.name} | {nodes} | {_linked(purpose.removesuffix('.'))} |")
    return "\n".join(lines) + "\n"


def _texts_below(path: Path, class_name: str) -> dict[str, str]:
    """Return the text below each assignment in a class of a file."""
    found = {}
    [node] = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == class_name
    ]
    for item, after in pairwise(node.body):
        if not isinstance(item, ast.Assign | ast.AnnAssign):
            continue
        target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[ast.unparse(target)] = " ".join(str(after.value.value).split())
    return found


def histories_page() -> str:
    """Return the page of the format of histories and of the judge's rules."""
    lines = [_HISTORIES_HEAD, "## Operations", "", "Every line has t, p, f, type; those of two lines have op.", ""]
    lines += ["| f | Meaning | invoke | ok |", "|---|---|---|---|"]
    for f, operation in history.OPERATIONS.items():
        started, done = (", ".join(fields) for fields in (operation.started, operation.done))
        lines.append(f"| `{f}` | {operation.meaning} | {started or '–'} | {done or '–'} |")
    lines += ["", "A field with ? may be missing.", "", "| Field | Meaning |", "|---|---|"]
    lines += [f"| `{name}` | {meaning} |" for name, meaning in history.MEANINGS.items()]
    lines += ["", "## Promises", "", "| Promise | Default | Meaning |", "|---|---|---|"]
    texts = _texts_below(Path(history.__file__), "Promises")
    for field in dataclasses.fields(history.Promises):
        default = ", ".join(field.default) if isinstance(field.default, tuple) else field.default
        lines.append(f"| `{field.name}` | {default} | {texts.get(field.name, '')} |")
    lines += ["", "## Rules", "", "| Rule | Anomaly | Needs |", "|---|---|---|"]
    lines += [f"| `{name}` | {rule.definition} | {rule.needs} |" for name, rule in RULES.items()]
    return "\n".join(lines) + "\n"


def options_page() -> str:
    """Return the page of options of the formats for Spark as Markdown."""
    cluster, log = _SPARK / "cluster" / "options.py", _SPARK / "log" / "options.py"
    lines = _OPTIONS_HEAD.splitlines()
    for heading, path, name in (
        ('Source `format("rocketmq")`', cluster, "SOURCE"),
        ('Sink `format("rocketmq")`', cluster, "SINK"),
        ('Source `format("rocketmq-log")`', log, "OPTIONS"),
        ('Source `format("rocketmq-lag")`', cluster, "LAG"),
    ):
        lines += ["", f"## {heading}", "", "| Option | Meaning |", "|---|---|"]
        for option, meaning in _table_in(path, name).items():
            lines.append(f"| `{option}` | {_linked(meaning).replace('|', chr(92) + '|')} |")
    lines += ["", "## Options of Kafka's connector that are refused", "", "| Option | Why | Instead |", "|---|---|---|"]
    refused = {**kafka_options.REFUSED, **{f"{name}…": what for name, what in kafka_options.REFUSED_PREFIXES.items()}}
    lines += [f"| `{name}` | {reason} | {instead} |" for name, (reason, instead) in refused.items()]
    return "\n".join(lines) + "\n"


def _table_in(path: Path, name: str) -> dict[str, str]:
    """Return a dictionary of a file without importing the file, which may need packages that are not installed."""
    tables: dict[str, dict[str, str]] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            table = tables[node.targets[0].id] = {}
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                if key is None:
                    table |= tables[ast.unparse(value)]
                elif isinstance(value, ast.Subscript):
                    table[ast.literal_eval(key)] = tables[ast.unparse(value.value)][ast.literal_eval(value.slice)]
                else:
                    table[ast.literal_eval(key)] = ast.literal_eval(value)
    return tables[name]


def metric_families() -> dict[str, Family]:
    """Return every metric family of brokers and name servers, by name."""
    found: dict[str, Family] = {}
    for package in _MEASURED:
        path = [f"{tandemq.__path__[0]}/{package}"]
        for info in pkgutil.walk_packages(path, f"tandemq.{package}."):
            for value in vars(importlib.import_module(info.name)).values():
                if isinstance(value, Family):
                    assert found.setdefault(value.name, value) is value, f"{value.name}: defined twice"
    return found


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "console-api.md": api_page,
    "codes.md": codes_page,
    "histories.md": histories_page,
    "spark-options.md": options_page,
    "tests.md": tested.page,
}


def undescribed() -> Iterator[str]:
    """Yield each row of a table that has no meaning; in the console's API field names may speak for themselves."""
    for name, make in PAGES.items():
        if name != "console-api.md":
            yield from (f"{name}: {line}" for line in make().splitlines() if re.match(r"\|.*\|\s*\|$", line))


def main() -> int:
    """Write the pages; exit code 1 if something has no description."""
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")
    missing = list(undescribed())
    for row in missing:
        print(f"no description: {row}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
