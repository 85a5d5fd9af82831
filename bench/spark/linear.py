"""Cost of audit, scrub and rebuild by the size of the log: time, and the peak memory of the processes.

    python -m bench.spark.linear                     1 and 4 GiB
    python -m bench.spark.linear --gib 1 4 16        as many GiB as there is room for on the disk
    python -m bench.spark.linear --only audit        one of the jobs

Each size is measured in processes of its own, on two task slots, one after the other; a log is deleted before the next.
The second log of an audit consists of links to the files of the first, which halves the disk, and reads the same. A log
that is larger than the free memory is read from the disk.
Source: docs/guides/dataset.md, "Large logs".
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.spark.logs import write_log
from bench.spark.measure import tree_cpu
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.runtime.session import open_session

JOBS = ("audit", "scrub", "rebuild")
BODY_BYTES = 1024
SEGMENT_BYTES = 256 << 20
DIVERGED = "diverged"
"""An audit in which every record of the second log differs."""


def memory_mb() -> tuple[int, int]:
    """Return the peak memory of Spark's Python workers (of the largest of them) and of its JVM, in MB."""
    workers, jvm = [0], [0]
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            lines = (path / "status").read_text().splitlines()
            if _is_ours(int(path.name)) and (b"daemon" in words or b"java" in words.split(b"\0")[0]):
                peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
                (workers if b"daemon" in words else jvm).append(peak * 1024 // 1_000_000)
        except (OSError, StopIteration):
            continue
    return max(workers), max(jvm)


def _is_ours(pid: int) -> bool:
    """Return whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def second_log(store: Path, log_bytes: int, *, diverges: bool) -> None:
    """Make the second log of an audit beside the first: the same files, or records with other times."""
    other = store.with_name("other")
    if diverges:
        write_log(other, log_bytes, BODY_BYTES, segment_bytes=SEGMENT_BYTES, wall_ms=1_700_000_001_000)
        return
    (other / "commitlog").mkdir(parents=True)
    for path in (store / "commitlog").iterdir():
        (other / "commitlog" / path.name).symlink_to(path)


def measure(job: str, store: Path) -> None:
    """Run one job in this process, and print its figures as JSON."""
    spark, _ = open_session("bench-linear", master="local[2]", settings={"spark.driver.memory": "1g"})
    spark.range(100).rdd.map(str).count()  # starts the workers
    began, spent = time.perf_counter(), tree_cpu()
    facts: dict[str, object] = {}
    if job in ("audit", DIVERGED):
        found = audit(spark, store, store.with_name("other"))
        facts = {"different": sum(found.counts.values()), "listed": len(found.differences)}
    elif job == "scrub":
        facts = {"records": scrub(spark, store).records}
    else:
        done = rebuild(spark, RebuildOptions(store=store, output=store.with_name("rebuilt")))
        facts = {"entries": done.entries, "keys": done.keys}
    seconds, cpu = time.perf_counter() - began, tree_cpu() - spent
    workers, jvm = memory_mb()
    driver = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1_000_000
    print(
        json.dumps(facts | {"seconds": seconds, "cpu": cpu, "workers": workers, "driver": driver, "jvm": jvm}),
        flush=True,
    )
    spark.stop()


def main() -> int:
    """Measure all sizes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 4], help="sizes of the log (default 1 4)")
    parser.add_argument("--only", action="append", choices=[*JOBS, DIVERGED], help="jobs")
    parser.add_argument("--job", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        measure(args.job[0], Path(args.job[1]))
        return 0
    table = Table("job", "GiB", "seconds", "CPU s", "CPU s/GiB", "MB: a worker", "the driver", "the JVM", "found")
    for gib in args.gib:
        with tempfile.TemporaryDirectory(prefix="bench-linear-") as directory:
            store, size = Path(directory) / "broker-a", int(gib * (1 << 30))
            write_log(store, size, BODY_BYTES, segment_bytes=SEGMENT_BYTES)
            for job in args.only or JOBS:
                if job in ("audit", DIVERGED):
                    shutil.rmtree(store.with_name("other"), ignore_errors=True)
                    second_log(store, size, diverges=job == DIVERGED)
                words = [sys.executable, "-m", "bench.spark.linear", "--job", job, str(store)]
                lines = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
                facts = json.loads(lines[-1])
                seconds, cpu = facts.pop("seconds"), facts.pop("cpu")
                peaks = [str(facts.pop(name)) for name in ("workers", "driver", "jvm")]
                shown = ", ".join(f"{value:,} {name}" for name, value in facts.items())
                table.add_row(job, f"{gib:g}", f"{seconds:.1f}", f"{cpu:.1f}", f"{cpu / gib:.1f}", *peaks, shown)
                print(
                    f"{job}, {gib:g} GiB: {seconds:.1f} s, CPU {cpu:.1f} s, MB {peaks}, {shown}",
                    file=sys.stderr,
                    flush=True,
                )
    Console(width=max(120, Console().width)).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
