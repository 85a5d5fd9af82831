"""Files of the data pipeline on disk: lakes, results of checks, reports, projects. It needs no Spark.

    lake/_delta_log/<version>.json     commits: files with their rows, positions of archived logs
    lake/_tandemq/collect/             the lake is filled from queues
    state files of scrub and audit     a line per finished range, with its faults

Only the files that the console was started with are read; of a lake's commits the newest `COMMITS_MAX`, of which each
may have `COMMIT_BYTES_MAX`; nothing is read from data files. Source: docs/guides/pipeline.md; `tandemq.spark.lake`,
`tandemq.spark.jobs.tasks`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tandemq.console.query_files import ProjectStatus, read_project

COMMITS_MAX = 200
COMMIT_BYTES_MAX = 4 << 20
STATE_BYTES_MAX = 32 << 20
REPORT_BYTES_MAX = 64 << 20
POSITION = "tandemq-log:"
EPOCH = "tandemq-epoch:"
COLLECTED = "tandemq-collect"
"""Names of marks in commits, as `tandemq.spark` writes them."""
_COMMIT = re.compile(r"[0-9]{20}\.json")
_JOB = re.compile(r"(scrub|audit) (.+) [0-9]+")


@dataclass(frozen=True, slots=True)
class PipelinePaths:
    """Where the pipeline's files are."""

    lakes: tuple[Path, ...] = ()
    states: tuple[Path, ...] = ()
    """State files of `tandemq spark scrub` and `tandemq spark audit`."""
    reports: tuple[Path, ...] = ()
    """Pages made by `tandemq spark report`."""
    projects: tuple[Path, ...] = ()
    """Directories of pipeline projects, whose streaming queries are shown."""


@dataclass(slots=True)
class ArchivedLog:
    """The log of a broker group in a lake: it is there up to `position`."""

    broker: str
    position: int
    epoch: int | None
    at_ms: int
    """Time of the last commit that moved the position."""


@dataclass(slots=True)
class LakeStatus:
    """A lake, from its newest commits."""

    path: Path
    error: str = ""
    """Why it cannot be read; "" if it can."""
    version: int = 0
    commits: int = 0
    """Number of commits that were read; the following fields are of these commits."""
    committed_ms: int = 0
    """Time of the last commit that added messages; 0: none of them did."""
    compacted_ms: int = 0
    rows: list[int] = field(default_factory=list)
    """Rows added by each commit that added messages, oldest first."""
    bytes: int = 0
    logs: dict[str, ArchivedLog] = field(default_factory=dict)
    """By broker group."""
    is_collected: bool = False
    """Whether it is filled from queues, so that it has no positions of logs."""


@dataclass(slots=True)
class CheckStatus:
    """A check, from its state file."""

    path: Path
    error: str = ""
    kind: str = ""
    """scrub or audit."""
    subject: str = ""
    """The directories that it reads."""
    is_done: bool = False
    changed_ms: int = 0
    bytes: int = 0
    """Bytes of log that were checked."""
    records: int | None = None
    """Scrub: records that were read."""
    faults: int = 0
    """Damaged or differing records."""
    first_fault: int | None = None
    """The lowest log offset of a fault."""


@dataclass(slots=True)
class ReportStatus:
    """A report."""

    path: Path
    error: str = ""
    made_ms: int = 0
    size: int = 0


@dataclass(slots=True)
class PipelineStatus:
    """All of them, in the order in which they were given."""

    lakes: list[LakeStatus]
    checks: list[CheckStatus]
    reports: list[ReportStatus]
    projects: list[ProjectStatus]


def read_pipeline(paths: PipelinePaths) -> PipelineStatus:
    """Read the state of the pipeline; blocks for as long as the files take. A file that is malformed has an error."""
    return PipelineStatus(
        [_lake(path) for path in paths.lakes],
        [_check(path) for path in paths.states],
        [_report(path) for path in paths.reports],
        [read_project(path) for path in paths.projects],
    )


def read_report(path: Path) -> bytes:
    """Return a report. Raises OSError if it cannot be read, ValueError if it is too large."""
    if path.stat().st_size > REPORT_BYTES_MAX:
        raise ValueError(f"it has more than {REPORT_BYTES_MAX} bytes")
    return path.read_bytes()


def _lake(path: Path) -> LakeStatus:
    found = LakeStatus(path)
    try:
        found.is_collected = (path / "_tandemq" / "collect").is_dir()
        names = sorted(entry.name for entry in (path / "_delta_log").iterdir() if _COMMIT.fullmatch(entry.name))
        if not names:
            found.error = "it has no commits"
            return found
        found.version = int(names[-1].removesuffix(".json"))
        for name in names[-COMMITS_MAX:]:
            _add_commit(found, _lines(path / "_delta_log" / name, COMMIT_BYTES_MAX))
            found.commits += 1
    except FileNotFoundError:
        found.error = "there is no lake yet"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        found.error = _reason(error)
    return found


def _add_commit(found: LakeStatus, lines: Iterator[Any]) -> None:
    at_ms, rows, is_compaction, adds = 0, 0, False, False
    for line in lines:
        if "commitInfo" in line:
            at_ms = int(line["commitInfo"].get("timestamp", 0))
            is_compaction = line["commitInfo"].get("operation") == "OPTIMIZE"
        elif "add" in line and line["add"].get("dataChange", True):
            adds = True
            rows += int(msgspec.json.decode(line["add"].get("stats") or "{}").get("numRecords", 0))
            found.bytes += int(line["add"]["size"])
        elif "txn" in line:
            _add_mark(found, str(line["txn"]["appId"]), int(line["txn"]["version"]), at_ms)
    if is_compaction:
        found.compacted_ms = at_ms
    elif adds:
        found.committed_ms = at_ms
        found.rows.append(rows)


def _add_mark(found: LakeStatus, name: str, value: int, at_ms: int) -> None:
    if name.startswith(POSITION):
        broker = name.removeprefix(POSITION)
        before = found.logs.get(broker)
        found.logs[broker] = ArchivedLog(broker, value, None if before is None else before.epoch, at_ms)
    elif name.startswith(EPOCH):
        broker = name.removeprefix(EPOCH)
        if (known := found.logs.get(broker)) is None:
            found.logs[broker] = ArchivedLog(broker, 0, value, at_ms)
        else:
            known.epoch = value
    elif name == COLLECTED:
        found.is_collected = True


def _check(path: Path) -> CheckStatus:
    found = CheckStatus(path)
    try:
        found.changed_ms = int(path.stat().st_mtime * 1000)
        lines = _lines(path, STATE_BYTES_MAX)
        named = _JOB.fullmatch(str(next(lines)["job"]))
        if named is None:
            found.error = "it is not the state of a scrub or an audit"
            return found
        found.kind, found.subject = named[1], named[2]
        for line in lines:
            if line.get("ended"):
                found.is_done = True
            else:
                _add_range(found, line)
    except FileNotFoundError:
        found.error = "there is no such file yet"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        found.error = _reason(error)
    return found


def _add_range(found: CheckStatus, line: Any) -> None:
    start, end = line["range"]
    result = line["result"]
    found.bytes += int(end) - int(start)
    if found.kind == "scrub":
        found.records = (found.records or 0) + int(result["records"])
    faults = result["damages" if found.kind == "scrub" else "differences"]
    # An audit counts all differences, and lists some.
    found.faults += len(faults) if found.kind == "scrub" else sum(int(count) for count in result["counts"].values())
    offsets = [int(fault["commitLogOffset"]) for fault in faults]
    if offsets and (found.first_fault is None or min(offsets) < found.first_fault):
        found.first_fault = min(offsets)


def _report(path: Path) -> ReportStatus:
    try:
        status = path.stat()
    except OSError as error:
        return ReportStatus(path, _reason(error))
    return ReportStatus(path, "", int(status.st_mtime * 1000), status.st_size)


def _lines(path: Path, bytes_max: int) -> Iterator[Any]:
    """Yield the objects of a file with one per line; an incomplete last line, which is being written, is left out."""
    if path.stat().st_size > bytes_max:
        raise ValueError(f"{path.name} has more than {bytes_max} bytes")
    with open(path, "rb") as file:
        text = file.read(bytes_max)
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        try:
            yield msgspec.json.decode(line, type=dict)
        except msgspec.DecodeError:
            if number < len(lines) or text.endswith(b"\n"):
                raise ValueError(f"{path.name}, line {number}: it is malformed") from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "it cannot be read"
    return str(error) if isinstance(error, ValueError) else "it is malformed"
