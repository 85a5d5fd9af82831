"""Times in requests of clients, as milliseconds. Clients may send any, those that protobuf does not convert too.

Source: google/protobuf/timestamp.proto, duration.proto.
"""

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

NANOS_PER_MS = 1_000_000


def milliseconds(time: Timestamp | Duration) -> int:
    """Return a time since 1970, or a duration, of any size, rounded down."""
    return time.seconds * 1000 + time.nanos // NANOS_PER_MS
