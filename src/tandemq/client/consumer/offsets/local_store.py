"""Offsets of broadcasting groups in files of this machine; each member has its own.

    ~/.tandemq/offsets/<client name>/<group>.json      {"offsets": [{"topic", "brokerName", "queueId", "offset"}, …]}

A generated client id is lost with its process, and with it the file; so the directory has the name of the machine
unless the user has given a client id. A new file is written beside the old one and renamed, so that a crash leaves the
old or the new file.

Source: RocketMQ LocalFileOffsetStore (the idea; the path and the format are ours).
"""

import os
from pathlib import Path
from urllib.parse import quote

from tandemq.client.core.requests import queue_from_json, queue_to_json
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import DiskFailed, ProtocolError
from tandemq.model.message import MessageQueue

DIRECTORY_VARIABLE = "TANDEMQ_OFFSETS"


class FileOffsetStorage:
    """See `client.consumer.offsets.offset_store.OffsetStorage`; one file per group."""

    def __init__(self, client_id: str, directory: Path | None = None) -> None:
        """Files of one client; nothing is read or written yet.

        Args:
            directory: by default `$TANDEMQ_OFFSETS`, else `~/.tandemq/offsets`.
        """
        named = os.environ.get(DIRECTORY_VARIABLE)
        root = directory or (Path(named) if named else Path.home() / ".tandemq" / "offsets")
        self._directory = root / quote(client_id.partition("@")[0], safe="")

    def read(self, group: str) -> dict[MessageQueue, int]:
        """Return all offsets of a group; empty if there are none.

        Raises:
            DiskFailed: the file cannot be read, or is damaged.
        """
        path = self._path(group)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise DiskFailed(f"{path}: {error}") from error
        try:
            return {queue_from_json(item): int(item["offset"]) for item in loads(data, is_trusted=True)["offsets"]}
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            raise DiskFailed(f"{path} is damaged: {error!r}", hint="remove it to start without offsets") from error

    def write(self, group: str, offsets: dict[MessageQueue, int]) -> None:
        """Replace all offsets of a group atomically.

        Raises:
            DiskFailed: the file cannot be written; the old one remains.
        """
        path = self._path(group)
        items = [{**queue_to_json(queue), "offset": offset} for queue, offset in sorted(offsets.items())]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_suffix(".new")
            beside.write_bytes(dumps({"offsets": items}))
            beside.replace(path)
        except OSError as error:
            raise DiskFailed(f"{path}: {error}") from error

    def _path(self, group: str) -> Path:
        return self._directory / f"{quote(group, safe='')}.json"
