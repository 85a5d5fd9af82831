"""Frames of sends: as Java, C++ and Go clients write them, and as none should; other requests between them.

All choices come from a `Random`, so that a seed, or Hypothesis, reproduces them. `oddness` is the share of choices that
are unusual: 0 makes ordinary sends only.
"""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from msgspec import structs

from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.codec.remoting.signature import signed
from tandemq.errors import ProtocolError
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tests.fuzz.values import (
    BORN_MS,
    NAMES,
    ODD_NUMBERS,
    ODD_TEXTS,
    ODD_TOPICS,
    ODD_VALUES,
    STYLES,
    TIMES,
    TOPICS,
    WORDS,
)

GROUP = "tx"
"""Producer group of transactions."""


class Sent(NamedTuple):
    """Bytes that a connection sends within a turn."""

    link: int
    data: bytes


Turns = list[list[Sent]]


def frame_of(form: int, header: bytes, body: bytes = b"") -> bytes:
    """Return a frame."""
    return (4 + len(header) + len(body)).to_bytes(4) + (form << 24 | len(header)).to_bytes(4) + header + body


def command_in(data: bytes) -> Command | None:
    """Return the request of a frame; None if it is malformed."""
    try:
        frame = FrameDecoder().split(data, 0)
        return None if frame is None else decode_command(frame)
    except ProtocolError:
        return None


def signed_frame(data: bytes, user: Credentials, random: Random) -> bytes | None:
    """Return a frame with a signature, its fields in any order; None if the frame is malformed."""
    command = command_in(data)
    if command is None:
        return None
    fields = list(signed(command.fields, command.body, user).items())
    if random.random() < 0.5:
        random.shuffle(fields)
    return encode_command(structs.replace(command, fields=dict(fields)))


def ack_frame(random: Random, offset: int) -> bytes:
    """Return the acknowledgement of a popped message."""
    fields = {
        "consumerGroup": random.choice(("g", "Größe")),
        "topic": "T",
        "queueId": "3",
        "offset": str(offset),
        "extraInfo": f"0 1700000000000 60000 1 0 broker-a 3 {offset}" + random.choice(("", " 4711")),
    }
    return encode_command(Command(RequestCode.ACK_MESSAGE, random.randrange(1 << 31), fields=fields))


def pull_frame(random: Random, topic: str, queue_id: int, queue_offset: int) -> bytes:
    """Return a pull."""
    fields = {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": random.choice(("1", "32")),
        "sysFlag": random.choice(("4", "5", "6")),
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    command = Command(RequestCode.PULL_MESSAGE, random.randrange(1 << 31), fields=fields, binary=random.random() < 0.5)
    return encode_command(command)


class Frames:
    """Source of frames."""

    def __init__(self, random: Random, oddness: float = 0.0, *, body_bytes_max: int = 8192) -> None:
        """Draw from `random`. Bodies have around `body_bytes_max` bytes at most."""
        self.random = random
        self.oddness = oddness
        self.body_bytes_max = body_bytes_max
        self._opaque = random.choice((0, 5, 99_990, 2**31 - 50, -(2**31), -20))
        self._number = random.choice((1, 1_000, 2_000_000))

    def odd(self, factor: float = 1.0) -> bool:
        """Draw whether something is unusual."""
        return self.oddness > 0 and self.random.random() < self.oddness * factor

    def opaque(self) -> int:
        """Return the opaque of the next request."""
        self._opaque = self._opaque + 1 if self._opaque < 2**31 - 1 else -(2**31)
        return self._opaque

    # Sends.

    def send(self, style: str | None = None, *, is_batch: bool | None = None, code: int | None = None) -> bytes:
        """Return the frame of a send."""
        random = self.random
        style = style or random.choice(STYLES)
        is_batch = random.random() < 0.2 if is_batch is None else is_batch
        code = code or (320 if is_batch and random.random() < 0.7 else random.choice((310, 310, 10)))
        body = self.batch() if is_batch else self.body()
        flag = FLAG_ONEWAY if random.random() < 0.05 else 0
        if self.odd():
            flag = random.choice((1, 3, 4, -1, 2, 1 << 31, 130))
        if self.odd():
            code = random.choice((310, 320, 10, 11, 36, 325, 0, -310, 65846, 2147483648))
        fields = self.fields(is_batch=is_batch, code=code)
        if style == "binary":
            return self._framed(1, self.binary_header(code, flag, fields), body)
        return self._framed(0, self.json_header(style, code, flag, fields), body)

    def fields(self, *, is_batch: bool, code: int) -> list[tuple[str, bytes | str]]:
        """Return the header fields of a send: text, or bytes that are JSON."""
        random = self.random
        topic = random.choice(ODD_TOPICS) if self.odd() else random.choice(TOPICS)
        values = {
            "a": random.choice(("producers", "p", "Größe", "%RETRY%group")) if self.odd() else "producers",
            "b": topic,
            "c": random.choice(("TBW102", "T", "", "no")) if self.odd() else "TBW102",
            "d": "4",
            "e": str(random.randrange(12 if topic == "T" else 4)),
            "f": random.choice(("0", "1", "2", "3", "769")),
            "g": str(BORN_MS + random.randrange(1000)),
            "h": random.choice(("0", "0", "5", "2147483647")),
            "i": self.properties(),
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
        }
        if random.random() < 0.3:
            values["l"] = random.choice(("0", "16"))
        if random.random() < 0.3:
            values["n"] = "broker-a"
        for name in "defghjl":
            if self.odd(0.5):
                values[name] = random.choice(ODD_NUMBERS)
        if self.odd():
            values["f"] = str(1 << random.randrange(32))
        if self.odd():
            values["m"] = random.choice(("TRUE", "True", "1", "0", "", "yes", "truE ", "false"))
        fields: list[tuple[str, bytes | str]] = list(values.items())
        if not self.odd():
            fields = [(name, value) for name, value in fields if value or name in "abcefghij"]
        if (code == 10) != self.odd():
            fields = [(NAMES[name], value) for name, value in fields]
        return self._odd_fields(fields)

    def _odd_fields(self, fields: list[tuple[str, bytes | str]]) -> list[tuple[str, bytes | str]]:
        random = self.random
        if self.odd():
            del fields[random.randrange(len(fields))]
        for _ in range(4):
            if self.odd(0.7):
                at = random.randrange(len(fields))
                name, value = fields[at]
                other = random.choice([*NAMES, *NAMES.values(), "x", "", "Größe", "code", "ns", "bname", 400 * "y"])
                odd = random.choice((value, random.choice(ODD_VALUES), random.choice(ODD_NUMBERS)))
                changed: tuple[str, bytes | str] = (random.choice((name, other)), odd)
                if random.random() < 0.5:
                    fields.insert(random.randrange(len(fields) + 1), changed)
                else:
                    fields[at] = changed
        if self.random.random() < 0.05:
            fields.append((random.choice(("bname", "ns", "AccessKey", "z")), random.choice(WORDS)))
        return fields

    def properties(self, *, is_part: bool = False) -> str:
        """Return encoded properties."""
        random = self.random
        self._number += 1
        pairs: list[tuple[str, str]] = []
        if random.random() < 0.9:
            pairs.append(("UNIQ_KEY", f"7F000001{self._number:08X}"))
        if random.random() < 0.5:
            pairs.append(("WAIT", random.choice(("true", "true", "false"))))
        if random.random() < 0.6:
            pairs.append(("TAGS", random.choice(WORDS)))
        if random.random() < 0.5:
            separator = "  " if random.random() < 0.1 else " "
            pairs.append(("KEYS", separator.join(random.choices(WORDS, k=random.randrange(4)))))
        if random.random() < 0.4:
            pairs.append((random.choice(("trace", "Größe", "n")), random.choice(WORDS)))
        if not is_part and random.random() < 0.1:
            pairs.append(("DELAY", str(random.randrange(1, 19))))
        elif not is_part and random.random() < 0.15:
            pairs.append(self._time())
        elif not is_part and random.random() < 0.15:
            pairs += [("TRAN_MSG", "true"), ("PGROUP", GROUP)]
        if random.random() < 0.2:
            random.shuffle(pairs)
        self._odd_pairs(pairs)
        text = "".join([f"{name}\x01{value}\x02" for name, value in pairs])
        if random.random() < 0.4:
            text = text.removesuffix("\x02")  # as Java clients do
        return self._odd_text(text)

    def _time(self) -> tuple[str, str]:
        """Return a property that asks for a time of delivery."""
        random = self.random
        if self.odd():
            odd = (
                "",
                "0",
                "-5",
                "+5",
                "05",
                " 5",
                "5.0",
                "x",
                str(1 << 63),
                "9" * 18,
                "9" * 19,
                str(1 << 48),
                "\uff15",
            )
            return random.choice(TIMES), random.choice(odd)
        after_ms = random.choice((0, 1, 999, 1000, 1001, 5_000, 60_000, 259_200_000, 259_200_001, -1_000))
        name = random.choice(TIMES)
        if name == "TIMER_DELIVER_MS":
            return name, str(BORN_MS + after_ms + random.choice((0, 0, 700)))
        return name, str(max(0, after_ms) // (1000 if name == "TIMER_DELAY_SEC" else 1))

    def _odd_pairs(self, pairs: list[tuple[str, str]]) -> None:
        random = self.random
        if self.odd():
            names = ("UNIQ_KEY", "KEYS", "TAGS", "WAIT", "", "a", "__CRC32#", "CLUSTER", "CLUSTERS")
            pairs.append((random.choice(names), random.choice(("", "v", "a b", " ", "false", "0123456789"))))
        if self.odd():
            values = ("0", "03", "3", "19", "99", "1234567890", "-1", "x", "", " 3", "3 ", "\uff13", "18")
            pairs.append(("DELAY", random.choice(values)))
        if self.odd(0.5):
            pairs.append(self._time())
        if self.odd():
            pairs.append(("WAIT", random.choice(("False", "FALSE", "fAlSe", "no", "", "true", "falſe", "\x46alse"))))
        if self.odd():
            names = (
                "CLUSTER",
                "REAL_TOPIC",
                "REAL_QID",
                "RETRY_TOPIC",
                "INSTANCE_ID",
                "UNIQ_KEY2",
                "XKEYS",
                "TAGS ",
                "KEYS",
            )
            timed = (
                "TRAN_MSG",
                "TIMER_DELAY_SEC",
                "TIMER_DELAY_MS",
                "TIMER_DELIVER_MS",
                "TIMER_OUT_MS",
                "TIMER_X",
                "TIMER_",
            )
            name = random.choice(random.choice((names, timed)))
            pairs.insert(random.randrange(len(pairs) + 1), (name, random.choice(("true", "1", "T", ""))))
        if self.odd():
            unique = random.choice(('a"b', "a\\b", "a\x00b", "a\x1fb", "é", "\U0001f600", "a\x7fb", "x" * 300, "/"))
            pairs[:] = [("UNIQ_KEY", unique), *[pair for pair in pairs if pair[0] != "UNIQ_KEY"]]
        if pairs and self.odd():
            pairs.insert(random.randrange(len(pairs)), random.choice(pairs))
        if self.odd(0.3):
            pairs += [(f"n{number}", "v") for number in range(random.choice((40, 60, 126, 127, 128, 129, 140)))]
        if self.odd(0.2):
            size = 32767 - 20 - sum(len(f"{name}11{value}") for name, value in pairs) + random.randrange(-60, 8)
            pairs.append(("big", max(size, 0) * "b"))

    def _odd_text(self, text: str) -> str:
        random = self.random
        if self.odd():
            pieces = (
                "\x02",
                "\x01",
                "\x02\x02",
                "a",
                "\x01\x02",
                "a\x01\x02",
                "\x01a\x02",
                "ab\x02",
                "\x02ab",
                " ",
                "\x00",
            )
            at = random.randrange(len(text) + 1)
            text = text[:at] + random.choice(pieces) + text[at:]
        if text and self.odd():
            at = random.randrange(len(text))
            text = text[:at] + text[at + 1 :]
        return "" if self.odd(0.3) else text

    def body(self) -> bytes:
        """Return the body of a message."""
        random = self.random
        self._number += 1
        size = random.choice((1, 10, 40, 40, 100, 300))
        if self.odd():
            most = self.body_bytes_max
            size = random.choice((0, 63, 64, 65, 127, 128, 1500, most // 2, most - 1, most, most + 1, most + 100))
        return (b"%d." % self._number * (1 + size // 2))[:size]

    def batch(self) -> bytes:
        """Return the body of a batch."""
        random = self.random
        count = random.choice((0, 1, 50, 120)) if self.odd() else random.randrange(1, 9)
        parts = [
            BatchPart(random.randrange(3), self.body(), self.properties(is_part=True).encode("utf-8", "surrogatepass"))
            for _ in range(count)
        ]
        raw = encode_batch(parts)
        if raw and self.odd(2):
            damaged = bytearray(raw)
            for _ in range(random.randrange(1, 3)):
                damaged[random.randrange(len(damaged))] = random.choice((0, 1, 2, 255, 84, random.randrange(256)))
            raw = bytes(damaged)
        if self.odd():
            raw = random.choice((raw[:-1], raw + b"\0", raw + raw[:21], raw[1:], bytes(22), bytes(21), b"x"))
        return raw

    # Headers.

    def json_header(self, style: str, code: int, flag: int, fields: Sequence[tuple[str, bytes | str]]) -> bytes:
        """Return a header in JSON, in the style of a client."""
        random = self.random
        if style == "java":
            fields = sorted(fields, key=lambda field: field[0])
        elif style in ("shuffled", "spaced", "go"):
            fields = random.sample(list(fields), len(fields))
        ascii_only = style == "cpp" or (style in ("shuffled", "spaced") and random.random() < 0.5)
        ext = self._object([(name, self._value(value, ascii_only=ascii_only)) for name, value in fields], style, 2)
        opaque = self.opaque()
        head: dict[str, bytes] = {
            "code": b"%d" % code,
            "extFields": ext,
            "flag": b"%d" % flag,
            "language": b'"JAVA"',
            "opaque": b"%d" % opaque,
            "serializeTypeCurrentRPC": b'"JSON"',
            "version": b"%d" % random.choice((407, 479)),
        }
        if style == "cpp":
            del head["serializeTypeCurrentRPC"]
            head |= {"language": b'"CPP"', "version": b"333", "remark": b'""'}
        elif style == "go":
            del head["serializeTypeCurrentRPC"]
            head |= {"language": b'"GO"', "version": b"317", "remark": b'""'}
            head = {
                name: head[name] for name in ("code", "language", "version", "opaque", "flag", "remark", "extFields")
            }
        items = list(head.items())
        if style in ("shuffled", "spaced"):
            random.shuffle(items)
        self._odd_head(items)
        raw = self._object(items, style, 1)
        if style == "cpp":
            raw += b"\n"
        if self.odd(0.3):
            raw = random.choice(
                (raw + b" ", raw + b"\n\n", b" " + raw, raw + b"x", raw + b"\0", raw[:-1], b"\xef\xbb\xbf" + raw)
            )
        return raw

    def _odd_head(self, items: list[tuple[str, bytes]]) -> None:
        random = self.random
        if self.odd():
            items.append((random.choice(("x", "remark", "extfields", "")), random.choice(ODD_VALUES)))
        if self.odd(0.5):
            at = random.randrange(len(items))
            numbers = (
                b"0",
                b"-0",
                b"-1",
                b"2147483648",
                b"-2147483648",
                b"310.0",
                b"3.1e2",
                b"null",
                b'"310"',
                b"01",
                b"",
            )
            items[at] = (items[at][0], random.choice((*numbers, *ODD_VALUES)))
        if self.odd(0.5):
            items.insert(random.randrange(len(items) + 1), random.choice(items))
        if self.odd(0.5):
            del items[random.randrange(len(items))]
        if self.odd(0.3):
            at = random.randrange(len(items))
            items[at] = (items[at][0] + random.choice(("s", " ", "\x00")), items[at][1])

    def _object(self, items: Sequence[tuple[str, bytes]], style: str, depth: int) -> bytes:
        random = self.random
        if style == "cpp":
            indent = b"\n" + 3 * depth * b" "
            inner = b",".join([indent + json.dumps(name).encode() + b" : " + value for name, value in items])
            return b"{" + inner + b"\n" + 3 * (depth - 1) * b" " + b"}"
        space = b""
        if style == "spaced":
            space = random.choice((b" ", b"\n", b"\t", b" \r\n "))
        separator = b"," + space
        if self.odd(0.2):
            separator = random.choice((b",,", b"", b";", b", ,", b",\x0b"))
        colon = space + b":" + space
        inner = separator.join([self._quoted(name, ascii_only=False) + colon + value for name, value in items])
        return b"{" + space + inner + space + b"}"

    def _value(self, value: bytes | str, *, ascii_only: bool) -> bytes:
        if isinstance(value, bytes):
            return value
        if value.isdecimal() and value.isascii() and self.odd(0.3):
            return value.encode()
        return self._quoted(value, ascii_only=ascii_only)

    def _quoted(self, text: str, *, ascii_only: bool) -> bytes:
        """Return a JSON string: as its encoder writes it, or with further escapes."""
        random = self.random
        if self.odd(0.3):
            hexadecimal = random.choice(("{:04x}", "{:04X}"))
            units = text.encode("utf-16-be", "surrogatepass")
            pieces = [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]
            if random.random() < 0.5:
                return b'"' + "".join(["\\u" + hexadecimal.format(unit) for unit in pieces]).encode() + b'"'
        raw = json.dumps(text, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        if self.odd(0.15):
            at = random.randrange(1, len(raw))
            raw = raw[:at] + random.choice(ODD_TEXTS) + raw[at:]
        return raw

    def binary_header(self, code: int, flag: int, fields: Sequence[tuple[str, bytes | str]]) -> bytes:
        """Return a header in binary form."""
        random = self.random
        pieces: list[bytes] = []
        for name, value in random.sample(list(fields), len(fields)) if random.random() < 0.5 else fields:
            key, text = name.encode(), value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            if self.odd(0.15):
                at = random.randrange(len(text) + 1)
                text = text[:at] + random.choice(ODD_TEXTS) + text[at:]
            key_bytes, text_bytes = len(key), len(text)
            if self.odd(0.1):
                key_bytes = max(0, key_bytes + random.choice((-1, 1, 255, 65_000)))
            if self.odd(0.1):
                text_bytes += random.choice((-1, 1, 2, -len(text), 1 << 30, -(1 << 30)))
            pieces.append((key_bytes & 0xFFFF).to_bytes(2) + key + (text_bytes & 0xFFFFFFFF).to_bytes(4) + text)
        ext = b"".join(pieces)
        remark = random.choice((b"x", b"\xff", b"remark")) if self.odd() else b""
        remark_bytes, ext_bytes = len(remark), len(ext)
        if self.odd(0.3):
            remark_bytes += random.choice((-1, 1, 1 << 30))
        if self.odd(0.3):
            ext_bytes += random.choice((-1, 1, -5, 1 << 30, -(1 << 31)))
        language = random.choice((0, 1, 9, 12, 200))
        return b"".join(
            (
                (code & 0xFFFF).to_bytes(2),
                language.to_bytes(1),
                (479).to_bytes(2),
                self.opaque().to_bytes(4, signed=True),
                (flag & 0xFFFFFFFF).to_bytes(4),
                (remark_bytes & 0xFFFFFFFF).to_bytes(4),
                remark,
                (ext_bytes & 0xFFFFFFFF).to_bytes(4),
                ext,
                b"rest" if self.odd(0.3) else b"",
            )
        )

    def _framed(self, form: int, header: bytes, body: bytes) -> bytes:
        random = self.random
        if self.odd(0.3):
            form = random.choice((0, 1, 2, 255))
        raw = frame_of(form, header, body)
        if self.odd(0.3):  # another border between header and body
            header_bytes = max(0, len(header) + random.choice((-1, 1, -len(header), 8, len(body))))
            raw = raw[:4] + (form << 24 | header_bytes & 0xFFFFFF).to_bytes(4) + raw[8:]
        if self.odd(0.1):  # another end of the frame
            raw = max(0, len(raw) - 4 + random.choice((-1, 1, 1 << 20, 1 << 31))).to_bytes(4) + raw[4:]
        return raw

    # Other requests.

    def other(self) -> bytes:
        """Return a request that is no send, or a response."""
        random = self.random
        topic, queue = random.choice(("T", "Other", "T", "No")), str(random.randrange(4))
        kind = random.randrange(12)
        flag, body, fields = 0, b"", {"topic": topic, "queueId": queue}
        code: int = RequestCode.GET_MAX_OFFSET
        if kind in (0, 1):
            code, fields = RequestCode.PULL_MESSAGE, self._pull_fields(topic, queue)
        elif kind == 2:
            code, fields = RequestCode.HEART_BEAT, {}
            body = dumps({"clientID": "c", "consumerDataSet": [], "producerDataSet": [{"groupName": "producers"}]})
        elif kind == 3:
            code, fields = (
                RequestCode.CONSUMER_SEND_MSG_BACK,
                {
                    "offset": str(random.randrange(2000)),
                    "group": "group",
                    "delayLevel": str(random.randrange(4)),
                    "originMsgId": "x",
                    "originTopic": topic,
                    "unitMode": "false",
                    "maxReconsumeTimes": "3",
                },
            )
        elif kind == 4:
            code = RequestCode.UPDATE_CONSUMER_OFFSET
            fields |= {"consumerGroup": "group", "commitOffset": str(random.randrange(9))}
        elif kind == 5 and random.random() < 0.3:
            code, fields = RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": random.choice(("T", "Other", "New1"))}
        elif kind == 6:
            code, fields = (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                {
                    "topic": random.choice(("T", "Other")),
                    "defaultTopic": "TBW102",
                    "readQueueNums": "4",
                    "writeQueueNums": random.choice(("4", "2", "12")),
                    "perm": random.choice(("6", "6", "4")),
                    "topicFilterType": "SINGLE_TAG",
                    "topicSysFlag": "0",
                    "order": random.choice(("false", "true")),
                },
            )
        elif kind == 7:
            code, fields = RequestCode.UPDATE_BROKER_CONFIG, {}
            body = f"maxMessageSize={random.choice((self.body_bytes_max, 1024, self.body_bytes_max))}".encode()
        elif kind == 8:
            code, fields = (
                RequestCode.QUERY_MESSAGE,
                {
                    "topic": topic,
                    "key": random.choice(WORDS),
                    "maxNum": "9",
                    "beginTimestamp": "0",
                    "endTimestamp": str(2 * BORN_MS),
                },
            )
        elif kind == 9:
            code, flag, fields = 0, FLAG_RESPONSE, {}
        elif kind == 10:
            code = random.choice((99_999, 0, 105, 361))
        is_binary = random.random() < 0.3 and 0 <= code < 32768
        return encode_command(Command(code, self.opaque(), flag, fields=fields, body=body, binary=is_binary))

    def _pull_fields(self, topic: str, queue: str) -> dict[str, str]:
        random = self.random
        return {
            "consumerGroup": "group",
            "topic": topic,
            "queueId": queue,
            "queueOffset": str(random.randrange(20)),
            "maxMsgNums": str(random.choice((1, 32))),
            "sysFlag": str(random.choice((4, 6, 7))),
            "commitOffset": "0",
            "suspendTimeoutMillis": "20000",
            "subscription": random.choice(("*", "tag", "a||tag")),
            "subVersion": "0",
            "expressionType": "TAG",
        }

    # Many.

    def stream(self, count: int, others: float = 0.1) -> list[bytes]:
        """Return frames, of which a share are other requests; unusual ones have changed bytes here and there."""
        frames = [self.other() if self.random.random() < others else self.send() for _ in range(count)]
        return [mutated(self.random, frame) if self.odd(0.3) else frame for frame in frames]

    def turns(self, links: Sequence[int], turns: int, frames: int, *, others: float = 0.1) -> Turns:
        """Return what several connections send in several turns, cut anywhere."""
        random = self.random
        cut: Turns = [[] for _ in range(turns)]
        for link in links:
            data = b"".join(self.stream(random.randrange(frames + 1), others))
            places = sorted([random.randrange(len(data) + 1) for _ in range(turns + random.randrange(3))])
            pieces = [data[first:last] for first, last in zip([0, *places], [*places, len(data)], strict=True)]
            for number, piece in enumerate(pieces):
                if piece:
                    cut[min(number, turns - 1)].append(Sent(link, piece))
        for turn in cut:
            order = list(range(len(turn)))
            random.shuffle(order)
            turn[:] = _in_link_order([turn[at] for at in order], turn)
        return [turn for turn in cut if turn]


def _in_link_order(shuffled: list[Sent], turn: list[Sent]) -> list[Sent]:
    """Return the links in the shuffled order, but the pieces of each link in theirs."""
    pieces = {link: iter([sent for sent in turn if sent.link == link]) for link, _ in turn}
    return [next(pieces[sent.link]) for sent in shuffled]


def mutated(random: Random, frame: bytes) -> bytes:
    """Return a frame with some bytes changed, inserted or removed; its length is right mostly."""
    raw = bytearray(frame)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = random.randrange(len(raw)) if raw else 0
        kind = random.randrange(6)
        if kind == 0:
            del raw[at : at + random.choice((1, 1, 2, 9))]
        elif kind == 1:
            raw[at:at] = random.choice(
                (b"0", b"\0", b'"', b"\x01", b"\x02", b"\\", b"\xff", b" ", b"{", raw[at : at + 9])
            )
        elif raw:
            at = at % len(raw)
            raw[at] = random.choice((raw[at] ^ 1 << random.randrange(8), random.randrange(256), 0, 255, 34, 48))
    if len(raw) >= 8 and random.random() < 0.9:
        header_bytes = int.from_bytes(raw[5:8]) + (len(raw) - len(frame)) * (random.random() < 0.8)
        raw[:4] = (len(raw) - 4).to_bytes(4)
        raw[5:8] = max(0, min(header_bytes, len(raw) - 8)).to_bytes(3)
    return bytes(raw)


def dumps(value: Any) -> bytes:
    """Encode a body."""
    return json.dumps(value).encode()
