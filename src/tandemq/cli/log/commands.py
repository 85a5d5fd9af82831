"""`tandemq log`: offline tools for a store directory (verify, dump, rebuild-index)."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.output import body_field, json_option, show_facts, show_json, time_text
from tandemq.cli.support.paths import LocalPath
from tandemq.cli.support.progress import ProgressLine
from tandemq.errors import StoreError

if TYPE_CHECKING:
    from tandemq.cli.log.check_index import IndexReport
    from tandemq.cli.log.check_log import Segment, SegmentReport
    from tandemq.cli.log.check_queues import Finding, QueueComparison, QueueReport, Settings
    from tandemq.codec.record.record import Record

store_argument = click.argument("store", type=LocalPath(exists=True, file_okay=False, path_type=Path))


slots_option = click.option(
    "--slots", default=5_000_000, show_default=True, type=click.IntRange(1), help="maxHashSlotNum of the broker."
)
entries_option = click.option(
    "--entries", default=20_000_000, show_default=True, type=click.IntRange(2), help="maxIndexNum of the broker."
)


@click.group()
def log() -> None:
    """Read, check and repair a store directory.

    No broker is needed. STORE is the storePathRootDir of a broker.
    """


# verify


@log.command()
@store_argument
@click.option("--jobs", type=click.IntRange(1), help="Number of worker processes; default: number of cores.")
@click.option("--queues/--no-queues", default=True, help="Also check the entries of consume queues.")
@click.option("--derived", is_flag=True, help="Also check the key index; slower.")
@slots_option
@entries_option
@json_option
def verify(store: Path, jobs: int | None, queues: bool, derived: bool, slots: int, entries: int, as_json: bool) -> None:
    """Check every record in the commit log of STORE and its queue entry. Exit code 3 on damage.

    STORE may be RocketMQ's or TandemQ's; nothing in it is changed. A torn tail, which a broker truncates when it
    starts, is reported but is not damage. A running broker rebuilds wrong queue entries by itself.
    """
    from tandemq.cli.log.check_log import seconds_since, segments_of  # noqa: PLC0415  # numpy is not loaded for --help
    from tandemq.cli.log.check_log import verify as check  # noqa: PLC0415
    from tandemq.cli.log.check_queues import QueueComparison, settings_of  # noqa: PLC0415

    began = time.monotonic()
    segments = segments_of(store)
    asked = (settings_of(store), QueueComparison()) if queues else None
    reports = []
    for report in check(
        segments,
        jobs=jobs or os.cpu_count() or 1,
        progress=ProgressLine("verify", silent=as_json, is_brief=True),
        queues=asked,
    ):
        reports.append(report)
        if not as_json:
            _print_segment(report)
    damaged = [(damage.start, damage.end) for report in reports for damage in report.damages]
    entered = _judge_queues(segments, asked, damaged) if asked is not None else None
    facts = _log_facts(reports, seconds_since(began)) | _noted(store)
    indexed = _check_index(store, segments, damaged, slots, entries, silent=as_json) if derived else None
    derived_facts, findings, notes = _derived_facts(entered, indexed)
    facts |= derived_facts
    if as_json:
        result: dict[str, Any] = {**facts, "reports": [_as_object(report) for report in reports]}
        show_json(result | {"derived": [asdict(finding) for finding in findings], "notes": notes})
    else:
        for line in _lines_of(findings, derived_facts.get("derivedFaults", 0), notes):
            click.echo(line)
        click.echo()
        show_facts(facts, as_json=False)
    if facts["damages"] or facts.get("derivedFaults"):
        raise click.exceptions.Exit(EXIT_FAULTS)


def _log_facts(reports: "list[SegmentReport]", seconds: float) -> dict[str, Any]:
    """Return the totals of the commit log's files."""
    size = sum(report.bytes for report in reports)
    return {
        "segments": len(reports),
        "records": sum(report.records for report in reports),
        "bytes": size,
        "damages": sum(not damage.is_tail for report in reports for damage in report.damages),
        "seconds": round(seconds, 3),
        "MB/s": round(size / 1e6 / seconds, 1),
    }


def _judge_queues(
    segments: "list[Segment]", asked: "tuple[Settings, QueueComparison]", damaged: list[tuple[int, int]]
) -> "QueueReport":
    from tandemq.cli.log.check_queues import judge  # noqa: PLC0415  # see verify

    with closing(_Reader(segments)) as read:
        return judge(*asked, read, segments[0].start, damaged)


def _derived_facts(
    entered: "QueueReport | None", indexed: "IndexReport | None"
) -> "tuple[dict[str, int], list[Finding], list[str]]":
    """Return the results of queues and index to show: figures, faults, and notes on unchecked parts."""
    checked = [check for check in (entered, indexed) if check is not None]
    facts: dict[str, int] = {}
    if entered is not None:
        facts |= {"queues": entered.queues, "queueEntries": entered.entries}
    if indexed is not None:
        facts["indexEntries"] = indexed.entries
    if checked:
        facts["notYetEntered"] = sum(check.not_yet for check in checked)
        facts["derivedFaults"] = sum(check.findings.faults for check in checked)
    listed = [finding for check in checked for finding in check.findings.listed]
    return facts, listed, [note for check in checked for note in check.notes]


def _noted(store: Path) -> dict[str, int]:
    """Return the number of ranges that the broker itself recorded as damaged, and of those repaired from a replica."""
    from tandemq.broker.state.damage_table import Damages  # noqa: PLC0415  # see verify
    from tandemq.real.disk import RealDisk  # noqa: PLC0415
    from tandemq.storage.json_tables import TableFile  # noqa: PLC0415

    damages = Damages()
    try:
        damages.load(TableFile("scrub.json").load(RealDisk(store)))
    except StoreError:
        return {}
    if not (damages.ranges or damages.repaired_total):
        return {}
    return {"knownDamages": len(damages.ranges), "repaired": damages.repaired_total}


def _check_index(
    store: Path, segments: "list[Segment]", damaged: list[tuple[int, int]], slots: int, entries: int, *, silent: bool
) -> "IndexReport":
    from tandemq.cli.log.check_index import check_index  # noqa: PLC0415  # see verify

    start, total = segments[0].start, segments[-1].end - segments[0].start
    progress = ProgressLine("index", silent=silent, is_brief=True)
    with closing(_Reader(segments)) as read:
        records = (record for record, _ in _walked(read, segments, None, silent=True))
        found = check_index(
            store,
            records,
            start,
            damaged,
            slots=slots,
            entries=entries,
            progress=lambda offset: progress(offset - start, total),
        )
    progress(total, total)
    return found


def _lines_of(findings: "list[Finding]", faults: int, notes: list[str]) -> "Iterator[str]":
    for finding in findings:
        held = f"; its content is {finding.held}" if finding.held else ""
        yield f"{finding.where}  log offset {finding.log_offset}: {finding.reason}{held}"
    if faults > len(findings):
        yield f"… and {faults - len(findings)} more"
    yield from notes


def _print_segment(report: "SegmentReport") -> None:
    name = Path(report.segment.path).name
    state = "valid" if not report.damages else "torn tail" if all(d.is_tail for d in report.damages) else "DAMAGED"
    click.echo(f"{name}  {state:<9}  {report.records:>10,} records  {report.bytes / 1e6:>9,.1f} MB")
    for damage in report.damages:
        what = "torn tail" if damage.is_tail else "damage"
        click.echo(f"    {what} in [{damage.start}, {damage.end}), {damage.end - damage.start} bytes: {damage.reason}")


def _as_object(report: "SegmentReport") -> dict[str, Any]:
    return {
        "file": report.segment.path,
        "start": report.segment.start,
        "records": report.records,
        "bytes": report.bytes,
        "damages": [
            {"start": damage.start, "end": damage.end, "reason": damage.reason, "tornTail": damage.is_tail}
            for damage in report.damages
        ],
    }


# dump


@log.command()
@store_argument
@click.option("--from", "start", type=click.IntRange(0), help="Start at the first record at or after this log offset.")
@click.option(
    "--count", default=20, show_default=True, type=click.IntRange(0), help="Maximum number of records; 0: all."
)
@click.option("--topic", help="Only records of this topic.")
@click.option("--key", help="Only records with this key or unique key.")
@click.option("--body/--no-body", default=True, help="Whether to print bodies.")
@json_option
def dump(
    store: Path, start: int | None, count: int, topic: str | None, key: str | None, body: bool, as_json: bool
) -> None:
    """Print the records in the commit log of STORE in log order, one per line."""
    from tandemq.cli.log.check_log import segments_of  # noqa: PLC0415  # see verify

    rows = 0
    for record, window in _records(segments_of(store), start):
        if topic is not None and record.topic.decode("utf-8", "replace") != topic:
            continue
        found = _describe(record, window, with_body=body)
        if key is not None and key not in (found["id"], *found["keys"]):
            continue
        rows += 1
        if as_json:
            show_json(found)
        else:
            _print_record(found)
        if rows == count:
            return


def _records(segments: "list[Segment]", start: int | None) -> "Iterator[tuple[Record, bytes]]":
    """Yield all valid records, each with the buffer that contains its body; damage is reported and skipped."""
    with closing(_Reader(segments)) as read:
        yield from _walked(read, segments, start)


def _walked(
    read: "_Reader", segments: "list[Segment]", start: int | None, *, silent: bool = False
) -> "Iterator[tuple[Record, bytes]]":
    from tandemq.storage.log.scan import Walker, find_next_record  # noqa: PLC0415  # see verify

    size, end = segments[0].size, segments[-1].end
    position = segments[0].start
    if start is not None and start > position:
        found = find_next_record(read, start, end, size)
        if found is None:
            return
        position = found
    walker = Walker(read, size, position)
    while True:
        for record, window, _ in walker.records():
            yield record, window
        resumes = find_next_record(read, walker.position + 1, end, size) if walker.position < end else None
        if resumes is None:
            return
        if not silent:
            click.echo(f"damage in [{walker.position}, {resumes}): {walker.fault}", err=True)
        walker.position = resumes


class _Reader:
    """Reads segment files by log offset; a read ends at the end of its file."""

    def __init__(self, segments: "list[Segment]") -> None:
        self._segments = {segment.start: segment for segment in segments}
        self._size = segments[0].size
        self._open: tuple[int, Any] | None = None

    def __call__(self, offset: int, size: int) -> bytes:
        start = offset - offset % self._size
        segment = self._segments.get(start)
        if segment is None:
            return b""
        if self._open is None or self._open[0] != start:
            self.close()
            self._open = (start, open(segment.path, "rb", buffering=0))  # noqa: SIM115  # kept until the next file
        file = self._open[1]
        file.seek(offset - start)
        data = file.read(min(size, segment.end - offset))
        assert isinstance(data, bytes)
        return data

    def close(self) -> None:
        """Close the open file."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _describe(record: "Record", window: bytes, *, with_body: bool) -> dict[str, Any]:
    from tandemq.model.message import KEYS, TAGS, UNIQ_KEY, decode_properties  # noqa: PLC0415

    properties = decode_properties(record.properties.decode("utf-8", "replace"))
    raw = bytes(window[record.body_start : record.body_end])
    found: dict[str, Any] = {
        "logOffset": record.log_offset,
        "size": record.size,
        "topic": record.topic.decode("utf-8", "replace"),
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "stored": record.store_ms,
        "born": record.born_ms,
        "sysFlag": record.sys_flag,
        "id": properties.get(UNIQ_KEY, ""),
        "tag": properties.get(TAGS, ""),
        "keys": properties.get(KEYS, "").split(),
        "properties": properties,
        "bodyBytes": len(raw),
    }
    return found | body_field(raw) if with_body else found


def _print_record(found: dict[str, Any]) -> None:
    text = str(found.get("body", found.get("bodyHex", "")))[:120]
    shown = "".join(c if c.isprintable() else "·" for c in text)
    tag = f" tag={found['tag']}" if found["tag"] else ""
    keys = f" keys={','.join(found['keys'])}" if found["keys"] else ""
    click.echo(
        f"{found['logOffset']:>12} {found['size']:>6} {time_text(found['stored'])} {found['topic']}/{found['queue']}"
        f"@{found['offset']} {found['id']}{tag}{keys} {shown}"
    )


# rebuild-index


@log.command(name="rebuild-index")
@store_argument
@slots_option
@entries_option
@json_option
def rebuild_index(store: Path, slots: int, entries: int, as_json: bool) -> None:
    """Rebuild the key index of STORE from its log. The broker must be stopped.

    The old index is kept until the new one is complete.
    """
    from tandemq.cli.log.check_log import segments_of  # noqa: PLC0415  # see verify
    from tandemq.real.disk import RealDisk  # noqa: PLC0415

    began = time.monotonic()
    disk = RealDisk(store)
    disk.lock()
    try:
        segments = segments_of(store)
        progress = ProgressLine("rebuild-index", silent=as_json, is_brief=True)
        records, keys, files = _rebuild(disk, segments, slots, entries, progress)
    finally:
        disk.unlock()
    seconds = round(time.monotonic() - began, 3)
    show_facts({"records": records, "keys": keys, "files": files, "seconds": seconds}, as_json=as_json)


def _rebuild(disk: Any, segments: "list[Segment]", slots: int, entries: int, progress: Any) -> tuple[int, int, int]:
    from tandemq.cli.log.check_index import indexed_keys  # noqa: PLC0415
    from tandemq.engine import KEY_ROW, key_hash  # noqa: PLC0415
    from tandemq.real.disk import RealDisk  # noqa: PLC0415
    from tandemq.storage.key_index import PENDING_MAX, KeyIndex  # noqa: PLC0415

    directory = RealDisk(disk.root / "index.new")
    directory.remove("index")
    index = KeyIndex(directory, slots, entries)
    start, total = segments[0].start, segments[-1].end - segments[0].start
    records = keys = 0
    for record, _ in _records(segments, None):
        records += 1
        topic = record.topic.decode("utf-8", "replace")
        for key in indexed_keys(record):
            index.pending += KEY_ROW.pack(key_hash(topic, key), record.log_offset, record.store_ms)
            keys += 1
        if index.waiting >= PENDING_MAX:
            index.absorb()
            progress(record.log_offset - start, total)
    index.absorb()
    files = len(index.files)
    index.close()
    progress(total, total)
    old, new = disk.root / "index", disk.root / "index.new" / "index"
    new.mkdir(parents=True, exist_ok=True)
    disk.remove("index.old")
    if old.exists():
        old.rename(disk.root / "index.old")
    new.rename(old)
    disk.remove("index.old")
    disk.remove("index.new")
    return records, keys, files
