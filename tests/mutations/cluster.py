"""Mutations of brokers with fixed roles and of the client.

Some seed of the simulation must fail under each. `MUTATIONS` says which rules may notice it first.
"""

# ruff: noqa: ARG005  # a replacement has the signature of what it replaces
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from tandemq.boundary import Buffer, Disk, Turn
from tandemq.broker.features.delay import service as delay
from tandemq.broker.features.pulls import hold_service as longpoll
from tandemq.broker.features.pulls import message_reader
from tandemq.broker.features.pulls import processor as pulls
from tandemq.broker.features.replies import reply_message as replies
from tandemq.broker.features.retries import send_back as retry
from tandemq.broker.features.scrub import repair
from tandemq.broker.features.scrub import verify_job as scrubwork
from tandemq.broker.features.sends import decoded_path
from tandemq.broker.features.sends import processor as send
from tandemq.broker.filter import parser as filters
from tandemq.broker.ha import admission, upstream
from tandemq.broker.ha import master as masterside
from tandemq.broker.ha import slave as slaveside
from tandemq.broker.kernel import acknowledgements, dispatcher, kernel
from tandemq.broker.kernel.response import recode
from tandemq.broker.state import consumer_offsets as offsets
from tandemq.client.consumer import deduplication
from tandemq.client.consumer import push_machine as consuming
from tandemq.client.consumer.queues import process_queue
from tandemq.client.core import connections as links
from tandemq.client.core import routes
from tandemq.client.producer import fault_strategy as targets
from tandemq.client.producer import machine as sending
from tandemq.client.producer import requester
from tandemq.client.producer.publish_info import SendTarget
from tandemq.codec.record.record import Record, parse_record
from tandemq.engine import WAITS_UNCHANGED
from tandemq.errors import NotConnected, ProtocolError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import decode_properties, encode_properties
from tandemq.model.topic import DLQ_PREFIX, SCHEDULE_TOPIC
from tandemq.replication import master
from tandemq.replication import record_stream as records
from tandemq.storage import consume_queue as consumequeue
from tandemq.storage import key_index as index
from tandemq.storage import recovery, store
from tandemq.storage.json_tables import StoredTable, TableFile, TableOrigin
from tandemq.storage.log import range_reader
from tests.mutations.access import ACCESS_MUTATIONS, LIMIT_MUTATIONS
from tests.mutations.patch import Mutation, both, patched
from tests.mutations.pops import POP_MUTATIONS
from tests.mutations.static_topics import STATIC_TOPIC_MUTATIONS
from tests.mutations.timers import TIMER_MUTATIONS
from tests.mutations.transactions import TRANSACTION_MUTATIONS


def ack_without_flush() -> AbstractContextManager[Any]:
    """SYNC_FLUSH acknowledges without flushing."""
    return patched(store.FlushJob, "run", lambda self: None)


def flush_covers_later_writes() -> AbstractContextManager[Any]:
    """A sync covers bytes that were written while it ran."""

    def end_flush(self: store.Store, _job: store.FlushJob) -> None:
        self.log.flushed_offset = self.log.written_end

    return patched(store.Store, "end_flush", end_flush)


def ack_without_replica() -> AbstractContextManager[Any]:
    """SYNC_MASTER acknowledges without replication."""
    return patched(masterside.MasterSide, "copied_offset", lambda self, acked: 1 << 62)


def slave_counts_twice() -> AbstractContextManager[Any]:
    """Every session of a slave counts, half-dead ones too, and each counts twice."""

    def acked_offsets(self: Any) -> list[int]:
        found = [
            session.acked_offset
            for session in self.sessions.values()
            if session.state is master.MasterSessionState.TRANSFER
        ]
        return found + found

    return patched(masterside.MasterSide, "acked_offsets", acked_offsets)


def report_before_store() -> AbstractContextManager[Any]:
    """Bytes sent to a slave count as reported by it."""

    def acked_offsets(self: Any) -> list[int]:
        return [
            session.next_offset
            for session in self.sessions.values()
            if session.state is master.MasterSessionState.TRANSFER
        ]

    return patched(masterside.MasterSide, "acked_offsets", acked_offsets)


def failed_write_is_acked() -> AbstractContextManager[Any]:
    """A failed write is acknowledged."""

    def refuse(self: acknowledgements.Acknowledgements, acks: Any, _error: Exception, turn: Turn) -> None:
        for link, answers, *_ in acks:
            if answers:
                turn.send(link, answers)

    return patched(acknowledgements.Acknowledgements, "refuse", refuse)


def no_checksums() -> AbstractContextManager[Any]:
    """The slave stores records without verifying their checksums."""
    return both(
        patched(records, "record_fault", lambda *_: None),
        patched(records, "verify_records", lambda _data, start, *_: (start, 0)),
    )


def queues_not_cut() -> AbstractContextManager[Any]:
    """Consume queues keep entries whose records were truncated."""
    return patched(consumequeue.ConsumeQueue, "truncate_from", lambda self, log_end, **_: None)


def queue_entries_wrong() -> AbstractContextManager[Any]:
    """Consume queue entries carry a wrong tag code."""
    stage = consumequeue.ConsumeQueue.stage
    return patched(
        consumequeue.ConsumeQueue,
        "stage",
        lambda self, queue_offset, log_offset, size, code: stage(self, queue_offset, log_offset, size, code + 1),
    )


def deletion_not_followed() -> AbstractContextManager[Any]:
    """A walk of the log, and a slave, pass over the record of a topic's deletion."""
    return patched(store.Store, "_deleted_in_walk", lambda self, properties: None)


def delay_early() -> AbstractContextManager[Any]:
    """Delayed messages are delivered after half their delay."""
    entry_code = store.Store.entry_code

    def early(self: store.Store, topic: str, properties: bytes, store_ms: int) -> int:
        code = entry_code(self, topic, properties, store_ms)
        return store_ms + (code - store_ms) // 2 if topic.startswith("SCHEDULE") else code

    return both(_engine_off(), patched(store.Store, "entry_code", early))


def delay_twice() -> AbstractContextManager[Any]:
    """The progress of delay levels is dropped in some turns."""

    def committed(self: delay.DelayedMessages, _now: Any) -> None:
        if self._pending and self.delivered % 3:
            self.progress.update(self._pending)
        self._pending.clear()

    return patched(delay.DelayedMessages, "committed", committed)


def offsets_go_back() -> AbstractContextManager[Any]:
    """A committed offset is stored one lower."""
    commit = offsets.ConsumerOffsets.commit
    return patched(
        offsets.ConsumerOffsets,
        "commit",
        lambda self, topic, group, queue_id, offset: commit(self, topic, group, queue_id, max(0, offset - 1)),
    )


class _EmptyTable(TableFile):
    """The file of a table, read as if it were empty."""

    def read(self, disk: Disk) -> StoredTable:
        """See `TableFile`."""
        return StoredTable({}, TableOrigin.FILE)


def offsets_forgotten() -> AbstractContextManager[Any]:
    """The offset table is empty after a restart."""
    return patched(offsets, "FILE", _EmptyTable(offsets.FILE.name))


def queue_offset_reused() -> AbstractContextManager[Any]:
    """A recovered queue assigns its last offset again."""
    open_store = recovery.open_store

    def reopened(*args: Any) -> Any:
        opened, found = open_store(*args)
        for queue in opened.queues.values():
            queue.next_offset = max(queue.next_offset - 1, 0)
        return opened, found

    return patched(kernel, "open_store", reopened)


def delayed_share_offsets() -> AbstractContextManager[Any]:
    """The queue of a delay level assigns the same offset again."""
    put = store.Store.put

    def again(self: store.Store, queue: consumequeue.ConsumeQueue, **rest: Any) -> Any:
        if queue.topic == SCHEDULE_TOPIC and queue.next_offset:
            queue.next_offset -= 1
        return put(self, queue, **rest)

    return both(_engine_off(), patched(store.Store, "put", again))


def tail_cut() -> AbstractContextManager[Any]:
    """Recovery truncates everything that was not synced."""
    walk = recovery._walk

    def short(opened: store.Store, begin: int, **rest: Any) -> int:
        count = walk(opened, begin, **rest)
        opened.log.end = begin
        return count

    return patched(recovery, "_walk", short)


def order_reversed() -> AbstractContextManager[Any]:
    """Messages of a pull response are in reverse order."""
    read = message_reader.MessageReader.read

    def reversed_messages(self: message_reader.MessageReader, *arguments: Any, **named: Any) -> Any:
        found = read(self, *arguments, **named)
        return found._replace(buffers=_records_of(found.buffers)[::-1])

    return patched(message_reader.MessageReader, "read", reversed_messages)


def _records_of(buffers: Sequence[Buffer]) -> list[bytes]:
    data, at, found = b"".join(buffers), 0, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        found.append(data[at : at + size])
        at += size
    return found


def junk_ends_process() -> AbstractContextManager[Any]:
    """The exception for an unreadable header is not caught."""
    decode = vars(dispatcher)["decode_command"]

    def strict(frame: Any) -> Any:
        try:
            return decode(frame)
        except ProtocolError as error:
            raise LookupError("unreadable") from error

    return patched(dispatcher, "decode_command", strict)


def body_changed() -> AbstractContextManager[Any]:
    """A message is stored with its body reversed."""
    take = decoded_path.DecodedPath.take

    def changed(self: decoded_path.DecodedPath, link: Any, command: Any, now: Any) -> None:
        command.body = command.body[::-1]
        take(self, link, command, now)

    return both(_engine_off(), patched(decoded_path.DecodedPath, "take", changed))


def stored_twice() -> AbstractContextManager[Any]:
    """A message is stored twice."""
    store_one = decoded_path.DecodedPath._store_one

    def twice(self: decoded_path.DecodedPath, *args: Any) -> Any:
        store_one(self, *args)
        return store_one(self, *args)

    return both(_engine_off(), patched(decoded_path.DecodedPath, "_store_one", twice))


def _engine_off() -> AbstractContextManager[Any]:
    return patched(send.SendPath, "take_ordinary", lambda _self, _link, _data, at, *_: at)


def refused_and_stored() -> AbstractContextManager[Any]:
    """Some stored messages are answered with an error."""
    acknowledge = acknowledgements.Acknowledgements._answer

    def refuse(self: acknowledgements.Acknowledgements, acks: Any, turn: Turn, now: Any) -> None:
        for at, (link, answers, end, _, count) in enumerate(acks):
            if answers and end and end % 5 == 0:
                acks[at] = (link, recode(answers, ResponseCode.SYSTEM_ERROR), end, WAITS_UNCHANGED, count)
        acknowledge(self, acks, turn, now)

    return patched(acknowledgements.Acknowledgements, "_answer", refuse)


def rejected_lost() -> AbstractContextManager[Any]:
    """A message that a consumer sends back is acknowledged and not stored."""

    def take(_self: Any, _link: Any, command: Any, _now: Any) -> Any:
        return command.answer(ResponseCode.SUCCESS)

    return patched(retry.SendBackProcessor, "_on_send_back", take)


def index_forgets() -> AbstractContextManager[Any]:
    """Keys are dropped instead of indexed."""
    return patched(index.KeyIndex, "absorb", lambda self: self.pending.clear())


def slave_never_returns() -> AbstractContextManager[Any]:
    """A slave does not reconnect after its connection closed."""
    closed = upstream.UpstreamBySettings.closed

    def gone(self: Any, now: Any, *, was_copying: bool) -> None:
        closed(self, now, was_copying=was_copying)
        self._connect_at_ms = now.mono_ms + 10**9

    return patched(upstream.UpstreamBySettings, "closed", gone)


def slave_offsets_go_back() -> AbstractContextManager[Any]:
    """A slave applies the first offsets it received again, every other time."""
    copy = offsets.ConsumerOffsets.copy_from_master

    def forgetful(self: offsets.ConsumerOffsets, table: dict[str, dict[int, int]], resets: Any, version: Any) -> None:
        first = vars(self).setdefault("first_heard", {})
        for key, queues in table.items():
            first.setdefault(key, dict(queues))
        times = vars(self)["times"] = vars(self).get("times", 0) + 1
        copy(self, first if times % 2 else table, resets, version)

    return patched(offsets.ConsumerOffsets, "copy_from_master", forgetful)


def damage_stays() -> AbstractContextManager[Any]:
    """Damage is found and listed, and not repaired."""
    return patched(repair.Repairs, "_next", lambda self, now: None)


def repair_unverified() -> AbstractContextManager[Any]:
    """Bytes from a replica for a damaged range are written without verification, with one bit flipped."""
    run = scrubwork.ServeWork.run

    def turned(self: scrubwork.ServeWork) -> scrubwork.Served:
        served = run(self)
        data = served.data
        return served._replace(data=data[:20] + bytes([data[20] ^ 1]) + data[21:] if data else b"")

    def believed(self: scrubwork.WeighWork) -> scrubwork.Weighed:
        start = self.wanted.start
        return scrubwork.Weighed(start, self.data, start + len(self.data), [])

    return both(patched(scrubwork.ServeWork, "run", turned), patched(scrubwork.WeighWork, "run", believed))


def copies_never_compared() -> AbstractContextManager[Any]:
    """Replicas are not compared, neither by a slave on arrival nor by a master on reconnection.

    A bit of every dead letter is flipped in flight.
    """
    keep = slaveside.SlaveSide._append

    def believed(self: slaveside.SlaveSide, pieces: list[records.Piece], turn: Turn) -> bool:
        return keep(self, [piece._replace(data=_dead_letters_turned(piece)) for piece in pieces], turn)

    return both(
        patched(slaveside.SlaveSide, "_append", believed),
        patched(admission.SlaveAdmission, "_tail_difference", lambda self, hello: None),
    )


def _dead_letters_turned(piece: records.Piece) -> bytes:
    data = bytearray(piece.data)
    at = 0
    while isinstance(record := parse_record(data, at, len(data)), Record):
        if record.topic.startswith(DLQ_PREFIX.encode()):
            data[record.body_end - 1] ^= 1
        at += record.size
    return bytes(data)


def answers_unchecked() -> AbstractContextManager[Any]:
    """Records read by a pull are not compared with the queue entries, and reads start eight bytes early."""
    read = range_reader.RangeReader.read

    def beside(
        self: range_reader.RangeReader, ranges: Sequence[tuple[int, int]], *, may_wait: bool = True
    ) -> list[bytes]:
        early = [(start - 8, end - 8) if start >= 8 else (start, end) for start, end in ranges]
        return read(self, early, may_wait=may_wait)

    return both(
        patched(range_reader.RangeReader, "gather", lambda *_, **__: None),
        patched(range_reader.RangeReader, "read", beside),
        patched(message_reader, "_is_record", lambda *_: True),
    )


def uncached_skipped() -> AbstractContextManager[Any]:
    """A pull that waited for the device goes on behind the message that the page cache lacked."""
    go_on = pulls.PullPath._go_on

    def skip(self: pulls.PullPath, pull: Any, *result: Any) -> None:
        pull.scan_offset += 1
        go_on(self, pull, *result)

    return patched(pulls.PullPath, "_go_on", skip)


def deadline_stays() -> AbstractContextManager[Any]:
    """A held pull whose time is over stays held, and so does its deadline."""
    return patched(longpoll.HeldPulls, "due", lambda self, now_ms, most: [])


def client_denies_the_unknown() -> AbstractContextManager[Any]:
    """The client reports a message without a response as not stored."""
    return patched(links, "OutcomeUnknown", NotConnected)


def client_makes_new_keys() -> AbstractContextManager[Any]:
    """The client retries a message under another unique key."""
    again = sending.ProducerCore._again

    def renamed(self: sending.ProducerCore, sent: Any, now: Any) -> None:
        message = sent.message
        for key in message.unique_keys if not message.is_batch else ():
            fresh = self._keys.next(now.wall_ms)
            sent.message = structs.replace(
                message, properties=message.properties.replace(key, fresh), unique_keys=(fresh,)
            )
        again(self, sent, now)

    return patched(sending.ProducerCore, "_again", renamed)


def client_sends_to_one_broker() -> AbstractContextManager[Any]:
    """The client retries a message at the broker where it failed."""

    def stubborn(self: Any, publishing: Any, last_broker: str, _now: Any, **_: Any) -> Any:
        of_last = [queue for queue in publishing.queues if queue.broker_name == last_broker] or publishing.queues
        publishing.position += 1
        queue = of_last[publishing.position % len(of_last)]
        return SendTarget(queue, self._routes.members(queue.broker_name)[0])

    return patched(targets.MQFaultStrategy, "choose", stubborn)


def client_commits_ahead() -> AbstractContextManager[Any]:
    """The client commits offsets up to what it pulled, finished or not."""
    return patched(process_queue.ProcessQueue, "committable", property(lambda self: self.next_offset))


def client_drops_rejected() -> AbstractContextManager[Any]:
    """The client drops the messages that its application sends back."""

    def drop(self: consuming.PushConsumerCore, delivery: Any, _level: int, ticket: Any, now: Any) -> None:
        self._acknowledge(delivery, now)
        ticket.settle(None)

    return patched(consuming.PushConsumerCore, "_send_back", drop)


def client_skips_messages() -> AbstractContextManager[Any]:
    """The client drops every seventh message it pulls."""
    arrived = consuming.PushConsumerCore._on_messages

    def skip(self: consuming.PushConsumerCore, share: Any, messages: Any, now: Any) -> None:
        for message in messages:
            if message.queue_offset % 7 == 6:
                share.process_queue.ack(message.queue_offset)
        arrived(self, share, [message for message in messages if message.queue_offset % 7 != 6], now)

    return patched(consuming.PushConsumerCore, "_on_messages", skip)


def client_waits_for_its_master() -> AbstractContextManager[Any]:
    """The client reads from masters only."""

    def master_only(self: routes.Routes, broker_name: str, _preferred_id: int = 0, _topic: str = "") -> list[str]:
        return [address for number, address in self.members(broker_name).items() if number == 0]

    return patched(routes.Routes, "read_addresses", master_only)


def client_delivers_duplicates() -> AbstractContextManager[Any]:
    """A consumer with a window of duplicates delivers them."""
    return patched(deduplication.HandledKeys, "__contains__", lambda self, identity: False)


def client_marks_before_the_handler() -> AbstractContextManager[Any]:
    """A consumer with a window of duplicates counts a message as handled when it is delivered."""
    admit = deduplication.DuplicateFilter.admit

    def marking(self: deduplication.DuplicateFilter, delivery: Any) -> Any:
        admission = admit(self, delivery)
        if delivery.identity:
            self._handled.add(delivery.queue, delivery.identity)
        return admission

    return patched(deduplication.DuplicateFilter, "admit", marking)


def client_mixes_up_replies() -> AbstractContextManager[Any]:
    """The client gives a reply to the oldest request that waits."""
    taken = requester.Requester.take_reply

    def oldest(self: requester.Requester, address: str, command: Any, now: Any) -> Any:
        for correlation_id in list(self._waiting)[:1]:
            properties = decode_properties(command.fields["properties"]) | {"CORRELATION_ID": correlation_id}
            command.fields["properties"] = encode_properties(properties)
        return taken(self, address, command, now)

    return patched(requester.Requester, "take_reply", oldest)


def replies_get_lost() -> AbstractContextManager[Any]:
    """The broker answers replies as if it had passed them on."""

    def lost(self: replies.ReplyMessageProcessor, reply: Any, _target: int, now: Any) -> None:
        self._finish(reply, None, now)

    return patched(replies.ReplyMessageProcessor, "_push", lost)


def _in_python(mutation: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Have messages matched one by one by `SqlFilter.matches`, with a mutation of it."""
    return both(mutation, patched(message_reader.MessageReader, "_select_matching", lambda *_: None))


def filters_let_pass() -> AbstractContextManager[Any]:
    """Every message matches an SQL92 expression."""
    return _in_python(patched(filters.SqlFilter, "matches", lambda self, properties: True))


def filters_drop_unknown() -> AbstractContextManager[Any]:
    """An SQL92 expression drops messages without a tag."""
    matches = filters.SqlFilter.matches

    def drop(self: filters.SqlFilter, properties: Any) -> bool:
        return matches(self, properties) and "TAGS" in properties

    return _in_python(patched(filters.SqlFilter, "matches", drop))


MUTATIONS: dict[str, Mutation] = {
    "ack-without-flush": Mutation(ack_without_flush, frozenset({"I17", "I1"})),
    "flush-covers-later-writes": Mutation(flush_covers_later_writes, frozenset({"I17", "I1"})),
    "ack-without-replica": Mutation(ack_without_replica, frozenset({"I17", "I1"})),
    "slave-counts-twice": Mutation(slave_counts_twice, frozenset({"I17", "I1"})),
    "report-before-store": Mutation(report_before_store, frozenset({"I17", "I1"})),
    "failed-write-is-acked": Mutation(failed_write_is_acked, frozenset({"I17", "I1", "I5", "I2", "I16"})),
    "no-checksums": Mutation(no_checksums, frozenset({"I8", "I10", "I2", "I16", "I17"})),
    "queues-not-cut": Mutation(queues_not_cut, frozenset({"I5", "I9", "I10", "I16", "I14", "I4", "I17", "I2"})),
    "queue-entries-wrong": Mutation(queue_entries_wrong, frozenset({"I9", "I12", "I14"})),
    "deletion-not-followed": Mutation(deletion_not_followed, frozenset({"I9", "I14"})),
    "delay-early": Mutation(delay_early, frozenset({"I12"})),
    "delay-twice": Mutation(delay_twice, frozenset({"I12", "I14", "I3"})),
    **TIMER_MUTATIONS,
    **POP_MUTATIONS,
    "offsets-go-back": Mutation(offsets_go_back, frozenset({"I7"})),
    "offsets-forgotten": Mutation(offsets_forgotten, frozenset({"I7"})),
    "queue-offset-reused": Mutation(queue_offset_reused, frozenset({"I5", "I9", "I4", "I17", "I14", "I16"})),
    "delayed-share-offsets": Mutation(delayed_share_offsets, frozenset({"I5"})),
    "tail-cut": Mutation(tail_cut, frozenset({"I1"})),
    "order-reversed": Mutation(order_reversed, frozenset({"I4"})),
    "junk-ends-process": Mutation(junk_ends_process, frozenset({"I16"})),
    "body-changed": Mutation(body_changed, frozenset({"I2"})),
    "stored-twice": Mutation(stored_twice, frozenset({"I3", "I17", "I5"})),
    "refused-and-stored": Mutation(refused_and_stored, frozenset({"I17", "I14"})),
    "rejected-lost": Mutation(rejected_lost, frozenset({"I13"})),
    "index-forgets": Mutation(index_forgets, frozenset({"I9"})),
    "slave-never-returns": Mutation(slave_never_returns, frozenset({"I14"})),
    "slave-offsets-go-back": Mutation(slave_offsets_go_back, frozenset({"I7"})),
    "damage-stays": Mutation(damage_stays, frozenset({"I14", "I10", "I8"})),
    "repair-unverified": Mutation(repair_unverified, frozenset({"I14", "I10", "I8", "I2"})),
    "copies-never-compared": Mutation(copies_never_compared, frozenset({"I8"})),
    "answers-unchecked": Mutation(answers_unchecked, frozenset({"I10"})),
    "uncached-skipped": Mutation(uncached_skipped, frozenset({"I13", "I14", "I23"})),
    "deadline-stays": Mutation(deadline_stays, frozenset({"I15"})),
    "client-denies-the-unknown": Mutation(client_denies_the_unknown, frozenset({"I17"})),
    "client-makes-new-keys": Mutation(client_makes_new_keys, frozenset({"I3"})),
    "client-sends-to-one-broker": Mutation(client_sends_to_one_broker, frozenset({"I14"})),
    "client-commits-ahead": Mutation(client_commits_ahead, frozenset({"I7"})),
    "client-drops-rejected": Mutation(client_drops_rejected, frozenset({"I13"})),
    "client-skips-messages": Mutation(client_skips_messages, frozenset({"I14"})),
    "client-waits-for-its-master": Mutation(client_waits_for_its_master, frozenset({"I14"})),
    "client-delivers-duplicates": Mutation(client_delivers_duplicates, frozenset({"I22"})),
    "client-marks-before-the-handler": Mutation(client_marks_before_the_handler, frozenset({"I22", "I13", "I14"})),
    "client-mixes-up-replies": Mutation(client_mixes_up_replies, frozenset({"I20"})),
    "replies-get-lost": Mutation(replies_get_lost, frozenset({"I20"})),
    "filters-let-pass": Mutation(filters_let_pass, frozenset({"I21"})),
    "filters-drop-unknown": Mutation(filters_drop_unknown, frozenset({"I14"})),
    **TRANSACTION_MUTATIONS,
    **STATIC_TOPIC_MUTATIONS,
    **ACCESS_MUTATIONS,
    **LIMIT_MUTATIONS,
}
"""Mutations by name."""
