"""The revive topic: what is stored in it, now or when it is due."""

import logging

from tandemq.boundary import Now
from tandemq.broker.features.pop.records import (
    Acknowledged,
    PopCheckpoint,
    ack_body,
    ack_properties,
    checkpoint_body,
    checkpoint_properties,
)
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.messages.timed_message import precision_ms, rounded_down
from tandemq.broker.kernel.timers import MessageTimers
from tandemq.broker.state.topics import Topic
from tandemq.model.codes import ResponseCode
from tandemq.model.message import encode_properties
from tandemq.model.pop import revive_topic

log = logging.getLogger(__name__)
KV_STORE = "kvStore"
"""Directory of the checkpoints of a Java broker with `popConsumerKVServiceEnable`."""


class ReviveQueues:
    """The queues of the revive topic of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin; the topic is created with the first record."""
        self._puts = kernel.puts
        self._store = kernel.store
        self._topics = kernel.topics
        self._timers = kernel.features.find(MessageTimers)
        self._current = kernel.current
        self._precision_ms = precision_ms(kernel.current.config)
        self.name = revive_topic(kernel.current.config.cluster)
        self.count = kernel.current.config.revive_queue_nums
        if kernel.disk.list(KV_STORE):
            log.warning(
                "pop: %s/ has checkpoints of a Java broker (popConsumerKVServiceEnable), which are not read: what is "
                "in flight there may not come back; POP_ROLLBACK (200056) at the Java broker moves it to the log",
                KV_STORE,
            )

    def topic(self, now: Now) -> Topic:
        """Return the topic, created if it does not exist.

        Raises:
            SendRefused: there is no room for it.
        """
        topic = self._topics.create_internal(self.name, self.count, now.wall_ms)
        if topic is None:
            raise SendRefused(ResponseCode.SYSTEM_ERROR, f"there is no room for the topic[{self.name}]")
        return topic

    def put_checkpoint(self, checkpoint: PopCheckpoint, queue_id: int, now: Now) -> None:
        """Append a checkpoint.

        Raises:
            SendRefused: too many timed messages wait.
            DiskFailed: the log takes no more.
        """
        properties = checkpoint_properties(checkpoint)
        self._put(checkpoint_body(checkpoint), properties, queue_id, checkpoint.revive_ms - 1_000, now)

    def put_ack(self, acked: Acknowledged, revive_ms: int, queue_id: int, now: Now) -> None:
        """Append acknowledgements of messages that come back at a time; errors as for `put_checkpoint`."""
        self._put(ack_body(acked), ack_properties(acked, revive_ms), queue_id, revive_ms, now)

    def put_revived(self, acked: Acknowledged, queue_id: int, now: Now) -> None:
        """Append, at once, that messages have come back; errors as for `put_checkpoint`."""
        properties = encode_properties(ack_properties(acked, now.wall_ms)).encode()
        self._puts.put_internal(self._topics.queue(self.topic(now), queue_id), ack_body(acked), properties, now)

    def _put(self, body: bytes, properties: dict[str, str], queue_id: int, due_ms: int, now: Now) -> None:
        """Append a record that is due at a time; at once if all timed messages of that time are delivered."""
        topic = self.topic(now)
        target, target_id = topic, queue_id
        out_ms = rounded_down(due_ms - 1, self._precision_ms)
        is_timed = out_ms >= self._timers.passed_ms
        if is_timed:
            target, target_id = self._puts.as_timed(topic, queue_id, properties, out_ms, now.wall_ms)
        stored = self._puts.put_internal(
            self._topics.queue(target, target_id), body, encode_properties(properties).encode(), now
        )
        if is_timed:
            self._puts.note_timed(stored, properties, out_ms)
