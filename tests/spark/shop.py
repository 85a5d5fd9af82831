"""Results that the example project must have, computed from its messages without Spark, and the tables it has."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tandemq.spark.pipelines.orders.produce import Event

LATE_BY, PAY_WITHIN = timedelta(minutes=10), timedelta(minutes=15)
CLEAR = timedelta(minutes=1)
"""No event and no deadline of the data set is so near to a watermark that its fate would depend on micro-batches."""
FIELDS = {"Orders": ("order", "customer"), "Payments": ("payment", "order")}
BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


@dataclass
class Tables:
    """Rows of the tables: ids of the messages in silver, and rows of gold in any order."""

    silver: dict[str, list[str]] = field(default_factory=dict)
    minutes: list[Row] = field(default_factory=list)
    customers: list[Row] = field(default_factory=list)
    payments: list[Row] = field(default_factory=list)
    unpaid: list[Row] = field(default_factory=list)
    watermark: datetime = BEFORE
    """Watermark of the orders: minutes that ended before it are final."""

    def with_final_minutes(self) -> "Tables":
        """Return the same without minutes that may still change."""
        return replace(
            self, minutes=[row for row in self.minutes if row["minute"] + timedelta(minutes=1) <= self.watermark]
        )


def ordered(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, default=str, sort_keys=True))


def valid(events: Iterable[Event], known: set[str]) -> Iterator[tuple[Event, Row]]:
    """Yield valid messages that are not known yet, with their bodies."""
    for event in events:
        try:
            body = json.loads(event.body)
        except ValueError:
            continue
        if event.unique_key not in known and body["cents"] > 0 and all(body[name] for name in FIELDS[event.topic]):
            known.add(event.unique_key)
            yield event, body | {"at": datetime.fromisoformat(body["at"])}


def expected(hours: Sequence[Sequence[Event]]) -> Tables:
    """Return the tables after these hours, each of which was read to its end before the next one was sent."""
    found, known = Tables(silver={"Orders": [], "Payments": []}), set[str]()
    kept: dict[str, list[Row]] = {"Orders": [], "Payments": []}
    in_minutes, customers, cents = Counter[datetime](), Counter[str](), Counter[str]()
    minute_cents = Counter[datetime]()
    latest = dict.fromkeys(FIELDS, BEFORE)
    for events in hours:
        both, of_orders = min(latest.values()) - LATE_BY, latest["Orders"] - LATE_BY
        for event, row in valid(events, known):
            found.silver[event.topic].append(event.unique_key)
            assert all(abs(row["at"] - mark) > CLEAR for mark in (both, of_orders))
            if row["at"] > both:
                kept[event.topic].append(row)
            latest[event.topic] = max(latest[event.topic], row["at"])
            if event.topic == "Payments":
                continue
            customers[row["customer"]] += 1
            cents[row["customer"]] += row["cents"]
            if row["at"] > of_orders:
                minute = row["at"].replace(second=0, microsecond=0)
                in_minutes[minute] += 1
                minute_cents[minute] += row["cents"]
    found.minutes = [{"minute": one, "orders": in_minutes[one], "cents": minute_cents[one]} for one in in_minutes]
    found.customers = [{"customer": one, "orders": customers[one], "cents": cents[one]} for one in customers]
    found.watermark = latest["Orders"] - LATE_BY
    _add_payments(found, kept, min(latest.values()) - LATE_BY)
    return found


def _add_payments(found: Tables, kept: dict[str, list[Row]], watermark: datetime) -> None:
    paid = {row["order"]: row for row in kept["Payments"]}
    assert len(paid) == len(kept["Payments"]), "an order has one payment"
    for order in kept["Orders"]:
        payment, deadline = paid.get(order["order"]), order["at"] + PAY_WITHIN
        assert deadline != watermark
        if payment is not None and order["at"] <= payment["at"] <= deadline:
            found.payments.append(
                {
                    "order": order["order"],
                    "customer": order["customer"],
                    "orderedAt": order["at"],
                    "payment": payment["payment"],
                    "cents": payment["cents"],
                    "paidAt": payment["at"],
                }
            )
        elif deadline < watermark:
            found.unpaid.append(
                {**{name: order[name] for name in ("order", "customer", "cents")}, "deadline": deadline}
            )


def gold(home: Path, name: str) -> list[Row]:
    """Return the rows of a Delta table of the project."""
    rows: list[Row] = DeltaTable(str(home / "tables" / f"gold_{name}")).to_pyarrow_table().to_pylist()
    return rows


def written(path: Path) -> list[Row]:
    """Return the rows of a table written by Spark's file sink: of the files that its log names."""
    names = set[str]()
    for log in sorted((path / "_spark_metadata").iterdir()):
        if not log.name.startswith("."):
            lines = log.read_text(encoding="utf-8").splitlines()[1:]
            names |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
    return read_files(names)


def read_files(names: Iterable[str]) -> list[Row]:
    """Return the rows of Parquet files of Spark, which have no time zone."""
    found = ds.dataset(sorted(names)).to_table()
    for at, column in enumerate(found.schema):
        if pa.types.is_timestamp(column.type):
            utc = pa.timestamp("us", "UTC")
            found = found.set_column(at, column.name, found.column(at).cast(pa.timestamp("us")).cast(utc))
    rows: list[Row] = found.to_pylist()
    return rows


def tables(home: Path) -> Tables:
    """Return the tables of the plain form."""
    return Tables(
        {topic: [row["messageId"] for row in written(home / "tables" / f"silver_{topic.lower()}")] for topic in FIELDS},
        gold(home, "minutes"),
        gold(home, "customers"),
        gold(home, "payments"),
        gold(home, "unpaid"),
    )


def declared_tables(home: Path) -> Tables:
    """Return the tables of the declarative form."""
    warehouse = home / "warehouse"
    return Tables(
        {topic: [row["messageId"] for row in written(warehouse / f"silver_{topic.lower()}")] for topic in FIELDS},
        written(warehouse / "gold_minutes"),
        read_files(map(str, (warehouse / "gold_customers").rglob("*.parquet"))),
        written(warehouse / "gold_payments"),
        written(warehouse / "gold_unpaid"),
    )


def are_equal(home: Path, wanted: Tables) -> bool:
    """Return whether the tables of the plain form, which are being written, are as expected."""
    try:
        assert_equal(tables(home), wanted)
    except (AssertionError, FileNotFoundError, TableNotFoundError):  # a table does not exist yet
        return False
    return True


def assert_equal(found: Tables, wanted: Tables) -> None:
    """Compare all tables, row by row."""
    for topic in FIELDS:
        assert sorted(found.silver[topic]) == sorted(wanted.silver[topic]), topic
    for name in ("minutes", "customers", "payments", "unpaid"):
        assert ordered(getattr(found, name)) == ordered(getattr(wanted, name)), name
