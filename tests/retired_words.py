"""File names and words that must not come back in src/ and docs/, each with what to write instead.

House style is plain technical English with the terms of RocketMQ and Kafka (CONTRIBUTING.md). tests/test_tidy.py checks
names and texts against these lists. Command-line options and JSON keys that users know keep their names.
"""

from typing import NamedTuple

RETIRED_STEMS = {
    **dict.fromkeys(
        ("utils", "util", "common", "helpers", "helper", "base", "misc"),
        "the noun of what it has; code without one belongs to its only user",
    ),
    "answered": "the request or response, as in pending_requests",
    "asking": "the requests that it sends, as in broker_requests",
    "changes": "the thing that changes, as in config_overrides",
    "correction": "the operation, as in reset_offset",
    "filed": "the thing that is saved, as in persistence",
    "kit": "the parts that it builds, as in context",
    "likeness": "batch or header_pattern",
    "seat": "the role, as in member or holder",
    "standing": "status",
    "steps": "the procedure, as in takeover or handover",
    "story": "operation, scenario or transcript",
    "tables": "the kind of table, as in json_tables",
    "together": "batch",
    "told": "the message or event, as in heartbeats",
    "trouble": "diagnosis or problem",
    "twins": "replica",
    "unfinished": "partial, as in partial_frames",
}
"""Stems of file names that say nothing about the contents, and what to call the file instead. A longer name may contain
one of them: `json_tables` says which tables."""


class Retired(NamedTuple):
    """A word or phrase of the former dialect."""

    pattern: str
    """Regular expression, searched in each line without regard to case."""
    instead: str
    example: str


RETIRED_WORDS = (
    Retired(r"\btwins?\b", "replica", "Ask a twin for the good bytes."),
    Retired(r'(?<!")\bstrangers?\b', "unauthenticated peer", "A stranger is told nothing."),
    Retired(
        r"(?<!awaiting )\bhand-?backs?\b|\bhand(?:s|ed)? back\b",
        "offset handover, hand over",
        "The hand-back of offsets.",
    ),
    Retired(r"\bhand-overs?\b", "handover, offset handover", "The hand-over ends."),
    Retired(r"\blikeness\b", "same layout, pattern, batch", "Headers are read by likeness."),
    Retired(r"\bsets? aside\b", "quarantine", "The tail is set aside."),
    Retired(r"\bwhoever\b", "the subject: the peer, the broker, the caller", "Whoever is not named any more waits."),
    Retired(r"\b(?:any|every)body\b", "the subject: every client, any peer", "Everybody is fine."),
    Retired(r"\bsomebody\b", "the subject: a user, another process", "Somebody came or went."),
    Retired(r"\b(?:is|are|was|were|been|be|being) told\b", "is notified, receives", "Members are told of it."),
    Retired(
        r"\btold (?:of|by|that|the|to|what|how|about|its|in|when|us)\b",
        "reported, published, notified",
        "It told its offsets.",
    ),
    Retired(r"\btells? of\b", "reports, describes", "The log tells of it."),
    Retired(r"\bhears?(?: of)?\b|\bheard of\b", "is notified, receives, last seen", "A broker hears of a change."),
    Retired(r"\bin doubt\b", "unknown outcome", "An answer in doubt."),
    Retired(r"\bon (?:its|their) way\b", "in flight", "What is on its way."),
    Retired(r"\bcomes? twice\b(?! in a row)", "is delivered twice, duplicate delivery", "A message comes twice."),
    Retired(
        r"\bpass(?:es|ed|ing)? over (?:it|them|this|these|the message)|\b(?:is|are|be|not|and) passed over\b",
        "skip",
        "Consumers passed over it.",
    ),
    Retired(
        r"\bg(?:ives?|iven|ave|iving) back\b",
        "send back (a message), hand over (offsets), return",
        "A consumer gives back a message.",
    ),
    Retired(r"\b(?:is|are|was|be) under way\b", "in flight, in progress", "While a sync is under way."),
    Retired(r"\banew\b", "again, or rebuild, restart", "Built anew."),
    Retired(
        r"\bso (?:many|much) (?:bytes|messages|of|milliseconds|seconds)\b",
        "maximum number of …, … budget",
        "So many bytes are kept.",
    ),
    Retired(r"\blooks? in a row\b", "consecutive polls, checks", "Two looks in a row."),
    Retired(r"\bby dice\b|\bthe dice\b", "random numbers", "Drawn by dice."),
    Retired(r"\bin vain\b", "failed, without result", "Delivered in vain."),
    Retired(r"\bloudly\b", "how: at CRITICAL, with a warning", "It says so loudly."),
    Retired(r"\bserves? nobody\b", "serves no client", "It serves nobody."),
    Retired(r"\b(?:only|one|decides|knows) who serves\b", "active member", "Only who serves tells."),
    Retired(r"\bnobody (?:knows|can tell|asked|listens)\b", "the subject: no broker, unknown", "Nobody knows it."),
    Retired(r"\bis there no more\b|\bis no more\b", "no longer exists", "The record is no more."),
)
