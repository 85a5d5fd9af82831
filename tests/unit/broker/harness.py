"""A broker under the control of a test: numbered connections, a manual clock, jobs run at once.

    broker = Harness(tmp_path)                      a master on a real directory
    broker.send("TopicA", b"one")                   a producer's send; creates the topic
    broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0})
    broker.heartbeat("group", {"TopicA": "*"}, link=7)
    broker.pass_time(30_000)                        runs a turn at every deadline on the way

What the broker sends on a connection is decoded and kept in `inbox[link]`; bytes on replication connections are kept in
`bytes_out`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from lab.samples import tiny
from tandemq.boundary import Closed, Connect, Disk, Event, Job, JobDone, LinkKind, Now, Opened, Turn
from tandemq.broker.kernel.context import Machine
from tandemq.broker.node import Broker
from tandemq.codec.record.record import decode_messages
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.account_files import AccountFiles
from tandemq.config.settings import BrokerConfig, parse_delay_levels
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tandemq.model.message import StoredMessage, encode_properties
from tandemq.real.disk import RealDisk
from tandemq.replication.authentication import Keyring
from tests.request_fields import pull_fields, topic_fields

CLIENT = 1
"""The connection that helpers use by default; open from the start."""
ADDRESS = "127.0.0.1:10911"
HA_ADDRESS = "127.0.0.1:10912"
START_WALL_MS = 1_700_000_000_000
SUSPEND = 2
SUBSCRIPTION = 4


class FakeOutbox:
    """Number of unsent bytes per connection, and the time that each look at the clock takes, set by the test."""

    def __init__(self) -> None:
        self.waiting: dict[int, int] = {}
        self.elapsed = 0
        self.look_us = 0

    def backlog(self, link: int) -> int:
        return self.waiting.get(link, 0)

    def elapsed_us(self) -> int:
        self.elapsed += self.look_us
        return self.elapsed


class Harness:
    """One broker, and the peers of its connections."""

    def __init__(
        self,
        path: Path | Disk,
        config: BrokerConfig | None = None,
        *,
        machine: Machine | None = None,
        seed: int = 1,
        now: Now | None = None,
        accept_loss: bool = False,
        keyring: Keyring | None = None,
        account_files: AccountFiles | None = None,
        address: str = ADDRESS,
        ha_address: str = HA_ADDRESS,
        **changes: Any,
    ) -> None:
        """Start a broker with connection 1 (`CLIENT`) open; `changes` go to `config.tiny` unless `config` is given."""
        self.now = now or Now(1_000, START_WALL_MS)
        self.disk = RealDisk(path) if isinstance(path, Path) else path
        self.outbox = FakeOutbox()
        self.config = config or tiny(**changes)
        self.node = Broker(
            self.config,
            self.disk,
            self.outbox,
            Random(seed),
            machine or Machine("boot-1", 8 << 30),
            self.now,
            parse_delay_levels(self.config.delay_levels),
            accept_loss=accept_loss,
            keyring=keyring,
            account_files=account_files,
        )
        self.inbox: dict[int, list[Command]] = defaultdict(list)
        self.bytes_out: dict[int, bytearray] = defaultdict(bytearray)
        self.connects: list[Connect] = []
        self.closes: list[tuple[int, str]] = []
        self.jobs: list[Job] = []
        """Jobs that have not run yet; only used when `run_jobs` is False."""
        self.run_jobs = True
        self._decoders: dict[int, FrameDecoder] = {}
        self._kinds: dict[int, LinkKind] = {}
        self._opaque = 0
        self.node.listening(address, ha_address, self.now)
        self.open(CLIENT)

    # Turns.

    def turn(self, received: Sequence[tuple[int, bytes]] = (), events: Sequence[Event] = ()) -> Turn:
        """Run one turn, and one more for each job that it starts."""
        self.outbox.elapsed = 0
        turn = self.node.turn(received, events, self.now)
        self._take(turn)
        jobs = list(turn.jobs)
        if not self.run_jobs:
            self.jobs += jobs
            return turn
        while jobs:
            after = self.node.turn([], [run_job(jobs.pop(0))], self.now)
            self._take(after)
            jobs += after.jobs
        return turn

    def _take(self, turn: Turn) -> None:
        for link, buffers in turn.sends.items():
            data = b"".join(buffers)
            if self._kinds.get(link) in (LinkKind.HA_MASTER, LinkKind.HA_SLAVE):
                self.bytes_out[link] += data
                continue
            decoder = self._decoders.setdefault(link, FrameDecoder())
            self.inbox[link] += [decode_command(frame) for frame in decoder.feed(data)]
            assert decoder.error is None, decoder.error
        self.closes += turn.closes
        self.connects += turn.connects
        for connect in turn.connects:
            self._kinds[connect.link] = connect.kind

    def open(self, link: int, kind: LinkKind = LinkKind.REMOTING, peer: str = "") -> Turn:
        """Open a connection; the default peer is 10.0.0.1, with a port derived from its id."""
        self._kinds[link] = kind
        return self.turn([], [Opened(link, kind, peer or f"10.0.0.1:{30_000 + link}")])

    def close(self, link: int, reason: str = "the peer closed it") -> Turn:
        """Close a connection."""
        return self.turn([], [Closed(link, reason)])

    def pass_time(self, ms: int) -> None:
        """Advance both clocks, with a turn at each deadline of the broker."""
        end = self.now.mono_ms + ms
        while (due := self.node.deadline_ms()) is not None and due <= end:
            self._move(max(due, self.now.mono_ms))
            before = (self.now.mono_ms, due)
            self.turn()
            assert (self.now.mono_ms, self.node.deadline_ms()) != before, "a deadline stays after its turn"
        self._move(end)

    def _move(self, mono_ms: int) -> None:
        step = mono_ms - self.now.mono_ms
        self.now = Now(self.now.mono_ms + step, self.now.wall_ms + step)

    # Requests.

    def ask(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        link: int = CLIENT,
        **header: Any,
    ) -> Command:
        """Send a request and return the response of the same turn; `header`: language, version, binary."""
        opaque = self.send_request(code, fields, body, link=link, **header)
        answer = self.answer_to(opaque, link=link)
        assert answer is not None, f"no response to {code} yet"
        return answer

    def send_request(
        self,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        link: int = CLIENT,
        is_oneway: bool = False,
        **header: Any,
    ) -> int:
        """Send a request and return its opaque. A connection that the broker has closed is opened again."""
        known = self.node.links.get(link)
        if known is not None and known.is_closed:
            self.close(link)
            self.open(link, known.kind)
        self._opaque += 1
        texts = {key: _text(value) for key, value in (fields or {}).items()}
        flag = FLAG_ONEWAY if is_oneway else 0
        command = Command(code, self._opaque, flag, fields=texts, body=body, **({"language": "JAVA"} | header))
        self.turn([(link, encode_command(command))])
        return self._opaque

    def answer_to(self, opaque: int, *, link: int = CLIENT) -> Command | None:
        """Remove the response to a request from the inbox and return it; None if it has not come."""
        for command in self.inbox[link]:
            if command.is_response and command.opaque == opaque:
                self.inbox[link].remove(command)
                return command
        return None

    def take_requests(self, code: int, *, link: int = CLIENT) -> list[Command]:
        """Remove the broker's own requests with a code from the inbox and return them."""
        found = [command for command in self.inbox[link] if not command.is_response and command.code == code]
        self.inbox[link] = [command for command in self.inbox[link] if command not in found]
        return found

    def reply(
        self,
        request: Command,
        *,
        link: int = CLIENT,
        code: int = ResponseCode.SUCCESS,
        body: bytes = b"",
        remark: str | None = None,
    ) -> Turn:
        """Respond to a request of the broker."""
        answer = Command(code, request.opaque, FLAG_RESPONSE, remark, {}, body)
        return self.turn([(link, encode_command(answer))])

    def json(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **header: Any) -> Any:
        """Send a request that must succeed; return its decoded body."""
        answer = self.ask(code, fields, body, **header)
        assert answer.code == ResponseCode.SUCCESS, f"{answer.code} {answer.remark}"
        return loads(answer.body)

    # Requests of clients.

    def send(
        self, topic: str, body: bytes = b"body", *, queue_id: int = 0, link: int = CLIENT, **properties: str
    ) -> Command:
        """Send one message as a Java client; `properties` by their names: TAGS, KEYS, DELAY …"""
        return self.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body, link=link)

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic as an operator."""
        answer = self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, queues))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def pull(
        self,
        topic: str,
        queue_offset: int = 0,
        *,
        queue_id: int = 0,
        group: str = "group",
        expression: str = "*",
        most: int = 32,
        link: int = CLIENT,
        wait_ms: int = 0,
        commit: int | None = None,
        kind: str = "TAG",
    ) -> Command | None:
        """Pull with the subscription in the request; None if the broker holds it (`wait_ms` above 0)."""
        flags = SUBSCRIPTION | (SUSPEND if wait_ms else 0) | (0 if commit is None else 1)
        fields = pull_fields(
            topic,
            queue_offset,
            consumerGroup=group,
            queueId=queue_id,
            maxMsgNums=most,
            sysFlag=flags,
            commitOffset=commit or 0,
            suspendTimeoutMillis=wait_ms,
            subscription=expression,
            expressionType=kind,
        )
        return self.answer_to(self.send_request(RequestCode.PULL_MESSAGE, fields, link=link), link=link)

    def commit(self, offset: int, *, topic: str = "TopicA", queue_id: int = 0, group: str = "group") -> None:
        """Commit the offset of a consumer group; it must be accepted."""
        queue = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": offset})
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    def committed(self, *, topic: str = "TopicA", queue_id: int = 0, group: str = "group") -> int:
        """Return the committed offset of a consumer group, as the broker reports it."""
        queue = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        answer = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.fields["offset"])

    def heartbeat(
        self,
        group: str,
        subscriptions: Mapping[str, str] | None = None,
        *,
        client_id: str = "client-1",
        link: int = CLIENT,
        producers: Sequence[str] = (),
        language: str = "JAVA",
        version: int = 409,
        kind: str | None = None,
        consume_type: str = "CONSUME_PASSIVELY",
    ) -> Command:
        """Send a client's heartbeat; `group` "" for a producer only; `kind`: of the expressions, except those of
        retry topics, which are tags; None for tags."""
        consumer = {
            "groupName": group,
            "consumeType": consume_type,
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "unitMode": False,
            "subscriptionDataSet": [
                {
                    "topic": topic,
                    "subString": text,
                    "subVersion": self.now.wall_ms,
                    "tagsSet": [],
                    "codeSet": [],
                    "expressionType": None if topic.startswith("%RETRY%") else kind,
                }
                for topic, text in (subscriptions or {}).items()
            ],
        }
        beat = {
            "clientID": client_id,
            "consumerDataSet": [consumer] if group else [],
            "producerDataSet": [{"groupName": name} for name in producers],
        }
        return self.ask(RequestCode.HEART_BEAT, None, dumps(beat), link=link, language=language, version=version)

    def restart(self, *, clean: bool = True, **changes: Any) -> "Harness":
        """Start another broker on the same disk, after a clean stop or as after a kill of the process."""
        if clean:
            self.node.close()
        config = tiny(**changes) if changes else self.config
        return Harness(self.disk, config, now=self.now)


def run_job(job: Job) -> JobDone:
    """Run a job at once."""
    try:
        return JobDone(job, job.run())
    except StoreError as error:
        return JobDone(job, error=error)


def send_fields(topic: str, queue_id: int = 0, properties: Mapping[str, str] | None = None) -> dict[str, object]:
    """Return the header fields of SEND_MESSAGE_V2."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue_id,
        "f": 0,
        "g": START_WALL_MS,
        "h": 0,
        "i": encode_properties(dict(properties or {})),
        "j": 0,
        "k": "false",
        "m": "false",
    }


def messages_in(answer: Command) -> list[StoredMessage]:
    """Decode the messages of a response to a pull or a query."""
    return decode_messages(answer.body)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
