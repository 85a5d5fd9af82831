"""Half messages and their ends through the engine: the same as by decoding each of them."""

import json
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.errors import DiskFull
from tandemq.load.wire.headers import binary_frame, json_frame
from tandemq.model.codes import RequestCode
from tandemq.model.topic import HALF_TOPIC, TopicConfig
from tests.fuzz.frames import Frames, mutated
from tests.fuzz.values import STYLES
from tests.spec import spec
from tests.unit.broker.features.sends.comparison import LINKS, Recorder, compare
from tests.unit.broker.features.sends.messages import SMALL, V6, Count, send
from tests.unit.broker.features.waiting_tables import open_transactions
from tests.unit.broker.harness import CLIENT

pytestmark = pytest.mark.usefixtures("by_engine")
GROUP = "tx"
KEY = "7F0100002A9F"
"""Beginning of the unique keys of half messages."""
COMMIT, ROLLBACK = "8", "12"
CHECKS: dict[str, Any] = {"transaction_check_interval_ms": 4_000, "transaction_timeout_ms": 3_000}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    CHECKS,
    CHECKS | {"transaction_checks_max": 1},
    SMALL | CHECKS,
    V6,
    {"opens_queues": False},
    {"role": "SYNC_MASTER"},
    {"flush_type": "SYNC_FLUSH"},
    {"transactions_max": 5},
    {"reject_transactions": True},
    {"trace_topic_enable": True, "region": "é"},
    {"message_type_check": True},
)


class Half(NamedTuple):
    """A half message that is stored."""

    queue_offset: int
    log_offset: int
    key: str


class Traffic:
    """What producers of transactions send to one broker, drawn from a seed and from its responses."""

    def __init__(self, broker: Recorder, random: Random, oddness: float) -> None:
        self.broker = broker
        self.random = random
        self.oddness = oddness
        self.halves: list[Half] = []
        self.frames = Frames(random, oddness)
        self._seen = dict.fromkeys(LINKS, 0)
        self._number = 0

    def odd(self, factor: float = 1.0) -> bool:
        return self.random.random() < self.oddness * factor

    def half(self, **changes: str) -> bytes:
        """Return a half message as a Java client sends it, or an odd one."""
        random, self._number = self.random, self._number + 1
        pairs = {
            "KEYS": f"order-{random.randrange(10**6)} more",
            "UNIQ_KEY": f"{KEY}{self._number:020X}",
            "WAIT": random.choice(("true", "true", "false")),
            "TRAN_MSG": "true",
            "PGROUP": GROUP,
            "TAGS": random.choice(("a", "bb", "é")),
        } | changes
        if self.odd():
            pairs["TRAN_MSG"] = random.choice(("TRUE", "false", "", "truee"))
        for name, value in (
            ("CHECK_IMMUNITY_TIME_IN_SECONDS", "5"),
            ("DELAY", "1"),
            ("TIMER_DELAY_MS", "9"),
            ("REAL_TOPIC", "Other"),
            ("__transactionId__", "X"),
            ("TRANSACTION_CHECK_TIMES", "3"),
            ("odd\x01name", "v"),
            ("empty", ""),
        ):
            if self.odd(0.3):
                pairs[name] = value
        for name in [name for name in pairs if self.odd(0.1)]:
            del pairs[name]
        items = list(pairs.items())
        if self.odd():
            random.shuffle(items)
        if self.odd(0.3):
            items.append(random.choice(items or [("a", "b")]))
        text = "\x02".join(f"{name}\x01{value}" for name, value in items)
        topic = random.choice(("T", "T", "Other", "Long" + 123 * "g", "ReadOnly" if self.odd() else "Wide"))
        queue = random.randrange(4) if not self.odd() else random.choice((-1, 4, 99))
        flags: dict[str, Any] = {"f": random.choice(("4", "4", "5", "0")), "j": "1" if self.odd(0.3) else "0"}
        properties = text + random.choice(("", "\x02"))
        body = random.randbytes(random.randrange(1, 600))
        return send(
            self._number, queue=queue, topic=topic, body=body, **flags, i=properties, binary=random.random() < 0.3
        )

    def end(self, **changes: str) -> bytes:
        """Return the end of one of the last half messages, or an odd one."""
        random = self.random
        half = random.choice(self.halves[-40:]) if self.halves else Half(0, 0, "K")
        fields = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.log_offset),
            "commitOrRollback": COMMIT if random.random() < 0.8 else ROLLBACK,
            "fromTransactionCheck": random.choice(("false", "true")),
            "msgId": half.key,
            "transactionId": half.key,
        } | changes
        odd = {
            "producerGroup": random.choice(("other", "", "tx\\u0041")),
            "tranStateTableOffset": random.choice(("0", "-1", "007", str(half.queue_offset + 1), "9" * 18)),
            "commitLogOffset": random.choice(("0", str(half.log_offset + 1), "-8", "1e3")),
            "commitOrRollback": random.choice(("0", "4", "08", "x")),
            "msgId": random.choice(("", "0" * 32, "\\u00e9")),
            "transactionId": random.choice(("", "0" * 32)),
        }
        for name, value in odd.items():
            if self.odd(0.4):
                fields[name] = value
        for name in [name for name in fields if self.odd(0.1)]:
            del fields[name]
        if random.random() < 0.3:
            fields |= {"topic": "T", "bname": "broker-a"}
        if self.odd():
            fields = dict(random.sample([*fields.items()], len(fields)))
        self._number += 1
        body = b"body" if self.odd(0.3) else b""
        frame = (binary_frame if random.random() < 0.3 else json_frame)(37, self._number, fields, body)
        if random.random() < 0.3:  # one-way, as Java clients send it
            frame = frame.replace(b'"flag":0', b'"flag":2') if frame[4] == 0 else frame[:17] + b"\0\0\0\2" + frame[21:]
        return mutated(random, frame) if self.odd(0.3) else frame

    def turn(self) -> None:
        """Run a turn with what some connections send, and look at the responses."""
        random = self.random
        sent: list[tuple[int, bytes]] = []
        for link in random.sample(LINKS, random.randrange(1, 4)):
            frames: list[bytes] = []
            for _ in range(random.randrange(12)):
                kind = random.random()
                if kind < 0.45:
                    frames.append(self.half())
                elif kind < 0.9:
                    frames += [self.end()] * random.choice((1, 1, 1, 2))
                else:
                    frames.append(self.frames.send())
            if frames:
                sent.append((link, b"".join(frames)))
        self.broker.receive(sent)
        if random.random() < 0.2:
            self.broker.pass_time(random.choice((100, 1_500, 5_000)))
        self.look()

    def look(self) -> None:
        """Learn from new responses which half messages are stored."""
        for link in LINKS:
            data = bytes(self.broker.sent[link])
            for frame in FrameDecoder().feed(data[self._seen[link] :]):
                fields = decode_command(frame).fields
                key = fields.get("transactionId", "")
                is_single = "queueOffset" in fields and "," not in fields["msgId"]
                if is_single and (not key or key.startswith(KEY)):
                    self.halves.append(Half(int(fields["queueOffset"]), int(fields["msgId"][-16:], 16), key))
            self._seen[link] = len(data)


def begin(broker: Recorder) -> None:
    """Let the broker read its open transactions, and open the queue of half messages."""
    broker.heartbeat("", producers=[GROUP])
    broker.pass_time(200)


def compare_traffic(seed: int, oddness: float, turns: int, **changes: Any) -> Recorder:
    """Assert that traffic has the same result with and without the engine; return the broker with the engine."""

    def script(broker: Recorder) -> None:
        begin(broker)
        traffic = Traffic(broker, Random(seed), oddness)
        for _ in range(turns):
            traffic.turn()

    return compare(script, **changes)


@pytest.mark.timeout(180)
@settings(max_examples=30)
@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.02, 0.1, 0.3)), st.sampled_from(CHANGES))
def test_any_transactions_have_the_same_result(seed: int, oddness: float, changes: dict[str, Any]) -> None:
    compare_traffic(seed, oddness, 8, **changes)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@settings(max_examples=10_000)
@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.02, 0.1, 0.3)), st.sampled_from(CHANGES))
def test_more_transactions_have_the_same_result(seed: int, oddness: float, changes: dict[str, Any]) -> None:
    compare_traffic(seed, oddness, 20, **changes)


@spec("G11")
def test_ordinary_transactions_are_taken_by_the_engine(by_engine: Count) -> None:
    def script(broker: Recorder) -> None:
        begin(broker)
        traffic = Traffic(broker, Random(1), 0.0)
        broker.receive([(CLIENT, traffic.half())])  # opens the queue of half messages
        halves = [traffic.half() for _ in range(600)]
        broker.receive([(CLIENT, b"".join(halves[:300])), (2, b"".join(halves[300:]))])
        traffic.look()
        assert len(traffic.halves) == 601
        ends = []
        for half in traffic.halves:
            place = {"tranStateTableOffset": str(half.queue_offset), "commitLogOffset": str(half.log_offset)}
            named = {"msgId": half.key, "transactionId": half.key, "commitOrRollback": COMMIT}
            ends.append(traffic.end(**place, **named))
        broker.receive([(CLIENT, b"".join(ends[:100])), (3, b"".join(ends[100:]))])
        assert len(open_transactions(broker)) == 0
        assert all(open_transactions(broker).is_over(at) for at in range(601))

    compare(script)
    # The first half message, and the first message of each queue, are decoded.
    by_engine.expect(600 + 601 - 16)


@pytest.mark.parametrize("style", STYLES)
def test_half_messages_in_every_form_are_taken_by_the_engine(style: str, by_engine: Count) -> None:
    def script(broker: Recorder) -> None:
        begin(broker)
        frames = Frames(Random(1))
        marks = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "K"}
        text = "\x02".join(f"{name}\x01{value}" for name, value in marks.items())
        for number in range(3):
            fields = frames.fields(is_batch=False, code=310)
            fields = [(name, {"i": text, "b": "T", "e": "1", "f": "4"}.get(name, value)) for name, value in fields]
            header = frames.json_header(style, 310, 0, fields) if style != "binary" else b""
            if header:
                broker.receive([(CLIENT, _framed(header, b"body %d" % number))])
        assert style == "binary" or broker.node.store.queues[HALF_TOPIC, 0].max_offset == 3

    compare(script)
    by_engine.expect(0 if style == "binary" else 2)


def _framed(header: bytes, body: bytes) -> bytes:
    size = len(header)
    return (4 + size + len(body)).to_bytes(4) + size.to_bytes(4) + header + body


def test_failed_write_leaves_transactions_open_in_both_ways() -> None:
    def script(broker: Recorder) -> None:
        begin(broker)
        traffic = Traffic(broker, Random(3), 0.0)
        for _ in range(6):
            traffic.turn()
        frames = b"".join([traffic.end() for _ in range(6)] + [traffic.half() for _ in range(6)])
        with pytest.MonkeyPatch.context() as patch:

            def full(*_: Any) -> int:
                broker.node.store.log._undo_write(
                    broker.node.store.log.written_end, b"".join(broker.node.store.log._pending)
                )
                broker.node.store.log._pending.clear()
                raise DiskFull("full")

            patch.setattr(broker.node.store.log, "write", full)
            broker.receive([(CLIENT, frames)])
        traffic.look()
        for _ in range(4):
            traffic.turn()

    compare(script)


def test_topic_deleted_before_the_commit_is_created_again_in_both_ways() -> None:
    def script(broker: Recorder) -> None:
        begin(broker)
        traffic = Traffic(broker, Random(5), 0.0)
        for _ in range(4):
            traffic.turn()
        for name in ("T", "Other"):
            assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code == 0
        for _ in range(3):
            traffic.turn()
        broker.node.topics.put(TopicConfig("T", 12, 12), broker.now.wall_ms)
        for _ in range(3):
            traffic.turn()

    compare(script)


def test_response_to_a_commit_is_that_of_the_decoded_path(by_engine: Count) -> None:
    def script(broker: Recorder) -> None:
        begin(broker)
        traffic = Traffic(broker, Random(7), 0.0)
        broker.receive([(CLIENT, traffic.half())])
        for _ in range(2):
            broker.receive([(CLIENT, traffic.half())])
            traffic.look()
            at, log_offset, key = traffic.halves[-1]
            fields = {"producerGroup": GROUP, "commitOrRollback": COMMIT, "msgId": key, "transactionId": key}
            place = {"tranStateTableOffset": str(at), "commitLogOffset": str(log_offset)}
            broker.sent[CLIENT].clear()
            traffic._seen[CLIENT] = 0
            broker.receive([(CLIENT, json_frame(37, 77, fields | place, b""))])
            ((_, header, _),) = FrameDecoder().feed(bytes(broker.sent[CLIENT]))
            answer = json.loads(header)
            assert (answer["code"], answer["opaque"], answer["flag"]) == (0, 77, 1)

    compare(script)
