"""Values of fields, headers and properties: ordinary ones, and those that no client should send."""

BORN_MS = 1_700_000_000_123
TIMES = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
"""Properties that ask for a time of delivery."""
TOPICS = ("T", "Other", "Long" + 123 * "g", "Wide")
ODD_TOPICS = (
    "", "New1", "New2", "ReadOnly", "TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%group",
    "%DLQ%group", "BenchmarkTest", "DefaultCluster", "Long" + 124 * "g", 300 * "x", "Größe", "a/b", "..", "T ", "t",
    "\U0001f600", "T\x00", "OFFSET_MOVED_EVENT",
)  # fmt: skip
ODD_NUMBERS = (
    "", "00", "01", "-0", "-1", "+1", " 1", "1 ", "1.0", "1e3", "2147483647", "2147483648", "-2147483648",
    "9223372036854775807", "9223372036854775808", "99999999999999999999", "1152921504606846976",
    "1152921504606846977", "0x1", "\uff11", "null", "true", "1_0", "None", "16", "12", "11", "4", "8", "256",
)  # fmt: skip
ODD_VALUES = (
    b"0", b"7", b"-1", b"1.5", b"1e400", b"true", b"false", b"null", b"[]", b"{}", b'[1,{"a":"]"}]', b'"x"', b'""',
    b"", b"00", b"12345678901234567890", b"nul", b'{"a":{"b":null}}', b'"\\u0041"',
)  # fmt: skip
ODD_TEXTS = (
    b"\\ud800", b"\\udc00", b"\\ud83dx", b"\\ud83d\\u0041", b"\\ud83d\\ude00", b"\\uD83D\\uDE00", b"\\u00e9",
    b"\\u0000", b"\\q", b"\\u12", b"\\", b"\x01", b"\n", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xc0\x80", b"\x7f",
    b"\xf4\x90\x80\x80", b"\xf0\x9f\x98\x80", b"\\/", b"\\b\\f\\n\\r\\t", b'\\"', b"\\\\", b'"', b"\\u0001",
    b"\\u0002",
)  # fmt: skip
WORDS = ("a", "tag", "order-77", "Größe", "\u4e2d\u6587", "\U0001f600", 'q"', "back\\slash", "\x7f", "\t", "x/y", "é")
NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode",
    "l": "maxReconsumeTimes", "m": "batch", "n": "brokerName",
}  # fmt: skip
STYLES = ("java", "cpp", "go", "shuffled", "spaced", "binary")
