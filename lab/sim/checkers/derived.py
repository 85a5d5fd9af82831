"""I9: queues and index of a broker equal a rebuild from its log, in which the deletion of a topic is a record."""

from collections.abc import Iterator, Sequence

from lab.sim.checkers.logs import LoggedMessage
from lab.sim.world.cluster import Host
from lab.sim.world.world import Violation
from tandemq.broker.features.scrub.scrubber import Scrubber
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.model.topic import DELETION_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import deleted_topic

INDEX_SAMPLES = 12
QueueEntries = dict[tuple[str, int], list[tuple[int, int, int, int]]]
"""Topic and queue id to (queue offset, log offset, size, code) of each entry."""


def judge_derived(host: Host, records: Sequence[LoggedMessage], log_start: int) -> None:
    """Check queues and index against the records of the log.

    Raises:
        Violation: I9, or I5: queue offsets in the log have a gap.
    """
    assert host.broker is not None, "it runs"
    corrected = host.broker.features.find(Scrubber).entries.rebuilt
    if corrected and not host.flips:
        raise Violation("I9", f"{host.name}: {corrected} queue entries were wrong before the scrubber met them")
    _judge_queues(host, _expected_entries(host, records), log_start)
    # Keys of ranges that recovery could not read return when the index is rebuilt. A torn end that recovery took for
    # such a range, without the marks, has none either. Damage within an index file goes unnoticed.
    if not any(path.startswith(("commitlog/", "tandemq.marks", "index/")) for path, _ in host.flips):
        _judge_index(host, records)


def _expected_entries(host: Host, records: Sequence[LoggedMessage]) -> QueueEntries:
    """Return the entries that all queues must have by the log; a recorded deletion removes the topic's earlier ones."""
    assert host.broker is not None, "it runs"
    store, entries = host.broker.store, QueueEntries()
    for found in records:
        record = found.record
        if found.topic == DELETION_TOPIC:
            topic = deleted_topic(record.properties)
            for key in [key for key in entries if key[0] == topic]:
                del entries[key]
            continue
        code = store.entry_code(found.topic, record.properties, record.store_ms)
        entries.setdefault((found.topic, record.queue_id), []).append(
            (record.queue_offset, record.log_offset, record.size, code)
        )
    return entries


def _judge_queues(host: Host, expected: QueueEntries, log_start: int) -> None:
    assert host.broker is not None, "it runs"
    store = host.broker.store
    for key, entries in expected.items():
        queue = store.queues.get(key)
        offsets = [entry[0] for entry in entries]
        if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
            raise Violation("I5", f"{host.name}: queue offsets of {key} in the log: {offsets}")
        if queue is None or queue.max_offset != offsets[-1] + 1:
            raise Violation(
                "I9", f"{host.name}: {key} ends at {queue and queue.max_offset}, by the log at {offsets[-1] + 1}"
            )
        held = dict(queue_entries(queue, max(offsets[0], queue.min_offset)))
        for queue_offset, *entry in entries:
            if queue_offset >= queue.min_offset and held.get(queue_offset) != tuple(entry):
                raise Violation(
                    "I9", f"{host.name}: {key}@{queue_offset} is {held.get(queue_offset)}, by the log {entry}"
                )
    for key, queue in store.queues.items():
        if queue.last_log_end > log_start and queue.max_offset > queue.min_offset and key not in expected:
            raise Violation("I9", f"{host.name}: {key} has entries, the log has none for it")


def _judge_index(host: Host, records: Sequence[LoggedMessage]) -> None:
    assert host.broker is not None, "it runs"
    index = host.broker.store.index
    with_key = [found for found in records if found.key]
    if index is None or not with_key:
        return
    step = max(1, len(with_key) // INDEX_SAMPLES)
    for found in with_key[::-step]:
        places = index.find(found.topic, found.key, 0, 1 << 60, 1 << 30)
        if found.record.log_offset not in places:
            raise Violation(
                "I9", f"{host.name}: the index does not find {found.key} at {found.record.log_offset}: {places}"
            )


def queue_entries(queue: ConsumeQueue, queue_offset: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (queue offset, entry) of a consume queue from an offset on."""
    while queue_offset < queue.max_offset:
        data = queue.read(queue_offset, queue.max_offset - queue_offset)
        for position in range(0, len(data), QUEUE_ENTRY_BYTES):
            yield queue_offset + position // QUEUE_ENTRY_BYTES, QUEUE_ENTRY.unpack_from(data, position)
        assert data, "there are entries up to the end"
        queue_offset += len(data) // QUEUE_ENTRY_BYTES
