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
from random import Random

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.messages.timed_message import precision_ms
from tandemq.broker.kernel.puts import OpenHalves, Puts, StoredHalf, trace_fields
from tandemq.broker.send.decoded_path import DecodedPath
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topics
from tandemq.config.settings import BrokerConfig
from tandemq.engine import SendEngine
from tandemq.errors import StoreError
from tandemq.model.command import Command
from tandemq.model.message import CLUSTER, TRACE_ON, encode_properties
from tandemq.storage.store import RecordBatch, Store


class SendPath(Puts):
    """All sends of one broker. Appends to the store; the owner commits and releases `acks`."""

    def __init__(
        self, config: BrokerConfig, store: Store, topics: Topics, groups: Groups, random: Random, store_host: bytes
    ) -> None:
        """Take the collaborators; `store_host` is this broker's advertised address in the form of records."""
        super().__init__(config, store, topics, random, store_host)
        self._engine = SendEngine(topics.table)
        self._configure_engine()
        self.decoded = DecodedPath(self, groups)

    def set_store_host(self, store_host: bytes) -> None:
        """Set this broker's advertised address, in the form of records, once it is known."""
        super().set_store_host(store_host)
        self._configure_engine()

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        super().adopt_config(config)
        self._configure_engine()

    def _configure_engine(self) -> None:
        config, segment_bytes = self.config, self.store.config.segment_bytes
        # The region and the switch for traces only with a trace topic; without the region clients of 5.3 drop their
        # traces of deliveries. RocketMQ 5.3 always stores both, 4.9 never.
        fields = trace_fields(config) if self.stores_region else {}
        self.common_properties = {CLUSTER: config.cluster} | {name: value for name, value in fields.items() if value}
        self._engine.configure(
            store_host=self.store_host,
            region=config.region,
            trace_on=trace_fields(config)[TRACE_ON],
            common_pairs=encode_properties(self.common_properties).encode(),
            frame_bytes_max=config.frame_bytes_max,
            body_bytes_max=min(config.message_bytes_max, segment_bytes // 2),
            delays_ms=self.store.config.delays_ms,
            broker_name=config.broker_name,
            # A limit for the messages of one time is checked message by message.
            timer_precision_ms=(
                precision_ms(config) if config.timer_enable and config.timer_congest_max >= config.timers_max else 0
            ),
            timer_delay_max_ms=config.timer_delay_max_s * 1000,
        )

    def take_ordinary(self, link: Link, data: bytes, at: int, now: Now) -> int:
        """Accept the ordinary sends from `data[at]` on; return the position of the first other or incomplete frame.

        Ends of transactions count as such. They are kept, with those of all other connections, until `store_waiting`
        stores them together. The time of the turn is not looked at: it takes a microsecond per send.
        """
        if not self.admits_ordinary:
            return at
        if not self._engine.count:
            self._follow_trace_topic()
            log = self.store.log
            self._engine.begin(
                log.end,
                log.room,
                now.wall_ms,
                self.timers_room(),
                takes_halves=self.half_refusal is None and not self.config.reject_transactions,
                takes_ends=self.open_halves is not None and self.open_halves.may_end(),
            )
        return self._engine.take(link.number, link.born_host, data, at)

    def store_waiting(self) -> None:
        """Store the messages accepted since the last time, before anything else is stored."""
        if self._engine.count:
            sends = self._engine.flush()
            if sends.data:  # rollbacks store nothing
                self.store.append(RecordBatch(sends.log_offset, sends.data, sends.queues, sends.keys, sends.store_ms))
            self.acks += sends.acks
            if sends.timed:
                self._timed += sends.timed
            self._halves += map(StoredHalf._make, sends.halves)
            if sends.ends and self.open_halves is not None:
                self.open_halves.ended_by_engine(sends.ends, sends.store_ms)
            self.count += sends.messages
            self.bytes += sends.body_bytes

    def know_transactions(
        self,
        owner: OpenHalves | None,
        open_halves: Mapping[int, tuple[int, str, int]] | None = None,
        ended: dict[int, bool] | None = None,
    ) -> None:
        """Set the open transactions that the engine may commit, and those that ended in this turn.

        `owner` None: they are not known, and the engine commits none.
        """
        super().know_transactions(owner)
        self._engine.know_transactions(open_halves, ended, self._read_log)

    def _read_log(self, log_offset: int, size: int) -> bytes:
        try:
            return self.store.log.read(log_offset, size)
        except StoreError:  # the decoded path reads it again, and answers with the reason
            return b""

    def take(self, link: Link, command: Command, now: Now) -> None:
        """Store any send, and add its response or refusal to the acks."""
        self._follow_trace_topic()
        self.decoded.take(link, command, now)

    def _follow_trace_topic(self) -> None:
        """Notice that the trace topic was created or deleted."""
        if (self.config.trace_topic in self.topics.table) is not self.stores_region:
            self.stores_region = not self.stores_region
            self._configure_engine()
