"""`make bench-spark`: what the data pipeline takes, beside Spark's own ways, `cmp` and Kafka, in one run.

    python -m bench.spark                  1 GiB of log per cell, about 30 minutes
    python -m bench.spark --mib 256        smaller; ratios hold, starting costs weigh more
    python -m bench.spark --only kafka --only kafka-stream
                                           beside Spark's Kafka source and sink; needs Maven for the first time
    python -m bench.spark --only kills     drivers killed two dozen times, most of that time

All input is made first and read once, so that it lies in the page cache: these are figures of the CPU, not of a disk.
Each cell is the best of `--rounds`. A missed target is a fact, not a failure: it shows in the table.
Source: docs/guides/pipeline.md, "Figures".
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.spark.beside import SHAPES, Beside
from bench.spark.cells import BODY_BYTES, Bench
from bench.spark.kafka import connector_class_path
from bench.spark.measure import Cell, adopt_orphans
from tandemq.spark.runtime.session import open_session

RESULTS = Path(__file__).resolve().parents[1] / "results" / "spark.json"
OF_LOG = ("source", "archive", "checks", "stream", "kills")
OF_KAFKA = ("kafka", "kafka-stream")
CELLS = (*OF_LOG, *OF_KAFKA)
"""What a run without --only measures."""


def main() -> int:
    """Measure, print the table, keep the figures in bench/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of log (default 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many (default 3)")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="kinds of messages beside Kafka (default all)")
    parser.add_argument("--only", action="append", choices=CELLS, help="cells")
    parser.add_argument("--memory", default="2g", help="of the driver (default 2g)")
    args = parser.parse_args()
    chosen = args.only or CELLS
    console = Console(width=max(120, Console().width))

    def say(text: str) -> None:
        console.print(text, highlight=False)

    adopt_orphans()
    load = os.getloadavg()[0]
    settings = {"spark.driver.memory": args.memory}
    of_kafka = [name for name in OF_KAFKA if name in chosen]
    if of_kafka:
        settings["spark.driver.extraClassPath"] = connector_class_path()
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as directory:
        spark, java = open_session("bench-spark", settings=settings)
        tasks = spark.sparkContext.defaultParallelism
        say(f"Java {java.version if java else '?'}, {tasks} tasks at a time; load before: {load:.1f}")
        of_log = [name for name in OF_LOG if name in chosen]
        if of_log:
            bench = Bench(spark, Path(directory), args.mib, args.rounds)
            for name in of_log:
                cells += getattr(bench, name)()
                say(f"{name}: done")
        if of_kafka:
            with Beside(spark, Path(directory), args.mib, args.rounds, args.shapes, say) as beside:
                for name in of_kafka:
                    cells += getattr(beside, name.replace("-", "_"))()
                    say(f"{name}: done")
        spark.stop()
    after = os.getloadavg()[0]
    title = f"{args.mib:,} MiB, bodies of {BODY_BYTES} bytes unless said; load {load:.1f} before, {after:.1f} after"
    table = Table("cell", "figure", "target", "met", title=title)
    for cell in cells:
        table.add_row(cell.name, cell.figure, cell.target, {None: "", True: "yes", False: "NO"}[cell.met])
    console.print(table)
    RESULTS.parent.mkdir(exist_ok=True)
    rows = [{"cell": c.name, "figure": c.figure, "target": c.target, "met": c.met} for c in cells]
    figures = {"mib": args.mib, "load": load, "load after": after, "cells": rows}
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
