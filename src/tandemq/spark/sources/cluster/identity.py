"""Identity of the topics that a checkpoint's offsets belong to: cluster names, and one message of each as a witness.

    {"Orders": {"broker-a": {"0": 1200}}, "/clusters": {"broker-a": "DefaultCluster"},
     "/witnesses": {"Orders": {"broker-a": [0, 1199, 1700000000000, 482112]}}}

A witness is the last message of a queue that was read: queue id, queue offset, time of storage, log offset. A topic
that was deleted and created again has another message there, or fewer messages that are all newer; so has the same
topic of another cluster. If a queue is shorter than before and the witness cannot be compared, because its queue is
empty or missing, the topic counts as another one: its longer queues would continue in the middle. Offsets without these
keys, of an earlier version or before anything was read, are not checked; nothing is concluded from a message that was
deleted by retention.

Source: docs/guides/pipeline.md, "Offsets".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandemq.client.core.operations import Steps
from tandemq.errors import ConfigError
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.limits import QueueEnd
from tandemq.spark.sources.cluster.lookups import FirstMessage, find_firsts
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import ReadFrom

CLUSTERS, WITNESSES = "/clusters", "/witnesses"
TopicPart = tuple[str, str]
"""Topic and broker name."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A message that was read."""

    queue: MessageQueue
    offset: int
    store_ms: int
    log_offset: int

    def is_same(self, message: FirstMessage) -> bool:
        """Return whether a message at its offset is this one."""
        return (self.store_ms, self.log_offset) == (message.store_ms, message.log_offset)


@dataclass(frozen=True, slots=True)
class Identity:
    """Witnesses of the topics that offsets belong to."""

    clusters: Mapping[str, str] = field(default_factory=dict)
    """Cluster by broker name."""
    witnesses: Mapping[TopicPart, Witness] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> "Identity":
        """Read it from the JSON form of offsets.

        Raises:
            ConfigError: it is malformed.
        """
        try:
            clusters = {str(name): str(cluster) for name, cluster in tree.get(CLUSTERS, {}).items()}
            witnesses = {
                (topic, name): Witness(
                    MessageQueue(topic, name, int(queue)), int(offset), int(store_ms), int(log_offset)
                )
                for topic, brokers in tree.get(WITNESSES, {}).items()
                for name, (queue, offset, store_ms, log_offset) in brokers.items()
            }
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"the checkpoint: its {CLUSTERS} or {WITNESSES} cannot be read: {error!r}") from error
        return cls(clusters, witnesses)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, sorted; empty if nothing is known."""
        tree: dict[str, Any] = {CLUSTERS: dict(sorted(self.clusters.items()))} if self.clusters else {}
        for (topic, name), witness in sorted(self.witnesses.items()):
            place = tree.setdefault(WITNESSES, {}).setdefault(topic, {})
            place[name] = [witness.queue.queue_id, witness.offset, witness.store_ms, witness.log_offset]
        return tree

    def check_clusters(self, layout: QueueLayout) -> None:
        """Refuse offsets of another cluster.

        Raises:
            ConfigError: a broker group belongs to another cluster now.
        """
        for name, cluster in self.clusters.items():
            present = layout.clusters.get(name, cluster)
            if present != cluster:
                raise ConfigError(
                    f"the checkpoint is of the cluster {cluster!r}, but {name} belongs to {present!r} here",
                    hint="use the name servers of that cluster, or another checkpointLocation",
                )


@dataclass(frozen=True, slots=True)
class OtherTopic:
    """A topic of a broker group that has replaced the topic that was read."""

    topic: str
    broker_name: str
    why: str


def find_others(
    layout: QueueLayout,
    ends: Mapping[MessageQueue, QueueEnd],
    epochs: Mapping[str, Epochs],
    identity: Identity,
    position: Position,
    gone: Mapping[MessageQueue, int],
    read_from: ReadFrom,
) -> Steps[list[OtherTopic]]:
    """Return the topics that are not the ones that were read, and those of which a queue has become shorter while no
    message shows that they are.

    A log that was truncated and rewritten in a later epoch is another matter (`find_rewritten`), unless all
    queues of a topic were gone.

    Args:
        gone: offsets of queues that were gone, and that continue there if they are back.
    """
    witnesses = {candidate.queue: candidate for candidate in identity.witnesses.values() if candidate.queue in ends}
    first = ReadFrom.SLAVE if read_from is ReadFrom.SLAVE else ReadFrom.MASTER
    # A queue that ends before its witness is judged by its last message.
    offsets = {
        queue: min(candidate.offset, ends[queue].offset - 1)
        for queue, candidate in witnesses.items()
        if ends[queue].offset
    }
    messages = yield from find_firsts(layout, offsets, first)
    found: dict[TopicPart, OtherTopic] = {}
    known: set[TopicPart] = set()
    read = {part_of(queue) for queue in position.offsets}
    for queue, message in messages.items():
        witness, part = witnesses[queue], part_of(queue)
        if message is None or message.queue_offset != offsets[queue]:
            continue
        is_shorter = message.queue_offset < witness.offset
        if is_shorter and not ends[queue].is_final:
            continue
        known.add(part)
        epoch = position.epoch(queue.broker_name)
        later = epochs.get(queue.broker_name, Epochs()).start_after(epoch) if epoch and part in read else None
        if later is not None and message.log_offset >= later:
            continue
        if message.store_ms > witness.store_ms if is_shorter else not witness.is_same(message):
            found[part] = OtherTopic(*part, _difference(witness, message))
    return [*found.values(), *_find_doubtful(ends, identity, position, gone, known)]


def _find_doubtful(
    ends: Mapping[MessageQueue, QueueEnd],
    identity: Identity,
    position: Position,
    gone: Mapping[MessageQueue, int],
    known: Collection[TopicPart],
) -> list[OtherTopic]:
    """Return the topics that have a queue which is shorter than before, if nothing shows which topic it is: all of
    their queues may be those of another topic, also the ones that are longer than before.

    Args:
        known: topics whose witness was compared.
    """
    read, there = {part_of(queue) for queue in position.offsets}, {part_of(queue) for queue in ends}
    found: dict[TopicPart, OtherTopic] = {}
    for queue, offset in {**position.offsets, **gone}.items():
        part, end = part_of(queue), ends.get(queue)
        if part in found or part in known or part not in there or (part in read and part not in identity.witnesses):
            continue
        if end is None and part not in read:
            found[part] = OtherTopic(*part, f"queue {queue.queue_id} was read up to {offset}, and does not exist")
        elif end is not None and end.is_final and end.offset < offset:
            why = f"queue {queue.queue_id} ends at {end.offset}, but was read up to {offset} already"
            found[part] = OtherTopic(*part, f"{why}, and no message that was read is there to compare")
    return list(found.values())


def part_of(queue: MessageQueue) -> TopicPart:
    """Return the topic and the broker name of a queue."""
    return queue.topic, queue.broker_name


def _difference(witness: Witness, message: FirstMessage) -> str:
    queue, offset = witness.queue, message.queue_offset
    read = f"offset {witness.offset} was read, stored at {witness.store_ms} at byte {witness.log_offset} of the log"
    here = f"offset {offset} is stored at {message.store_ms} at byte {message.log_offset}"
    return f"of queue {queue.queue_id} {read}; here {here}"


def find_witnesses(
    layout: QueueLayout, offsets: Mapping[MessageQueue, int], read_from: ReadFrom
) -> Steps[dict[TopicPart, Witness]]:
    """Return the messages before some offsets, of at most one queue per topic and broker group; those that no member
    returned are missing."""
    first = ReadFrom.SLAVE if read_from is ReadFrom.SLAVE else ReadFrom.MASTER
    messages = yield from find_firsts(layout, {queue: offset - 1 for queue, offset in offsets.items()}, first)
    return {
        (queue.topic, queue.broker_name): Witness(queue, message.queue_offset, message.store_ms, message.log_offset)
        for queue, message in messages.items()
        if message is not None and message.queue_offset == offsets[queue] - 1
    }
