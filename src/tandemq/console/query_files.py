"""Streaming queries of pipeline projects, from their checkpoints, and from progress files where there are some.

    DIR/checkpoints/<query>/                       plain structured streaming
    DIR/storage/_checkpoints/…/<flow>/<number>/    declarative pipelines; the highest number is in use
        metadata          {"id": …}                identity of the query
        offsets/<batch>   its second line          watermark; one line per source: end of what the micro-batch reads
        commits/<batch>   its second line          watermark of the next micro-batch; the file's time is that of the end
    DIR/progress/<query>.json                      `tandemq.spark.runtime.query_files`: rows, speed, state

At most `QUERIES_MAX` queries of a project are read, and files of at most `FILE_BYTES_MAX`.
Source: docs/guides/pipeline-project.md, "In the console"; Spark's OffsetSeqLog, CommitLog.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

QUERIES_MAX = 100
DIRECTORIES_MAX = 2_000
DEPTH_MAX = 8
FILE_BYTES_MAX = 1 << 20
HISTORY = 60
RUNNING, ENDED, FAILED, UNKNOWN = "running", "ended", "failed", "unknown"
"""States that a query last wrote; a driver that was killed leaves `running`."""


@dataclass(slots=True)
class QueryStatus:
    """A streaming query."""

    name: str
    is_declarative: bool = False
    """Whether it is a flow of a declarative pipeline."""
    id: str = ""
    error: str = ""
    """Why its files cannot be read, or why it failed; "" otherwise."""
    state: str = UNKNOWN
    batch: int | None = None
    """The last micro-batch that ended; None: none has."""
    is_pending: bool = False
    """Whether a later micro-batch is planned: it runs, or will run again after a restart."""
    at_ms: int = 0
    """When it ended."""
    rows: int | None = None
    rows_per_s: float | None = None
    watermark_ms: int | None = None
    """None: it has none, or none yet."""
    state_rows: int | None = None
    state_bytes: int | None = None
    late_rows: int | None = None
    """Rows dropped because the watermark had passed them, since the query was started."""
    behind: int | None = None
    """Messages that were in the topics and not read by the last micro-batch."""
    history: list[int] = field(default_factory=list)
    """Rows of the last micro-batches, oldest first."""


@dataclass(slots=True)
class ProjectStatus:
    """A project."""

    path: Path
    error: str = ""
    queries: list[QueryStatus] = field(default_factory=list)


class _TooLarge(ValueError):
    """A file is not read."""


def read_project(path: Path) -> ProjectStatus:
    """Read the queries of a project, by name; a file that is malformed gives its query an error."""
    found = ProjectStatus(path)
    try:
        checkpoints = sorted(_checkpoints(path))
    except OSError as error:
        found.error = error.strerror or "it cannot be read"
        return found
    reports, faults = _reports(path / "progress")
    queries = [_query(name, directory) for name, directory in checkpoints[:QUERIES_MAX]]
    for query in queries:
        if (report := reports.get(query.id)) is not None:
            _add_report(query, report)
    found.queries = sorted([*queries, *faults], key=lambda entry: (entry.is_declarative, entry.name))
    if not found.queries:
        found.error = "it has no streaming queries yet"
    return found


def _checkpoints(project: Path) -> Iterator[tuple[str, Path]]:
    """Yield the checkpoints with their queries' names, of each declarative flow the newest one."""
    if not project.is_dir():
        raise FileNotFoundError(2, "there is no such directory")
    flows: dict[Path, Path] = {}
    for directory in _with_metadata(project / "checkpoints", project / "storage" / "_checkpoints"):
        if directory.name.isdigit():
            known = flows.get(directory.parent)
            if known is None or int(known.name) < int(directory.name):
                flows[directory.parent] = directory
        else:
            yield directory.name, directory
    for flow, directory in flows.items():
        yield flow.name, directory


def _with_metadata(*roots: Path) -> Iterator[Path]:
    waiting = [(root, 0) for root in roots if root.is_dir()]
    seen = 0
    while waiting and seen < DIRECTORIES_MAX:
        directory, depth = waiting.pop()
        seen += 1
        if (directory / "metadata").is_file():
            yield directory
        elif depth < DEPTH_MAX:
            waiting += [
                (child, depth + 1) for child in directory.iterdir() if child.is_dir() and not child.is_symlink()
            ]


def _query(name: str, directory: Path) -> QueryStatus:
    found = QueryStatus(name, is_declarative=directory.name.isdigit())
    try:
        found.id = str(msgspec.json.decode(_text(directory / "metadata"), type=dict)["id"])
        planned, ended = _batches(directory / "offsets"), _batches(directory / "commits")
        if not ended:
            found.is_pending = bool(planned)
            return found
        found.batch = ended[-1]
        found.is_pending = bool(planned) and planned[-1] > ended[-1]
        commit = directory / "commits" / str(ended[-1])
        found.at_ms = int(commit.stat().st_mtime * 1000)
        found.watermark_ms = int(_lines(commit)[0].get("nextBatchWatermarkMs", 0)) or None
        found.history = _rows(directory / "offsets", [batch for batch in planned if batch <= ended[-1]][-HISTORY - 1 :])
        found.rows = found.history[-1] if found.history else None
    except FileNotFoundError:
        found.error = "its checkpoint changes or is incomplete"
    except OSError as error:
        found.error = error.strerror or "it cannot be read"
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        found.error = str(error) if isinstance(error, _TooLarge) else "its checkpoint is malformed"
    return found


def _batches(directory: Path) -> list[int]:
    return (
        sorted(int(child.name) for child in directory.iterdir() if child.name.isdigit()) if directory.is_dir() else []
    )


def _rows(directory: Path, batches: list[int]) -> list[int]:
    """Return the messages of micro-batches of cluster sources, from the positions where they end; [] of others."""
    ends = [[_position(line) for line in _lines(directory / str(batch))[1:]] for batch in batches]
    if not ends or any(position is None for position in ends[-1]):
        return []
    totals = [sum(position or 0 for position in end) for end in ends]
    return [max(0, after - before) for before, after in zip(totals, totals[1:], strict=False)]


def _position(line: Any) -> int | None:
    """Return the sum of a source's queue offsets; None for a source without queues."""
    total = None
    for brokers in line.values():
        for queues in brokers.values() if isinstance(brokers, dict) else ():
            if isinstance(queues, dict):
                total = (total or 0) + sum(int(offset) for queue, offset in queues.items() if queue.isdigit())
    return total


def _reports(directory: Path) -> tuple[dict[str, Any], list[QueryStatus]]:
    """Return the progress files by id of the query, and malformed ones as queries with an error."""
    found, faults = dict[str, Any](), []
    paths = sorted(directory.glob("*.json"))[:QUERIES_MAX] if directory.is_dir() else []
    for path in paths:
        try:
            report = msgspec.json.decode(_text(path), type=_Report)
            found[report.id] = report
        except OSError:
            continue  # it is being replaced, or not for us
        except ValueError as error:
            what = str(error) if isinstance(error, _TooLarge) else "its progress file is malformed"
            faults.append(QueryStatus(path.stem, error=what))
    return found, faults


class _Report(msgspec.Struct, rename="camel"):
    """A progress file."""

    id: str
    state: str
    error: str = ""
    at_ms: int = 0
    rows: int | None = None
    rows_per_second: float | None = None
    watermark_ms: int | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    late_rows: int | None = None
    behind: int | None = None
    history: list[int] = []


def _add_report(query: QueryStatus, report: _Report) -> None:
    query.state = report.state if report.state in (RUNNING, ENDED, FAILED) else UNKNOWN
    query.error = query.error or report.error
    query.rows, query.rows_per_s = report.rows, report.rows_per_second
    query.watermark_ms = query.watermark_ms or report.watermark_ms or None
    query.state_rows, query.state_bytes = report.state_rows, report.state_bytes
    query.late_rows, query.behind = report.late_rows, report.behind
    query.history = report.history[-HISTORY:] or query.history


def _lines(path: Path) -> list[Mapping[str, Any]]:
    """Return the objects of a file of Spark's logs, which begins with a version."""
    return [msgspec.json.decode(line, type=dict) for line in _text(path).splitlines()[1:] if line.strip() != b"-"]


def _text(path: Path) -> bytes:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise _TooLarge(f"{path.name} has more than {FILE_BYTES_MAX} bytes")
    with open(path, "rb") as file:
        return file.read(FILE_BYTES_MAX)
