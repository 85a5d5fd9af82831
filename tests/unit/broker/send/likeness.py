"""Two brokers that got the same, one with regard to likeness, one without: they must have done the same."""

from typing import Any

from tandemq.sim.world.disk import SimDisk
from tests.unit.broker.harness import CLIENT, Harness

LINKS = (CLIENT, 2, 3)
BIG: dict[str, Any] = {"segment_bytes": 1 << 20, "message_bytes_max": 64 * 1024}

Delivered = tuple[Harness, SimDisk]
"""A broker after everything was sent to it, and its disk."""


def compare(ours: Delivered, theirs: Delivered) -> Harness:
    """Our broker, once it is shown that both answered, counted and stored the same, byte for byte; both are closed."""
    (broker, disk), (other, twin) = ours, theirs
    assert broker.inbox == other.inbox
    assert broker.closes == other.closes
    assert (broker.node.send.count, broker.node.send.bytes) == (other.node.send.count, other.node.send.bytes)
    broker.node.close()
    other.node.close()
    for path in disk.paths():
        if path.startswith(("commitlog/", "consumequeue/", "index/")):
            assert disk.read(path) == twin.read(path), path
    assert [path for path in disk.paths() if "/" in path] == [path for path in twin.paths() if "/" in path]
    return broker
