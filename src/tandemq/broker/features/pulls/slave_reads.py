"""Reads of old messages from slaves, which keep the master's memory for new ones.

If `slaveReadEnable` is on, a master suggests a slave to a consumer that is further behind than a share of the memory.
With fixed roles a slave answers every pull. In a group with a registry a slave that does not serve reads answers only
pulls of messages that are as far behind the end of its own log, and that no failover takes back; it commits no offset.

Source: RocketMQ DefaultMessageStore.checkInDiskByCommitOffset; docs/guides/failover.md, "Consumers far behind".
"""

from tandemq.boundary import Now
from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.kernel.kernel import Kernel
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError

MASTER_ID = 0
SENT_BACK_MS = 1_000
"""A pull of a queue that may not be read here is sent back to the master at most once in this time."""
SENT_BACK_MAX = 65_536
"""Maximum number of pulls sent back in that time; others are refused."""
_SLAVE_RATIO = 10
"""A slave's share of the memory is smaller by so many percent than a master's."""


class SlaveReads:
    """Which broker a consumer should pull from next, and which pulls a slave answers that does not serve reads."""

    def __init__(self, kernel: Kernel) -> None:
        """Decide by the settings, and by what the group allows. `memory_bytes`: memory of the machine."""
        self._store = kernel.store
        self._turn = kernel.turn
        self._memory_bytes = kernel.machine.memory_bytes
        self._sent_back: set[tuple[int, str, str, int]] = set()
        """Connection, group, topic and queue of the pulls that were sent back since `_sent_back_ms`."""
        self._sent_back_ms = 0
        self._was_enabled = False
        """Whether `slaveReadEnable` was on at any time since the start."""
        self.adopt_config(kernel.current.config)

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self._is_enabled = config.slave_read_enable
        self._was_enabled = self._was_enabled or config.slave_read_enable
        self._is_slave = config.broker_id != MASTER_ID
        ratio = config.memory_ratio_max
        self._master_bytes = self._memory_bytes * ratio // 100
        self._slave_bytes = self._memory_bytes * max(ratio - _SLAVE_RATIO, 0) // 100

    def suggested_id(self, pull: PullRequest, next_offset: int) -> int:
        """Return the broker id to pull from next, if the consumer has read the queue up to `next_offset`."""
        if not self._is_enabled:
            return MASTER_ID
        allowed, usual = self._turn.serving.old_reads, pull.group.broker_id
        wanted = pull.group.which_broker_when_consume_slowly
        try:
            if allowed is None:
                far_bytes = self._slave_bytes if self._is_slave else self._master_bytes
                return wanted if self._is_far(pull, next_offset - 1, far_bytes) else usual
            if allowed.helps:
                is_far = self._is_far(pull, next_offset, self._slave_bytes)
            else:
                is_far = self._is_far(pull, next_offset - 1, self._master_bytes)
        except StoreError:
            return usual
        if not is_far:
            return MASTER_ID
        return wanted if wanted in allowed.slaves else min(allowed.slaves, default=MASTER_ID)

    def may_answer(self, pull: PullRequest) -> bool:
        """Return whether a slave that does not serve reads may answer: the next message is far behind the end.

        Raises:
            StoreError: the entries of the queue cannot be read.
        """
        return self._is_far(pull, pull.fields.queue_offset, self._slave_bytes)

    @property
    def helps(self) -> bool:
        """Whether this member, which does not serve reads, may answer pulls of old messages."""
        allowed = self._turn.serving.old_reads
        return self._is_enabled and allowed is not None and allowed.helps

    def sends_back(self, link: int, group: str, topic: str, queue_id: int, now: Now) -> bool:
        """Return whether a pull that may not be answered is sent to the master instead of being refused.

        Java clients return to the broker that was suggested last until another one is suggested, even if it refuses.
        So pulls are sent back also after `slaveReadEnable` was turned off.
        """
        allowed = self._turn.serving.old_reads
        if not self._was_enabled or allowed is None or not allowed.sends_back:
            return False
        if now.mono_ms >= self._sent_back_ms + SENT_BACK_MS:
            self._sent_back.clear()
            self._sent_back_ms = now.mono_ms
        pulled = link, group, topic, queue_id
        if pulled in self._sent_back or len(self._sent_back) >= SENT_BACK_MAX:
            return False
        self._sent_back.add(pulled)
        return True

    def _is_far(self, pull: PullRequest, offset: int, far_bytes: int) -> bool:
        """Return whether the message at a queue offset is further than that behind the end of the log."""
        queue = pull.queue
        if not queue.min_offset <= offset < queue.max_offset:
            return False
        return self._store.log.written_end - queue.entry(offset).log_offset > far_bytes
