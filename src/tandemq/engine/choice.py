"""The choice of the engine, when it is first imported."""

from importlib import import_module
from os import environ
from types import ModuleType
from typing import TYPE_CHECKING

from tandemq.engine import python

CHOICE = "TANDEMQ_ENGINE"
"""Environment variable that selects "python" or "compiled"; by default the compiled engine is used if it was built."""


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
    chosen = python
else:
    chosen = _load()

NAME = chosen.NAME
AckEngine = chosen.AckEngine
Budget = chosen.Budget
FilterProgram = chosen.FilterProgram
LogSources = chosen.LogSources
PullCounts = chosen.PullCounts
PullEngine = chosen.PullEngine
PullTarget = chosen.PullTarget
QueueTail = chosen.QueueTail
SendEngine = chosen.SendEngine
SigningUser = chosen.SigningUser
TopicTarget = chosen.TopicTarget
batch_part = chosen.batch_part
commit_staged = chosen.commit_staged
copy_record = chosen.copy_record
copy_spans = chosen.copy_spans
gather_messages = chosen.gather_messages
json_frame = chosen.json_frame
key_hash = chosen.key_hash
key_rows = chosen.key_rows
link_keys = chosen.link_keys
move_records = chosen.move_records
parse_records = chosen.parse_records
plain_frame = chosen.plain_frame
plain_properties = chosen.plain_properties
property_spans = chosen.property_spans
read_cached = chosen.read_cached
record_entries = chosen.record_entries
record_properties = chosen.record_properties
select_messages = chosen.select_messages
send_fields = chosen.send_fields
stage_records = chosen.stage_records
stored_messages = chosen.stored_messages
stored_sends = chosen.stored_sends
timer_heads = chosen.timer_heads
unique_key = chosen.unique_key
verify_records = chosen.verify_records
waiting_messages = chosen.waiting_messages
