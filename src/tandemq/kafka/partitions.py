"""Numbers of partitions: which queue of which broker group each is.

A topic's queues are numbered in the order of broker group and queue id when the topic is first seen; queues that come
later get the next numbers. So a number never changes its queue, as consumers and checkpoints of Spark require, and the
numbers have no gaps. They are kept in a JSON file: {"Orders": [["broker-a", 0], ["broker-a", 1]]}.

Of a topic on one broker group that file says nothing new: the partition is the queue.
"""

import fcntl
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tandemq.errors import ConfigError, LocalError
from tandemq.model.message import MessageQueue
from tandemq.real.disk import sync_names


class PartitionNumbers:
    """The queues of each topic by number, in a file that processes of one machine may share."""

    def __init__(self, path: Path) -> None:
        """Read the file, if there is one.

        Raises:
            ConfigError: it cannot be read.
        """
        self._path = path
        self._queues = self._read()

    def _read(self) -> dict[str, list[MessageQueue]]:
        path = self._path
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
        try:
            return {
                topic: [MessageQueue(topic, str(name), int(queue_id)) for name, queue_id in pairs]
                for topic, pairs in json.loads(text).items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            hint = "restore it: new numbers would be others if queues were added"
            raise ConfigError(f"{path} has no numbers of partitions: {error}", hint=hint) from error

    def update(self, found: Mapping[str, Collection[MessageQueue]]) -> None:
        """Number the queues of topics that have no number yet. New numbers are on disk when this returns.

        Raises:
            LocalError: the file cannot be written, and nothing is numbered; or read.
        """
        if all(set(queues) <= set(self._queues.get(topic, ())) for topic, queues in found.items()):
            return
        try:
            with self._path.with_name(f"{self._path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._add(found)
        except OSError as error:
            raise LocalError(f"cannot write {self._path}: {os.strerror(error.errno or 0)}") from error

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues of a topic by number, those that are gone included."""
        return self._queues.get(topic, [])

    def queue(self, topic: str, number: int) -> MessageQueue | None:
        """Return the queue of a partition; None if there is none."""
        known = self._queues.get(topic, [])
        return known[number] if 0 <= number < len(known) else None

    def _add(self, found: Mapping[str, Collection[MessageQueue]]) -> None:
        """Add to what the file has now: another process may have written it."""
        known = self._read()
        new = {topic: sorted(set(queues) - set(known.get(topic, ()))) for topic, queues in found.items()}
        if any(new.values()):
            known |= {topic: known.get(topic, []) + queues for topic, queues in new.items() if queues}
            self._save(known)
        self._queues = known

    def _save(self, queues: dict[str, list[MessageQueue]]) -> None:
        partial = self._path.with_name(f"{self._path.name}.partial")
        pairs = {topic: [[queue.broker_name, queue.queue_id] for queue in known] for topic, known in queues.items()}
        with partial.open("w", encoding="utf-8") as file:
            json.dump(pairs, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        sync_names(self._path.parent)
