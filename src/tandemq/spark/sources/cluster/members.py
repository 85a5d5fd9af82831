"""Queues of a query, and the members of their broker groups.

Source: docs/guides/pipeline.md, "Reading".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandemq.client.core.routes import MASTER_ID
from tandemq.errors import NotConnected
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.options import ReadFrom

BEYOND = 1 << 60
"""An offset beyond every queue: the response to a pull there contains the queue's minimum and maximum offset."""
Members = Mapping[int, str]
"""Addresses of a broker group by broker id."""


@dataclass(frozen=True, slots=True)
class QueueLayout:
    """Queues of a query, sorted, and the members of their broker groups by broker name."""

    queues: tuple[MessageQueue, ...]
    members: Mapping[str, Members]
    clusters: Mapping[str, str] = field(default_factory=dict)
    """Cluster by broker name."""
    unknown: tuple[str, ...] = ()
    """Topics that the options name and no name server knows."""


def ordered(members: Members, read_from: ReadFrom) -> list[str]:
    """Return the addresses to read from, in order of preference.

    Raises:
        NotConnected: the group has no such member.
    """
    slaves = [address for broker_id, address in sorted(members.items()) if broker_id != MASTER_ID]
    master = [members[MASTER_ID]] if MASTER_ID in members else []
    chosen = {ReadFrom.ANY: slaves + master, ReadFrom.SLAVE: slaves, ReadFrom.MASTER: master + slaves}[read_from]
    if not chosen:
        raise NotConnected("no slave is registered", hint="readFrom=any reads the master where there is no slave")
    return chosen
