"""The engine in Python: the functions of the compiled engine, message by message.

    queue_tail.py    entries of consume queues that are not in files yet
    keys.py          keys of messages, entries of the key index
    records.py       records: verified, parsed, staged in queues
    pulls.py         records of queue entries
    pull_engine.py   pulls, from frames to responses
    messages.py      messages and properties of records
    filters.py       SQL92 filters
    send_engine.py   sends, of which the header is in `send_header.pxi` and the properties are in `send_properties.pxi`
    acks.py          acknowledgements of popped messages
    signatures.py    users whose signatures are checked with their sends
    budget.py        rates of users, topics and groups
    timers.py        records of timed messages
    moves.py         records stored again in other queues
    new_messages.py  messages of our client's producers
    responses.py     responses to them

The compiled engine has the same parts in files of the same name, `.pxi`.
"""

from tandemq.engine.python.acks import AckedPop, AckEngine
from tandemq.engine.python.budget import Budget
from tandemq.engine.python.filters import FilterProgram, Selected, evaluation_cost, select_messages
from tandemq.engine.python.keys import KEY_ROW, KEY_ROW_BYTES, LinkedKeys, key_hash, key_rows, link_keys
from tandemq.engine.python.messages import RecordProperties, StoredMessages, record_properties, stored_messages
from tandemq.engine.python.moves import CopiedRecord, MovedRecords, MoveRule, RecordChanges, copy_record, move_records
from tandemq.engine.python.new_messages import (
    SENT_PROPERTIES_MAX,
    UNUSUAL_PROPERTIES,
    batch_part,
    is_sent_topic,
    json_frame,
    plain_frame,
    plain_properties,
    send_fields,
    unique_key,
)
from tandemq.engine.python.pull_engine import PullCounts, PullEngine, PullTarget, Subscribed, WaitingPull
from tandemq.engine.python.pulls import EXAMINED_ENTRIES_MAX, Gathered, LogSources, gather_messages, read_cached
from tandemq.engine.python.queue_tail import QueueTail, commit_staged, waiting_messages
from tandemq.engine.python.records import (
    ParsedRecords,
    RecordEntry,
    RecordQueue,
    StagedRecords,
    VerifiedRecords,
    copy_spans,
    parse_records,
    property_spans,
    record_entries,
    stage_records,
    verify_records,
)
from tandemq.engine.python.responses import StoredSend, stored_sends
from tandemq.engine.python.send_engine import (
    CHECKED_BYTES_MAX,
    LARGE_BODY_BYTES,
    TIMED_BYTES_MAX,
    WAITS_UNCHANGED,
    Ack,
    EndedHalf,
    SendEngine,
    TakenSends,
    TimedSend,
    TopicTarget,
)
from tandemq.engine.python.signatures import SigningUser
from tandemq.engine.python.timers import TimerRow, timer_heads

NAME = "python"

__all__ = [
    "CHECKED_BYTES_MAX",
    "EXAMINED_ENTRIES_MAX",
    "KEY_ROW",
    "KEY_ROW_BYTES",
    "LARGE_BODY_BYTES",
    "NAME",
    "SENT_PROPERTIES_MAX",
    "TIMED_BYTES_MAX",
    "UNUSUAL_PROPERTIES",
    "WAITS_UNCHANGED",
    "Ack",
    "AckEngine",
    "AckedPop",
    "Budget",
    "CopiedRecord",
    "EndedHalf",
    "FilterProgram",
    "Gathered",
    "LinkedKeys",
    "LogSources",
    "MoveRule",
    "MovedRecords",
    "ParsedRecords",
    "PullCounts",
    "PullEngine",
    "PullTarget",
    "QueueTail",
    "RecordChanges",
    "RecordEntry",
    "RecordProperties",
    "RecordQueue",
    "Selected",
    "SendEngine",
    "SigningUser",
    "StagedRecords",
    "StoredMessages",
    "StoredSend",
    "Subscribed",
    "TakenSends",
    "TimedSend",
    "TimerRow",
    "TopicTarget",
    "VerifiedRecords",
    "WaitingPull",
    "batch_part",
    "commit_staged",
    "copy_record",
    "copy_spans",
    "evaluation_cost",
    "gather_messages",
    "is_sent_topic",
    "json_frame",
    "key_hash",
    "key_rows",
    "link_keys",
    "move_records",
    "parse_records",
    "plain_frame",
    "plain_properties",
    "property_spans",
    "read_cached",
    "record_entries",
    "record_properties",
    "select_messages",
    "send_fields",
    "stage_records",
    "stored_messages",
    "stored_sends",
    "timer_heads",
    "unique_key",
    "verify_records",
    "waiting_messages",
]
