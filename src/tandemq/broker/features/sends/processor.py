"""Sends: ordinary messages by the engine, many at once; all others decoded and checked one by one.

Half messages are sends too, and the engine also takes the ends of those that are open: the owner of the transactions
decides whether (`open_halves`).

    bytes of a link ──► SendEngine.take ──► records, queue entries, keys, responses ──► Store.append
                           │ anything else
                           ▼
                        DecodedPath.take ──► Store.put

Both store the same bytes for the same message: `DecodedPath` is the specification of the engine. With the engine in
Python every send takes the second way.

Source: docs/reference/requests.md, "sending"; docs/decisions/0016-one-engine.md; RocketMQ SendMessageProcessor.
"""

from collections.abc import Mapping

from tandemq.boundary import Buffer, Now, Turn
from tandemq.broker.features.sends.decoded_path import DecodedPath
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import MESSAGE_BYTES_MAX, Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.timed_message import precision_ms
from tandemq.broker.kernel.puts import trace_fields
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.sends import OpenHalves, SendPlace, Sends
from tandemq.codec.remoting.requests import SendFields
from tandemq.config.settings import BrokerConfig
from tandemq.engine import SendEngine, SigningUser
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import CLUSTER, TRACE_ON, encode_properties
from tandemq.storage.store import RecordBatch

SENDS = (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


class SendPath(Feature, Sends):
    """All sends of one broker; offers `Sends`. It appends to the store, and adds responses to the acks of `Puts`."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without messages."""
        self._puts = kernel.puts
        self._store = kernel.store
        self._topics = kernel.topics.table
        self._current = kernel.current
        self._stores_region = False
        """Whether messages are stored with the properties that clients need for their traces."""
        self._open_halves: OpenHalves | None = None
        """The open transactions; None: not known."""
        self._engine = SendEngine(self._topics)
        self.decoded = DecodedPath(kernel.puts, kernel.groups, kernel.features.find(Quotas))
        self._configure_engine()

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        request = Request(self._on_send, body_bytes_max=MESSAGE_BYTES_MAX, is_always_answered=True)
        return dict.fromkeys(SENDS, request)

    def _on_send(self, link: Link, command: Command, now: Now) -> None:
        self.take(link, command, now)

    def listening(self, _address: str, _ha_address: str, _now: Now) -> None:
        """See `Feature`."""
        self._configure_engine()

    def adopt_config(self, _config: BrokerConfig) -> None:
        """See `Feature`."""
        self._configure_engine()

    def _configure_engine(self) -> None:
        config, segment_bytes = self._current.config, self._store.config.segment_bytes
        # The region and the switch for traces only with a trace topic; without the region clients of 5.3 drop their
        # traces of deliveries. RocketMQ 5.3 always stores both, 4.9 never.
        fields = trace_fields(config) if self._stores_region else {}
        common = {CLUSTER: config.cluster} | {name: value for name, value in fields.items() if value}
        self.decoded.set_in_all(common)
        self._engine.configure(
            store_host=self._puts.store_host,
            region=config.region,
            trace_on=trace_fields(config)[TRACE_ON],
            common_pairs=encode_properties(common).encode(),
            frame_bytes_max=config.frame_bytes_max,
            body_bytes_max=min(config.message_bytes_max, segment_bytes // 2),
            delays_ms=self._store.config.delays_ms,
            broker_name=config.broker_name,
            # A limit for the messages of one time is checked message by message.
            timer_precision_ms=(
                precision_ms(config) if config.timer_enable and config.timer_congest_max >= config.timers_max else 0
            ),
            timer_delay_max_ms=config.timer_delay_max_s * 1000,
        )

    def take_ordinary(self, link: Link, data: bytes, position: int, now: Now, sender: SigningUser | None = None) -> int:
        """Accept the ordinary sends from a position on; return that of the first other or incomplete frame.

        Ends of transactions count as such. They are kept, with those of all other connections, until `store_waiting`
        stores them together. The time of the turn is not looked at: it takes one or two microseconds per send.

        Args:
            link: the connection.
            data: what arrived.
            position: where to begin.
            now: the time.
            sender: the user that has to have signed them; None: no user is needed, or it is known that it may send.
        """
        if not self._begins(link, now):
            return position
        return self._engine.take(link.number, link.born_host, data, position, sender, link.budget)

    def take_large(self, link: Link, parts: list[Buffer], now: Now) -> bool:
        """Accept a large send, given as the parts in which its frame arrived; return whether it is an ordinary one."""
        return self._begins(link, now) and self._engine.take_large(link.number, link.born_host, parts, link.budget)

    def _begins(self, link: Link, now: Now) -> bool:
        """Return whether the engine may take sends of a connection now; it is ready for them."""
        puts = self._puts
        if not puts.admits_ordinary or self.decoded.keeps_order(link):
            return False
        if not self._engine.count:
            self._follow_trace_topic()
            log = self._store.log
            self._engine.begin(
                log.end,
                log.room,
                now.wall_ms,
                puts.timers_room(),
                now.mono_ms,
                takes_halves=puts.half_refusal is None and not self._current.config.reject_transactions,
                takes_ends=self._open_halves is not None and self._open_halves.may_end(),
            )
        return True

    def begin_turn(self, _turn: Turn, now: Now) -> None:
        """Take sends that waited until their rates allow them."""
        self.decoded.take_slowed(now)

    def deadline_ms(self) -> int | None:
        """See `Feature`."""
        return self.decoded.slowed.next_ms()

    def store_waiting(self) -> None:
        """Store the messages accepted since the last time, before anything else is stored."""
        if self._engine.count:
            sends = self._engine.flush()
            if sends.records:  # rollbacks store nothing
                batch = RecordBatch(sends.log_offset, sends.records, sends.queues, sends.keys, sends.store_ms)
                self._store.append(batch)
            self._puts.note_batch(sends)
            if sends.ends and self._open_halves is not None:
                self._open_halves.ended_by_engine(sends.ends, sends.store_ms)

    def know_transactions(
        self,
        owner: OpenHalves | None,
        open_halves: Mapping[int, tuple[int, str, int]] | None = None,
        ended: dict[int, bool] | None = None,
    ) -> None:
        """Set the open transactions that the engine may commit, and those that ended in this turn.

        `owner` None: they are not known, and the engine commits none.
        """
        self._open_halves = owner
        self._engine.know_transactions(open_halves, ended, self._read_log)

    def _read_log(self, log_offset: int, size: int) -> bytes:
        try:
            return self._store.log.read(log_offset, size)
        except StoreError:  # the decoded path reads it again, and answers with the reason
            return b""

    def take(self, link: Link, command: Command, now: Now) -> None:
        """Store any send, and add its response or refusal to the acks."""
        self._follow_trace_topic()
        self.decoded.take(link, command, now)

    def admit(self, fields: SendFields, body: bytes, wall_ms: int) -> SendPlace:
        """See `Sends`."""
        return self.decoded.admit(fields, body, wall_ms)

    def _follow_trace_topic(self) -> None:
        """Notice that the trace topic was created or deleted."""
        if (self._current.config.trace_topic in self._topics) is not self._stores_region:
            self._stores_region = not self._stores_region
            self._configure_engine()
