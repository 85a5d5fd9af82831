"""Comparison of two brokers that received the same messages, one with the fast paths and one without."""

from typing import Any

from tandemq.sim.world.disk import SimDisk
from tests.unit.broker.harness import CLIENT, Harness

LINKS = (CLIENT, 2, 3)
BIG: dict[str, Any] = {"segment_bytes": 1 << 20, "message_bytes_max": 64 * 1024}

Delivered = tuple[Harness, SimDisk]
"""A broker that received all messages, and its disk."""


def compare(fast: Delivered, decoded: Delivered) -> Harness:
    """Assert that both responded, counted and stored the same, byte for byte; close both, return the first broker."""
    (broker, disk), (other, other_disk) = fast, decoded
    assert broker.inbox == other.inbox
    assert broker.closes == other.closes
    assert (broker.node.send.count, broker.node.send.bytes) == (other.node.send.count, other.node.send.bytes)
    broker.node.close()
    other.node.close()
    for path in disk.paths():
        if path.startswith(("commitlog/", "consumequeue/", "index/")):
            assert disk.read(path) == other_disk.read(path), path
    assert [path for path in disk.paths() if "/" in path] == [path for path in other_disk.paths() if "/" in path]
    return broker
