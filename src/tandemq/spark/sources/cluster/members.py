"""Queues of a query, the members of their broker groups, and pulls from them.

Source: docs/guides/pipeline.md, "Reading"; docs/reference/requests.md, "PULL_MESSAGE".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tandemq.client.admin.queries import TOOLS_GROUP
from tandemq.client.core.operations import request
from tandemq.client.core.routes import MASTER_ID
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.options import ReadFrom

SUBSCRIPTION = 4
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


def pull_request(
    queue: MessageQueue,
    offset: int,
    count: int,
    expression: str = "*",
    kind: str = "TAG",
    group: str = TOOLS_GROUP,
    code: RequestCode = RequestCode.PULL_MESSAGE,
    *,
    bulk: bool = False,
) -> Command:
    """Return a pull request that is answered at once and belongs to no subscription; with TANDEM_REPLICA_PULL to no
    group either.

    Args:
        bulk: whether a broker of TandemQ may return more messages than its consumers get at once; others ignore it.
    """
    return request(
        code,
        consumerGroup=group,
        topic=queue.topic,
        queueId=queue.queue_id,
        queueOffset=offset,
        maxMsgNums=count,
        sysFlag=SUBSCRIPTION,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription=expression,
        subVersion=0,
        expressionType=kind,
        bname=queue.broker_name,
        bulk="true" if bulk else None,
    )
