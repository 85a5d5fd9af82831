"""The choice of the engine, when it is first imported."""

from importlib import import_module
from os import environ
from types import ModuleType
from typing import TYPE_CHECKING

from tandemq.engine import python

CHOICE = "TANDEMQ_ENGINE"
"""Environment variable: "python" or "compiled" instead of what there is."""


def _load() -> ModuleType:
    wanted = environ.get(CHOICE, "")
    if wanted not in ("", "python", "compiled"):
        raise ImportError(f"{CHOICE}={wanted!r}: it must be python or compiled, or not be set")
    if wanted != "python":
        try:
            return import_module("tandemq._engine")
        except ModuleNotFoundError as error:
            if wanted:
                raise ImportError(
                    f"{CHOICE}=compiled, but {error}; `make setup` builds it with a C compiler"
                ) from error
    return python


if TYPE_CHECKING:
    from tandemq.engine.python import (
        NAME,
        QueueTail,
        SendEngine,
        TopicTarget,
        commit_staged,
        gather_messages,
        key_hash,
        key_rows,
        link_keys,
        record_entries,
        stage_records,
        verify_records,
    )
else:
    _chosen = _load()
    NAME = _chosen.NAME
    QueueTail = _chosen.QueueTail
    SendEngine = _chosen.SendEngine
    TopicTarget = _chosen.TopicTarget
    commit_staged = _chosen.commit_staged
    gather_messages = _chosen.gather_messages
    key_hash = _chosen.key_hash
    key_rows = _chosen.key_rows
    link_keys = _chosen.link_keys
    record_entries = _chosen.record_entries
    stage_records = _chosen.stage_records
    verify_records = _chosen.verify_records

__all__ = [
    "NAME",
    "QueueTail",
    "SendEngine",
    "TopicTarget",
    "commit_staged",
    "gather_messages",
    "key_hash",
    "key_rows",
    "link_keys",
    "record_entries",
    "stage_records",
    "verify_records",
]
