"""A driver that runs docs/guides/pipeline-schemas.md with a real registry, for messages that it has sent before.

    python -m tests.spark.on_registry JAR NAME-SERVERS URL

JAR is spark-avro, URL the registry. Each line of output has the rows of one of the page's frames, as JSON.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from tandemq import Message
from tandemq.client.blocking import BlockingProducer
from tests.spark.installed import ROOT
from tests.spark.messages import make_topic

PAGE = ROOT / "docs/guides/pipeline-schemas.md"
FIELDS = [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}]
ORDER = {"type": "record", "name": "Order", "fields": FIELDS}
NEW_ORDER = ORDER | {"fields": [*FIELDS, {"name": "note", "type": "string", "default": "none"}]}
PAYMENT = 'syntax = "proto3";\nmessage Payment {\n  string id = 1;\n  int64 amount = 2;\n}\n'
PLAIN = {name: {"type": name} for name in ("string", "integer", "number")}
VISIT = {
    "type": "object",
    "properties": {
        "page": PLAIN["string"],
        "seconds": PLAIN["number"],
        "tags": {"type": "array", "items": PLAIN["string"]},
        "user": {"type": "object", "properties": {"name": PLAIN["string"], "age": PLAIN["integer"]}},
    },
}


def register(url: str, subject: str, schema: str, kind: str) -> bytes:
    """Register a schema, and return the head of bodies that have it."""
    body = json.dumps({"schema": schema, "schemaType": kind}).encode()
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    with urlopen(Request(f"{url}/subjects/{subject}/versions", body, headers), timeout=60) as answer:
        return b"\0" + int(json.load(answer)["id"]).to_bytes(4)


def number(value: int) -> bytes:
    """Encode a number as Avro does."""
    left, found = value << 1 ^ value >> 63, b""
    while left > 0x7F:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])


def text(value: str) -> bytes:
    """Encode a text as Avro does."""
    return number(len(value)) + value.encode()


def payment(**fields: Any) -> bytes:
    """Encode a payment, and leave the descriptors in the directory."""
    Path("payment.proto").write_text(PAYMENT)
    words = [
        "-m",
        "grpc_tools.protoc",
        "-I.",
        "--include_imports",
        "--descriptor_set_out=payment.desc",
        "payment.proto",
    ]
    subprocess.run([sys.executable, *words], check=True)
    pool = descriptor_pool.DescriptorPool()
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(Path("payment.desc").read_bytes()).file
    pool.Add(file)
    found: bytes = message_factory.GetMessageClass(pool.FindMessageTypeByName("Payment"))(**fields).SerializeToString()
    return found


def main(jar: str, name_servers: str, url: str) -> None:
    """Send the messages, run the page, and show its frames."""
    old = register(url, "Orders-value", json.dumps(ORDER), "AVRO")
    new = register(url, "Orders-value", json.dumps(NEW_ORDER), "AVRO")
    assert old != new
    visit = {"page": "/home", "seconds": 1.5, "tags": ["a", "b"], "user": {"name": "ann", "age": 7}}
    messages = [
        Message("Orders", old + text("old") + number(-7)),
        Message("Orders", b"without a head"),
        Message("Orders", new + text("new") + number(1 << 20) + text("gift")),
        Message(
            "Payments", register(url, "Payments-value", PAYMENT, "PROTOBUF") + b"\0" + payment(id="p", amount=1 << 40)
        ),
        Message("Visits", register(url, "Visits-value", json.dumps(VISIT), "JSON") + json.dumps(visit).encode()),
    ]
    for topic in ("Orders", "Payments", "Visits"):
        make_topic(name_servers, topic, 1)
    with BlockingProducer(name_servers, group="registry") as producer:
        for message in messages:
            producer.send(message)
    page = PAGE.read_text(encoding="utf-8")
    for shown, used in (
        ("http://127.0.0.1:8081", url),
        ("127.0.0.1:9876", name_servers),
        ('"spark.jars.packages": "org.apache.spark:spark-avro_2.13:4.2.0"', f'"spark.jars": "{jar}"'),
    ):
        assert page.count(shown) == 1
        page = page.replace(shown, used)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    for what in ("orders", "payments", "visits"):
        rows = [row.asDict(recursive=True) for row in names[what].collect()]
        print(json.dumps({"what": what, "rows": rows}), flush=True)
    names["spark"].stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
