"""A pull request that passed the checks: answered at once, held until messages arrive, or waiting for room.

Source: RocketMQ PullRequest.
"""

from tandemq.broker.filter.selector import MessageSelector
from tandemq.broker.kernel.pulls import AnswerView
from tandemq.codec.remoting.requests import PullFields
from tandemq.engine import PullTarget
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.storage.consume_queue import ConsumeQueue


class PullRequest:
    """One pull of a consumer or of another member of the group."""

    __slots__ = (
        "binary",
        "deadline_ms",
        "fields",
        "group",
        "is_answered",
        "is_helped",
        "is_replica",
        "is_waiting",
        "link",
        "opaque",
        "queue",
        "scan_offset",
        "selector",
        "target",
        "view",
    )

    def __init__(
        self, link: int, opaque: int, fields: PullFields, selector: MessageSelector, queue: ConsumeQueue,
        group: SubscriptionGroupConfig, *, binary: bool, is_replica: bool = False,
    ) -> None:  # fmt: skip
        """Keep the parts of the request that the answer needs.

        Args:
            link: connection to answer on.
            opaque: request id of the client.
            fields: header of the request.
            selector: the messages that match.
            queue: queue to read.
            group: settings of the consumer group.
            binary: whether the header came in RocketMQ's binary form.
            is_replica: a replica read, limited by `Serving.replica_end`.
        """
        self.link = link
        self.opaque = opaque
        self.fields = fields
        self.selector = selector
        self.queue = queue
        self.group = group
        self.binary = binary
        self.is_replica = is_replica
        self.view: AnswerView | None = None
        """How the answer is shown; None: as it is."""
        self.target: PullTarget | None = None
        """What the engine reads for it; None: it is answered in Python."""
        self.scan_offset = fields.queue_offset
        """Queue offset from which on entries are examined; no entry below it matches."""
        self.deadline_ms = 0
        """Monotonic time at which a held pull is answered in any case."""
        self.is_helped = False
        """Whether it is answered by a slave that does not serve reads; `is_replica` then too."""
        self.is_answered = False
        self.is_waiting = False
        """Whether it waits for room in a turn or on its connection."""
