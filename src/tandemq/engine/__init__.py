"""The engine: the work per message of sends, replication and dispatch, compiled if possible, else in Python.

    engine.pyx   compiled to `tandemq._engine`
    program.py   SQL92 filters in the form that the compiled engine evaluates
    python/      the same in Python: used where the compiled module is missing, and with TANDEMQ_ENGINE=python

Both have the same interface and make the same bytes; `NAME` says which one is in use.
Source: docs/decisions/0016-one-engine.md.
"""

from tandemq.engine.choice import (
    NAME,
    FilterProgram,
    LogSources,
    QueueTail,
    SendEngine,
    TopicTarget,
    commit_staged,
    copy_spans,
    gather_messages,
    key_hash,
    key_rows,
    link_keys,
    move_records,
    parse_records,
    property_spans,
    record_entries,
    record_properties,
    select_messages,
    stage_records,
    stored_messages,
    timer_copies,
    timer_heads,
    verify_records,
)
from tandemq.engine.python import (
    CHECKED_BYTES_MAX,
    KEY_ROW,
    KEY_ROW_BYTES,
    TIMED_BYTES_MAX,
    Ack,
    EndedHalf,
    Gathered,
    MoveRule,
    Selected,
    TakenSends,
    TimedSend,
    evaluation_cost,
)

__all__ = [
    "CHECKED_BYTES_MAX",
    "KEY_ROW",
    "KEY_ROW_BYTES",
    "NAME",
    "TIMED_BYTES_MAX",
    "Ack",
    "EndedHalf",
    "FilterProgram",
    "Gathered",
    "LogSources",
    "MoveRule",
    "QueueTail",
    "Selected",
    "SendEngine",
    "TakenSends",
    "TimedSend",
    "TopicTarget",
    "commit_staged",
    "copy_spans",
    "evaluation_cost",
    "gather_messages",
    "key_hash",
    "key_rows",
    "link_keys",
    "move_records",
    "parse_records",
    "property_spans",
    "record_entries",
    "record_properties",
    "select_messages",
    "stage_records",
    "stored_messages",
    "timer_copies",
    "timer_heads",
    "verify_records",
]
