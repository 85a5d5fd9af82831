"""Offsets of broadcasting groups in a file of this machine: each member keeps its own.

    ~/.tandemq/offsets/<client name>/<group>.json      {"offsets": [{"topic", "brokerName", "queueId", "offset"}, …]}

A client id that was generated ends with its process; such a member would never find its file again, so the name is that
of the machine unless the user gave one. Written beside and renamed over, so that a crash leaves the old or the new one.
"""

import os
from pathlib import Path
from urllib.parse import quote

from tandemq.client.consumer.queues.queue_locks import queue_json, queue_of
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import DiskFailed, ProtocolError
from tandemq.model.message import MessageQueue

DIRECTORY_VARIABLE = "TANDEMQ_OFFSETS"


class FileOffsetStorage:
    """See `client.consumer.offsets.store.OffsetStorage`."""

    def __init__(self, client_id: str, directory: Path | None = None) -> None:
        """For one client; nothing is read or written yet."""
        named = os.environ.get(DIRECTORY_VARIABLE)
        root = directory or (Path(named) if named else Path.home() / ".tandemq" / "offsets")
        self._directory = root / quote(client_id.partition("@")[0], safe="")

    def read(self, group: str) -> dict[MessageQueue, int]:
        """All offsets of a group; empty if there are none.

        Raises:
            DiskFailed: the file cannot be read.
        """
        path = self._path(group)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DiskFailed(f"{path}: {error}") from error
        try:
            return {queue_of(item): int(item["offset"]) for item in loads(data, is_trusted=True)["offsets"]}
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise DiskFailed(f"{path} is damaged: {error!r}", hint="remove it to start anew") from error

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Replace all offsets of a group, in one piece.

        Raises:
            DiskFailed: the file cannot be written; the old one is still there.
        """
        path = self._path(group)
        items = [{**queue_json(queue), "offset": offset} for queue, offset in sorted(offsets.items())]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".new")
            beside.write_bytes(dumps({"offsets": items}))
            beside.replace(path)
        except OSError as error:
            raise DiskFailed(f"{path}: {error}") from error

    def _path(self, group: str) -> Path:
        return self._directory / f"{quote(group, safe='')}.json"
