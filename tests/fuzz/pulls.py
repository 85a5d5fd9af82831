"""The same requests to two brokers, of which one leaves all pulls to Python: both send the same bytes.

    python -m tests.fuzz.pulls --seeds 1000

Pulls are drawn so that most are repetitions; between them everything changes by which a pull is allowed. Some frames
are mutated.
"""

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from random import Random
from typing import Any
from unittest import mock

from msgspec import structs

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Disk, Now
from tandemq.broker.features.pulls import engine_pulls
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.remoting.frame import encode_command
from tandemq.engine import PullEngine, python
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.topic import RETRY_PREFIX
from tests.request_fields import pull_fields, topic_fields
from tests.unit.broker.harness import START_WALL_MS, Harness, send_fields

TOPICS = ("A", "B", "Ü", f"{RETRY_PREFIX}g1")
GROUPS = ("g1", "g2")
TAGS = ("red", "green", "blue", "")
EXPRESSIONS = ("*", "red", "red || green", "none", "a = 1", "", "red ||")
QUEUES = 3
CONSUMERS = 8
LINKS = (1, 2, 3)
_ROOM_MAX = 40_000


class CountedEngine(PullEngine):
    """The engine, which counts the pulls that it answers."""

    answered = 0

    def take(self, *arguments: Any, **named: Any) -> int:
        """See `PullEngine`."""
        after = super().take(*arguments, **named)
        CountedEngine.answered += len(self.answers)
        return after


class PullPair:
    """The two brokers."""

    def __init__(self, disks: tuple[Disk, Disk], seed: int) -> None:
        """Begin with some messages."""
        self._random = Random(seed)
        settings: dict[str, Any] = {"property_filter_enable": True, "auto_create_group": True}
        CountedEngine.answered = 0
        with mock.patch.object(engine_pulls, "PullEngine", CountedEngine):
            by_engine = Harness(disks[0], **settings)
        with mock.patch.object(engine_pulls, "PullEngine", python.PullEngine):
            by_python = Harness(disks[1], **settings)
        self.brokers = (by_engine, by_python)
        self._hidden_bytes = 0
        """At the end of the log, which consumers may not see yet."""
        for broker in self.brokers:
            self._limit(broker)
        self._changes = (
            self._change_topic,
            self._change_group,
            self._change_subscription,
            self._change_settings,
            self._change_consumer,
            self._reset_offsets,
            self._fill_outbox,
            self._hide,
            self._damage,
            self._forbid,
        )
        self._consumers = [self._new_consumer() for _ in range(CONSUMERS)]
        for link in LINKS[1:]:
            self._each("open", link)
        for topic in TOPICS:
            self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, QUEUES))
        for _ in range(6):
            self._send_some()

    def _limit(self, broker: Harness) -> None:
        """Have the role of a broker hide the end of the log, as in a group that elects."""
        role, log = broker.node.role, broker.node.store.log
        serving = role.serving

        def limited(now: Now) -> Serving:
            verdict, end = serving(now), log.written_end - self._hidden_bytes
            return structs.replace(verdict, visible_end=end) if self._hidden_bytes else verdict

        vars(role)["serving"] = limited

    @property
    def answered(self) -> int:
        """Pulls that the engine answered."""
        return CountedEngine.answered

    def _each(self, name: str, *arguments: Any, **named: Any) -> None:
        for broker in self.brokers:
            getattr(broker, name)(*arguments, **named)

    def _ask(self, code: int, fields: Mapping[str, object], body: bytes = b"", **named: Any) -> None:
        self._each("send_request", code, fields, body, **named)

    def step(self) -> None:
        """Do one thing; most are pulls.

        Raises:
            AssertionError: the brokers differ.
        """
        random = self._random
        draw = random.random()
        if draw < 0.8:
            self._pull_some()
        elif draw < 0.88:
            self._send_some()
        elif draw < 0.92:
            self._pass_time(random.choice((1, 500, 6_000)))
        else:
            random.choice(self._changes)()
        self.check()

    def check(self) -> None:
        """Compare what both have sent and counted."""
        one, other = self.brokers
        assert one.inbox == other.inbox
        assert one.closes == other.closes
        for broker in self.brokers:
            broker.inbox.clear()
            for link, _ in broker.closes:
                broker.close(link)
                broker.open(link)
            broker.closes.clear()
        assert one.node.offsets.table == other.node.offsets.table
        assert self._counts(one) == self._counts(other)
        assert one.node.pull.held_count == other.node.pull.held_count

    def _pass_time(self, ms: int) -> None:
        """Advance the clocks; a turn answers a limited number of held pulls."""
        for broker in self.brokers:
            broker.now = Now(broker.now.mono_ms + ms, broker.now.wall_ms + ms)
            broker.turn()
            while (due := broker.node.deadline_ms()) is not None and due <= broker.now.mono_ms:
                broker.turn()

    def _counts(self, broker: Harness) -> list[Any]:
        counters = broker.node.pull.counters
        groups = {
            key: (counts.messages, counts.bytes, counts.answers, counts.next_offsets)
            for key, counts in counters.by_group.items()
        }
        return [counters.messages, counters.bytes, counters.finds, counters.misses, groups]

    # Requests.

    def _send_some(self) -> None:
        random = self._random
        for _ in range(random.randrange(1, 20)):
            properties = {"TAGS": random.choice(TAGS), "a": str(random.randrange(3))}
            fields = send_fields(random.choice(TOPICS), random.randrange(QUEUES), properties)
            self._ask(RequestCode.SEND_MESSAGE_V2, fields, bytes(random.randrange(600)))

    def _pull_some(self) -> None:
        random, link = self._random, self._random.choice(LINKS)
        data = b""
        for opaque in range(random.choice((1, 1, 4, 40))):
            frame = encode_command(self._pull(opaque))
            if random.random() < 0.03:
                at = random.randrange(8, len(frame))
                frame = frame[:at] + bytes([random.choice((0, 34, 44, 48, 57, 92, 125, 200))]) + frame[at + 1 :]
            data += frame
            if random.random() < 0.05:
                fields = {key: str(value) for key, value in send_fields("A").items()}
                data += encode_command(Command(RequestCode.SEND_MESSAGE_V2, opaque, 0, fields=fields, body=b"body"))
        cut = random.randrange(len(data)) if random.random() < 0.1 else 0
        pieces = [data[:cut], data[cut:]] if cut else [data]
        for piece in pieces:
            one, other = (broker.turn([(link, piece)]) for broker in self.brokers)
            assert {key: b"".join(buffers) for key, buffers in one.sends.items()} == {
                key: b"".join(buffers) for key, buffers in other.sends.items()
            }

    def _pull(self, opaque: int) -> Command:
        """Return a pull of one of a few consumers, or an odd one."""
        random = self._random
        is_odd = random.random() < 0.1
        consumer = self._new_consumer() if is_odd else random.choice(self._consumers)
        fields = consumer | {
            "queueOffset": random.choice((30, 10_000)) if is_odd else random.randrange(12),
            "maxMsgNums": random.choice((0, 1, 5_000)) if is_odd else 32,
            "commitOffset": random.choice((-1, 0, 7)) if is_odd else random.randrange(9),
            "suspendTimeoutMillis": 1_000,
        }
        if random.random() < 0.1:
            fields["bulk"] = random.choice(("true", "false", "x"))
        if is_odd:
            fields["subVersion"] = 1 << 50
            fields["queueId"] = random.choice((f"0{fields['queueId']}", QUEUES, -1))
            fields["bname"] = "broker \\ ü"
        texts = {key: str(value) for key, value in fields.items()}
        flag = random.choice((1, 2)) if is_odd and random.random() < 0.2 else 0
        code = random.choice((RequestCode.PULL_MESSAGE, RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
        return Command(code, opaque, flag, fields=texts, language="JAVA", binary=random.random() < 0.4)

    def _new_consumer(self) -> dict[str, object]:
        """Return the fields that all pulls of a consumer share."""
        random = self._random
        fields = pull_fields(
            random.choice(TOPICS),
            consumerGroup=random.choice((*GROUPS, *GROUPS, "unknown")),
            queueId=random.randrange(QUEUES),
            sysFlag=random.choice((0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 12, 20)),
            subscription=random.choice(EXPRESSIONS),
            subVersion=random.choice((0, 0, START_WALL_MS)),
        )
        if random.random() < 0.2:
            del fields["subscription"]
        if random.random() < 0.7:
            fields["expressionType"] = random.choice(("TAG", "TAG", "TAG", "SQL92"))
        return fields

    # Changes.

    def _change_topic(self) -> None:
        random, topic = self._random, self._random.choice(TOPICS[:3])
        if random.random() < 0.2:
            self._ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        permissions = random.choice((6, 6, 6, 6, 6, 2))
        queues = random.choice((QUEUES, QUEUES, QUEUES, 1))
        self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues, perm=permissions))

    def _change_group(self) -> None:
        group: dict[str, object] = {
            "groupName": self._random.choice(GROUPS),
            "consumeEnable": self._random.random() < 0.9,
            "consumeBroadcastEnable": self._random.random() < 0.8,
        }
        self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode())

    def _change_consumer(self) -> None:
        self._consumers[self._random.randrange(CONSUMERS)] = self._new_consumer()

    def _change_subscription(self) -> None:
        random, group = self._random, self._random.choice(GROUPS)
        if random.random() < 0.2:
            fields = {"clientID": "client-1", "consumerGroup": group, "producerGroup": ""}
            self._ask(RequestCode.UNREGISTER_CLIENT, fields)
            return
        topics = random.sample(TOPICS, random.randrange(1, len(TOPICS) + 1))
        subscriptions = {topic: random.choice(EXPRESSIONS[:4]) for topic in topics}
        self._each("heartbeat", group, subscriptions)

    def _change_settings(self) -> None:
        lines = self._random.choice(("maxTransferCountOnMessageInMemory=3", "maxTransferCountOnMessageInMemory=32"))
        self._ask(RequestCode.UPDATE_BROKER_CONFIG, {}, lines.encode())

    def _reset_offsets(self) -> None:
        place = self._random.choice(TOPICS), self._random.choice(GROUPS), self._random.randrange(QUEUES), 2
        for broker in self.brokers:
            broker.node.offsets.pending.add(*place, broker.now.mono_ms)

    def _fill_outbox(self) -> None:
        waiting = {link: self._random.choice((0, 0, 0, 0, (8 << 20) - _ROOM_MAX, 9 << 20)) for link in LINKS}
        for broker in self.brokers:
            broker.outbox.waiting = waiting

    def _hide(self) -> None:
        self._hidden_bytes = self._random.choice((0, 0, 1, 300, 1_000, 5_000))

    def _damage(self) -> None:
        """Change an entry of a queue, so that it names another record, or none."""
        topic, queue_id = self._random.choice(TOPICS), self._random.randrange(QUEUES)
        queue = self.brokers[0].node.store.queues.get((topic, queue_id))
        if queue is None or queue.max_offset == queue.min_offset:
            return
        offset = self._random.randrange(queue.min_offset, queue.max_offset)
        log_offset, size, code = queue.entry(offset)
        wrong = self._random.choice(((log_offset + 1, size, code), (log_offset, size + 1, code), (log_offset, 0, code)))
        for broker in self.brokers:
            broker.node.store.queues[topic, queue_id].correct(offset, *wrong)

    def _forbid(self) -> None:
        group, topic, readable = self._random.choice(GROUPS), self._random.choice(TOPICS), self._random.random() < 0.7
        for broker in self.brokers:
            broker.node.groups.forbid(group, topic, broker.now.wall_ms, readable=readable)


def run_pair(seed: int, steps: int) -> int:
    """Feed two brokers; return how many pulls the engine answered.

    Raises:
        AssertionError: they differ.
    """
    pair = PullPair((SimDisk(Random(seed)), SimDisk(Random(seed))), seed)
    for _ in range(steps):
        pair.step()
    return pair.answered


def main() -> int:
    """Run seeds; exit code 1: the brokers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds (default: 100)")
    parser.add_argument("--steps", type=int, default=200, help="steps of each (default: 200)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    answered = 0
    for seed in range(options.first, options.first + options.seeds):
        try:
            answered += run_pair(seed, options.steps)
        except AssertionError as different:
            print(f"seed {seed}: {different}")
            return 1
    print(f"{options.seeds} seeds, {answered:,} pulls answered by the engine; no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
