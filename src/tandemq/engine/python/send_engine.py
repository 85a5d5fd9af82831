"""Sends, which are all left to `DecodedPath`: it specifies what the compiled engine stores and answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tandemq.boundary import Buffer
from tandemq.engine.python.budget import Budget
from tandemq.engine.python.queue_tail import QueueTail
from tandemq.engine.python.signatures import SigningUser

LARGE_BODY_BYTES = 16 << 10
"""Bodies from this size on are written from where they were received; of smaller ones a copy is cheaper."""
TIMED_BYTES_MAX = 192
"""Longest properties that the delivery of a timed message adds, besides the name of its topic."""
CHECKED_BYTES_MAX = 96
"""Longest properties that the checks of a half message add."""


class TopicTarget:
    """The values of a topic that its ordinary sends need."""

    __slots__ = ("budget", "encoded", "queues", "takes_plain", "write_queue_nums")

    def __init__(self, name: str, write_queue_nums: int, *, takes_plain: bool) -> None:
        """Begin without a queue.

        Args:
            takes_plain: whether an ordinary send needs no further check of the topic.
        """
        raw = name.encode()
        self.encoded = bytes([min(len(raw), 255)]) + raw
        """The name in the form of records, length byte first."""
        self.write_queue_nums = write_queue_nums
        self.takes_plain = takes_plain
        self.queues: dict[int, QueueTail] = {}
        """Queues in use so far, by queue id."""
        self.budget: Budget | None = None
        """Rate of its sends; None: unlimited."""


Ack = tuple[int, bytes | None, int, int, int]
"""Responses of one connection that wait for the log: link, frames, log offset, waits, messages.

The frames say SUCCESS; None or empty for one-way sends. They may be sent when the log is safe up to the log offset; 0:
nothing was stored, at once. `waits`: whether flush and replicas count as safe, or `WAITS_UNCHANGED`. `messages`: how
many they acknowledge. A plain tuple, since one is made per connection and turn.
"""
WAITS_UNCHANGED = 2
"""The frames wait as others do, but promise nothing: they stay as they are if flush or replicas are late or missing."""


TimedSend = tuple[int, int, str, bool]
"""A timed message: queue offset, TIMER_OUT_MS, topic that it is delivered to, whether it asks not to deliver another.
A plain tuple, since one is made per message."""


EndedHalf = tuple[int, str, int, bool]
"""The end of a transaction: queue offset of its half message, topic, born time (ms), whether it was committed."""


class TakenSends(NamedTuple):
    """Result of `SendEngine.flush`: the sends taken since `begin`."""

    log_offset: int
    records: tuple[Buffer, ...]
    """Contiguous records: the buffers, one behind the other; large bodies share the memory of what was received."""
    queues: list[Any]
    """Queues whose first entry since the last commit was staged."""
    keys: bytes
    """Packed (`KEY_ROW`)."""
    store_ms: int
    acks: list[Ack]
    messages: int
    """Number of sends, without ends of transactions."""
    body_bytes: int
    timed: list[TimedSend]
    """Timed messages among the sends."""
    halves: list[tuple[int, int, str, int]]
    """Half messages among the sends: queue offset, log offset, topic after the commit, bytes of the record."""
    ends: list[EndedHalf]
    """Transactions that were committed or rolled back."""


class SendEngine:
    """Ordinary sends of one turn: from frames to records, queue entries, keys and responses."""

    count = 0
    """Requests taken since the last `flush`."""
    messages = body_bytes = 0
    """Messages of them, and bytes of their bodies."""

    def __init__(self, topics: Mapping[str, TopicTarget]) -> None:
        """Take the table of topics, which the owner changes; nothing is known of transactions."""

    def configure(
        self,
        *,
        store_host: bytes,
        region: str,
        trace_on: str,
        common_pairs: bytes,
        frame_bytes_max: int,
        body_bytes_max: int,
        delays_ms: Sequence[int],
        broker_name: str,
        timer_precision_ms: int,
        timer_delay_max_ms: int,
    ) -> None:
        """Set what responses and records have in common, and the limits of ordinary messages.

        Args:
            timer_precision_ms: unit of time of timed messages; 0: they are not taken.
        """

    def know_transactions(
        self,
        open_halves: Mapping[int, tuple[int, str, int]] | None,
        ended: dict[int, bool] | None,
        read_log: Callable[[int, int], bytes] | None,
    ) -> None:
        """Set the tables of open and ended transactions; None: they are not known.

        Args:
            open_halves: log offset, topic and record size of each open half message, by queue offset.
            ended: transactions ended in this turn; the engine adds those that it ends.
            read_log: returns bytes of the log, from an offset on; b"" if they cannot be read.
        """

    def begin(
        self,
        log_end: int,
        room: int,
        store_ms: int,
        timers_room: int,
        now_ms: int = 0,
        *,
        takes_halves: bool = False,
        takes_ends: bool = False,
    ) -> None:
        """Begin with records for a log offset.

        Args:
            log_end: that log offset.
            room: bytes that the current file has for them.
            store_ms: their store time.
            timers_room: maximum number of timed messages.
            now_ms: monotonic time, for the rates of topics.
            takes_halves: whether half messages are accepted.
            takes_ends: whether ends of transactions are accepted.
        """

    def take(
        self,
        link: int,
        born_host: bytes,
        data: bytes,
        position: int,
        sender: SigningUser | None = None,
        budget: Budget | None = None,
    ) -> int:
        """Take the ordinary sends from a position on; return that of the first other or incomplete frame.

        Args:
            link: the connection.
            born_host: the peer's address, as records store it.
            data: what arrived.
            position: where to begin.
            sender: the user that has to have signed them, and that may send to their topics; None: no user is needed.
            budget: rate that they use, and that has to allow each; None: unlimited.
        """
        return position

    def take_large(self, link: int, born_host: bytes, parts: list[Buffer], budget: Budget | None = None) -> bool:
        """Take a send from the parts in which its frame arrived; return whether it is an ordinary one.

        Args:
            link: the connection.
            born_host: the peer's address, as records store it.
            parts: a whole frame, of at least `LARGE_BODY_BYTES`.
            budget: rate that it uses, and that has to allow it; None: unlimited.
        """
        return False

    def flush(self) -> TakenSends:
        """Return what was taken since `begin`, and forget it."""
        return TakenSends(0, (), [], b"", 0, [], 0, 0, [], [], [])
