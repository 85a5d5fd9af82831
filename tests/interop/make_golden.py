"""Make tests/golden anew: store directories written by Java brokers, frames of Java clients, brokers, name servers.

    python -m tests.interop.make_golden [stores] [frames]

Needs Java 17, Maven and free ports 9876, 10909, 10911, 10912. What the store directories must contain is asked of the
Java client while the Java broker still runs, and written beside them. Runs about three minutes.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import struct
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.interop.driver import Event, JavaDriver
from tests.interop.java import REPOSITORY, JavaBroker, JavaNameServer, Value, wait_until
from tests.interop.logs import Log, read_log
from tests.interop.recorder import Recorded, Recorder
from tests.interop.wire import GET_ROUTE, Frame, ask, wait_topic

GOLDEN = REPOSITORY / "tests" / "golden"
PORT = 10911
NAMESRV_PORT = 9876

CLIENT_OF = {"4.9.7": "4.9.8", "5.3.3": "5.3.3"}
"""Which client library belongs to a broker version."""

TINY_STORE: dict[str, Value] = {
    "mappedFileSizeCommitLog": 16 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 40,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    # Its empty files would be a hundred times what is of interest here.
    "timerWheelEnable": False,
}

_TOPICS = {"GoldenOrders": 2, "GoldenPayments": 1, "GoldenDelayed": 1}
_GROUP = "golden-readers"


# ------------------------------------------------------------------------------------------------------------ stores


def make_store(version: str, *, killed: bool, work: Path) -> None:
    """One store directory and its description; `killed` ends the broker by SIGKILL, else by SIGTERM."""
    name = f"store-{version}-{'killed' if killed else 'clean'}"
    client = CLIENT_OF[version]
    with (
        JavaNameServer(version, work / "namesrv", NAMESRV_PORT) as namesrv,
        JavaBroker(version, work / "broker", namesrv=namesrv.address, port=PORT, settings=TINY_STORE) as broker,
        JavaDriver(client, work / "client", namesrv=namesrv.address, poll_ms=1000) as java,
    ):
        namesrv.start()
        broker.start()
        for topic, queues in _TOPICS.items():
            arguments = ("-n", namesrv.address, "-b", broker.address, "-t", topic, "-r", str(queues), "-w", str(queues))
            java.mqadmin("updateTopic", *arguments)
            wait_topic(namesrv.port, topic)
        _fill(java)
        description = _describe(java, broker, killed=killed)
        if killed:
            wait_until(lambda: _offsets_are_stored(broker.store), what="stored offsets", within_s=30)
            broker.kill()
        else:
            broker.stop()
        _set_stored_flags(description["messages"], read_log(broker.store))
        (GOLDEN / f"{name}.json").write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
        pack(broker.store, GOLDEN / f"{name}.tar.gz")


def _fill(java: JavaDriver) -> None:
    """Several files of messages: two topics, keys, tags, a batch, a compressed body, delays, a committed offset."""
    java.call(
        "produce",
        topic="GoldenOrders",
        count=60,
        queues=2,
        tags="paid,open,",
        keys="order",
        prefix="order",
        property="region",
        flag=7,
        size=120,
    )
    java.call("produce", topic="GoldenPayments", mode="batch", count=8, tags="card", keys="pay", prefix="batch")
    java.call(
        "produce", topic="GoldenPayments", count=2, prefix="compressed", size=6000, compress_over=1000, keys="big"
    )
    java.call("produce", topic="GoldenPayments", count=1, prefix="grüße-жлб-漢字")
    java.call("produce", topic="GoldenDelayed", count=2, delay=1, prefix="soon", keys="soon", tags="late")
    java.call("produce", topic="GoldenDelayed", count=1, delay=18, prefix="two-hours", keys="pending")
    delivered = java.call("lite", topic="GoldenDelayed", group="golden-delayed", count=2)
    assert len(delivered) == 2, delivered
    java.call("pull", topic="GoldenOrders", group=_GROUP, commit=True, limit=11)
    java.call("pull", topic="GoldenPayments", group=_GROUP, commit=True, limit=4)
    java.call("produce", topic="GoldenOrders", count=30, start=60, queues=2, keys="order", prefix="order", size=400)


def _set_stored_flags(messages: list[dict[str, object]], log: Log) -> None:
    """The Java client clears the bit for compression when it has decompressed; put in what stands in the log."""
    for message in messages:
        at = int(str(message["commitLogOffset"])) - log.start + 36
        [message["sysFlag"]] = struct.unpack_from(">i", log.data, at)


def _offsets_are_stored(store: Path) -> bool:
    path = store / "config" / "consumerOffset.json"
    return path.exists() and f"GoldenPayments@{_GROUP}" in path.read_text()


def _describe(java: JavaDriver, broker: JavaBroker, *, killed: bool) -> dict[str, Any]:
    """What the Java client reads: every message, the offsets of the group, the answers to some queries."""
    queues = []
    messages = []
    for topic in (*_TOPICS, "SCHEDULE_TOPIC_XXXX"):
        events = java.call("pull", topic=topic, group="golden-inspector")
        messages += [_message(event) for event in events if event["event"] == "message"]
        for event in java.call("offsets", topic=topic, group=_GROUP):
            queue = {"topic": topic, **{key: event[key] for key in ("queueId", "min", "max", "stored")}}
            if queue["max"]:
                queues.append(queue)
    keys = {}
    for topic, key in (
        ("GoldenOrders", "order17"),
        ("GoldenOrders", "orderall"),
        ("GoldenPayments", "bigall"),
        ("GoldenPayments", "pay3"),
        ("GoldenDelayed", "soonall"),
    ):
        found = java.call("key", topic=topic, key=key, max=64)
        keys[f"{topic}#{key}"] = sorted(event["commitLogOffset"] for event in found)
    return {
        "broker": {"version": broker.version, "end": "SIGKILL" if killed else "SIGTERM", "address": broker.address},
        "configuration": TINY_STORE,
        "group": _GROUP,
        "queues": queues,
        "messages": sorted(messages, key=lambda message: int(str(message["commitLogOffset"]))),
        "keys": keys,
    }


def _message(event: Event) -> dict[str, object]:
    """A message as stored; the Java client adds MIN_OFFSET and MAX_OFFSET to its properties."""
    unwanted = {"id", "event", "at_ms"}
    stored = {key: value for key, value in event.items() if key not in unwanted}
    properties = event["properties"]
    stored["properties"] = {key: properties[key] for key in properties if key not in {"MIN_OFFSET", "MAX_OFFSET"}}
    return stored


def pack(directory: Path, target: Path) -> None:
    """A directory as .tar.gz without owners or times, so that equal content gives equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(directory.rglob("*")):
            info = archive.gettarinfo(path, arcname=str(Path("store") / path.relative_to(directory)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if path.is_file():
                with path.open("rb") as file:
                    archive.addfile(info, file)
            else:
                archive.addfile(info)
    target.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))


# ------------------------------------------------------------------------------------------------------------ frames

_ADMIN = (
    ("topicList",),
    ("topicRoute", "-t", "GoldenOrders"),
    ("topicStatus", "-t", "GoldenOrders"),
    ("clusterList",),
    ("consumerProgress", "-g", "golden-pushers"),
    ("updateSubGroup", "-b", "127.0.0.1:{broker}", "-g", "golden-made"),
    ("resetOffsetByTime", "-g", "golden-pushers", "-t", "GoldenOrders", "-s", "-1"),
    ("deleteTopic", "-c", "DefaultCluster", "-t", "GoldenPayments"),
)

_NAMES = {
    10: "SEND_MESSAGE",
    11: "PULL_MESSAGE",
    12: "QUERY_MESSAGE",
    14: "QUERY_CONSUMER_OFFSET",
    15: "UPDATE_CONSUMER_OFFSET",
    17: "UPDATE_AND_CREATE_TOPIC",
    21: "GET_ALL_TOPIC_CONFIG",
    25: "UPDATE_BROKER_CONFIG",
    26: "GET_BROKER_CONFIG",
    28: "GET_BROKER_RUNTIME_INFO",
    29: "SEARCH_OFFSET_BY_TIMESTAMP",
    30: "GET_MAX_OFFSET",
    31: "GET_MIN_OFFSET",
    32: "GET_EARLIEST_MSG_STORETIME",
    33: "VIEW_MESSAGE_BY_ID",
    34: "HEART_BEAT",
    35: "UNREGISTER_CLIENT",
    36: "CONSUMER_SEND_MSG_BACK",
    38: "GET_CONSUMER_LIST_BY_GROUP",
    40: "NOTIFY_CONSUMER_IDS_CHANGED",
    41: "LOCK_BATCH_MQ",
    42: "UNLOCK_BATCH_MQ",
    43: "GET_ALL_CONSUMER_OFFSET",
    45: "GET_ALL_DELAY_OFFSET",
    46: "CHECK_CLIENT_CONFIG",
    103: "REGISTER_BROKER",
    104: "UNREGISTER_BROKER",
    105: "GET_ROUTEINFO_BY_TOPIC",
    106: "GET_BROKER_CLUSTER_INFO",
    200: "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP",
    201: "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
    202: "GET_TOPIC_STATS_INFO",
    203: "GET_CONSUMER_CONNECTION_LIST",
    206: "GET_ALL_TOPIC_LIST_FROM_NAMESERVER",
    208: "GET_CONSUME_STATS",
    215: "DELETE_TOPIC_IN_BROKER",
    216: "DELETE_TOPIC_IN_NAMESRV",
    220: "RESET_CONSUMER_CLIENT_OFFSET",
    222: "INVOKE_BROKER_TO_RESET_OFFSET",
    304: "GET_SYSTEM_TOPIC_LIST_FROM_NS",
    310: "SEND_MESSAGE_V2",
    320: "SEND_BATCH_MESSAGE",
    322: "QUERY_DATA_VERSION",
    351: "GET_TOPIC_CONFIG",
    352: "GET_SUBSCRIPTIONGROUP_CONFIG",
    361: "LITE_PULL_MESSAGE",
    901: "GET_BROKER_MEMBER_GROUP",
    904: "BROKER_HEARTBEAT",
}
"""Request codes for file names and the index."""

_UNWANTED = {26, 28}
"""Answers that hold paths and the load of the machine that made them."""


def make_frames(version: str, *, work: Path) -> list[dict[str, object]]:
    """Record clients, brokers and name servers of one version; returns the entries for the index."""
    client = CLIENT_OF[version]
    entries: list[dict[str, object]] = []
    sizes = {key: value for key, value in TINY_STORE.items() if key != "timerWheelEnable"}
    with (
        JavaNameServer(version, work / "namesrv", NAMESRV_PORT) as namesrv,
        Recorder(NAMESRV_PORT) as to_namesrv,
        JavaBroker(
            version, work / "broker", namesrv=f"127.0.0.1:{to_namesrv.port}", port=PORT, settings=sizes
        ) as broker,
        Recorder(PORT) as to_broker,
        JavaDriver(client, work / "client", namesrv=f"127.0.0.1:{to_namesrv.port}", poll_ms=1000) as java,
    ):
        namesrv.start()
        to_namesrv.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{to_broker.port}")
        broker.start()
        for topic, queues in _TOPICS.items():
            arguments = ("-b", f"127.0.0.1:{to_broker.port}", "-t", topic, "-r", str(queues), "-w", str(queues))
            java.mqadmin("updateTopic", "-n", f"127.0.0.1:{to_namesrv.port}", *arguments)
            wait_topic(namesrv.port, topic)
        _talk(java, to_broker.port)
        binary = ("-Drocketmq.serialize.type=ROCKETMQ",)
        before = len(to_broker.frames()), len(to_namesrv.frames())
        with JavaDriver(client, work / "binary", jvm_options=binary, namesrv=f"127.0.0.1:{to_namesrv.port}") as other:
            other.call("produce", topic="GoldenOrders", count=1, queue=0, tags="paid", keys="order", flag=7)
            other.call("produce", topic="GoldenOrders", mode="batch", count=3, tags="card", keys="pay")
            other.call("push", topic="GoldenOrders", group="golden-binary", count=1)
        entries += _old_route(namesrv.port, f"namesrv-{version}")
        broker.stop()
        names = (f"client-{client}", f"broker-{version}", f"namesrv-{version}")
        entries += _keep(to_broker.frames()[: before[0]], client=names[0], server=names[1])
        entries += _keep(to_namesrv.frames()[: before[1]], client=names[0], server=names[2], broker=names[1])
        binary_client = f"{names[0]}-binary"
        entries += _keep(to_broker.frames()[before[0] :], client=binary_client, server=f"{names[1]}-binary")
        entries += _keep(to_namesrv.frames()[before[1] :], client=binary_client, server=names[2], broker=names[1])
    return entries


def _old_route(namesrv_port: int, server: str) -> list[dict[str, object]]:
    """A route as clients before 4.9.4 get it: keys that are numbers are not quoted."""
    answer = ask(namesrv_port, GET_ROUTE, {"topic": "GoldenOrders"}, version=317)
    return [_write(answer, answer.fields, f"{server}-105-get_routeinfo_by_topic-old-answer", request=False)]


def _talk(java: JavaDriver, broker_port: int) -> None:
    """Let the client send every kind of request once."""
    java.call("produce", topic="GoldenOrders", count=4, queues=2, tags="paid,open", keys="order", flag=7)
    java.call("produce", topic="GoldenOrders", count=1, mode="oneway")
    java.call("produce", topic="GoldenPayments", mode="batch", count=3, tags="card", keys="pay")
    java.call("produce", topic="GoldenDelayed", count=1, delay=1)
    java.call("pull", topic="GoldenOrders", group="golden-pullers", commit=True)
    java.call("offsets", topic="GoldenOrders", group="golden-pullers", timestamp=0)
    [*_, message] = java.call("key", topic="GoldenOrders", key="order1")
    java.call("unique", topic="GoldenOrders", unique=message["msgId"])
    lost = java.begin("push", topic="GoldenOrders", group="golden-pushers", fail_first=1, deadline_ms=60000)
    lost.wait_for(lambda event: event["event"] == "message", 60, count=5)
    for arguments in _ADMIN:
        filled = [argument.format(broker=broker_port) for argument in arguments]
        java.mqadmin(filled[0], "-n", str(java.defaults["namesrv"]), *filled[1:])
    lost.end()
    java.call("push", topic="GoldenOrders", group="golden-ordered", orderly=True, count=5)
    # A broker 4.9 does not know the request that the lite pull consumer of 5.x sends.
    if java.version == "5.3.3":
        java.call("lite", topic="GoldenOrders", group="golden-lite", count=5)


def _keep(frames: Iterable[Recorded], *, client: str, server: str, broker: str = "") -> list[dict[str, object]]:
    """Write the first request of each code and sender, and its answer; returns the entries for the index."""
    entries: list[dict[str, object]] = []
    asked: dict[tuple[int, bool, int], str] = {}
    for recorded in frames:
        header = recorded.frame.fields
        code, opaque, flag = (int(str(header[key])) for key in ("code", "opaque", "flag"))
        place = (recorded.connection, recorded.to_server, opaque)
        if flag & 1:
            stem = asked.pop((recorded.connection, not recorded.to_server, opaque), None)
            if stem is not None:
                entries.append(_write(recorded.frame, header, f"{stem}-answer", request=False))
            continue
        if code in _UNWANTED:
            continue
        sender = client if recorded.to_server else server
        if broker and header.get("extFields") and code in {103, 104, 322, 901, 904}:
            sender = broker
        stem = f"{sender}-{code}-{_NAMES.get(code, 'unnamed').lower()}"
        path = GOLDEN / "frames" / f"{stem}.bin"
        if not path.exists():
            entries.append(_write(recorded.frame, header, stem, request=True))
            asked[place] = stem
    return entries


def _write(frame: Frame, header: dict[str, object], stem: str, *, request: bool) -> dict[str, object]:
    (GOLDEN / "frames").mkdir(parents=True, exist_ok=True)
    (GOLDEN / "frames" / f"{stem}.bin").write_bytes(frame.raw)
    return {
        "file": f"frames/{stem}.bin",
        "request": request,
        "serialisation": frame.serialisation,
        "header": header,
        "body_bytes": len(frame.body),
    }


def main(wanted: list[str]) -> None:
    """Make what is wanted: stores, frames, or both."""
    GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandemq-golden-") as temporary:
        work = Path(temporary)
        if not wanted or "frames" in wanted:
            shutil.rmtree(GOLDEN / "frames", ignore_errors=True)
            entries: list[dict[str, object]] = []
            for version in CLIENT_OF:
                entries += make_frames(version, work=work / f"frames-{version}")
            entries.sort(key=lambda entry: str(entry["file"]))
            (GOLDEN / "frames" / "index.json").write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
        if not wanted or "stores" in wanted:
            for version in CLIENT_OF:
                for killed in (False, True):
                    make_store(version, killed=killed, work=work / f"store-{version}-{killed}")


if __name__ == "__main__":
    main(sys.argv[1:])
