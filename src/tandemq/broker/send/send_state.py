"""What all paths of sends share: settings, collaborators, reasons to refuse, messages to store, and answers.

`SendPath` is this state with the paths on top of it; the paths take it in their constructors.
"""

from struct import pack

import msgspec

from tandemq.broker.connections.connection import Link
from tandemq.broker.send.dead_letters import DeadLetters
from tandemq.broker.state.topics import Topics
from tandemq.codec.record.layout import Layouts
from tandemq.codec.remoting.send_header import SendHeaders
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import ResponseCode
from tandemq.model.command import VERSION_SPOKEN
from tandemq.model.topic import Permission
from tandemq.storage.log.message_rows import MessageRow
from tandemq.storage.store import Store

PLAIN_PROPERTIES_BYTES_MAX = 8000
KEY_BYTES_MAX = 64
LEARNED_MAX = 64
"""Maximum number of header patterns made for one connection."""
UNUSUAL_FLAGS = 0xC | 0xF0
"""Bits of sysFlag that only the decoded path handles: transactions and IPv6 hosts."""
_ANSWER = (
    '{"code":0,"extFields":{"MSG_REGION":"REGION","TRACE_ON":"true","msgId":"HOST%016X","queueId":"%d","queueOffset":"%d"'
    ',"transactionId":"%b"},"flag":1,"language":"PYTHON","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":VERSION}'
)
_BATCH_ANSWER = (
    '{"code":0,"extFields":{"MSG_REGION":@REGION,"TRACE_ON":"true","msgId":"%b","queueId":"%d","queueOffset":"%d"@KEY},'
    '"flag":1,"language":"PYTHON","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":@VERSION}'
)
_ANSWER_GROWTH = 64 + KEY_BYTES_MAX
"""Maximum number of bytes that numbers, host and key add to the template of an answer."""
_WRITE = int(Permission.WRITE)


Ack = tuple[int, bytes | None, int, bool, int]
"""Responses of one connection that wait for the log: link, frames, log offset, waits, messages.

The frames say SUCCESS; None or empty for one-way sends. They may be sent when the log is safe up to the log offset; 0:
nothing was stored, at once. `waits`: whether flush and replicas count as safe. `messages`: how many they acknowledge. A
plain tuple, since one is made per connection and turn.
"""


class SendState:
    """State shared by the paths of sends."""

    def __init__(self, config: BrokerConfig, store: Store, topics: Topics, store_host: bytes) -> None:
        """Take the collaborators; `store_host` is this broker's advertised address in the form of records."""
        self.store = store
        self.topics = topics
        self.adopt_config(config)
        self.cluster = f"CLUSTER\x01{config.cluster}\x02".encode()
        self.layouts = Layouts(self.cluster)
        """Property layouts of single messages."""
        self.part_layouts = Layouts(self.cluster, drops=b"")
        """The same of messages within batches: RocketMQ stores their properties unchanged, WAIT included."""
        self.headers = SendHeaders()
        self.rows: list[MessageRow] = []
        """Ordinary messages that are accepted but not yet stored, of all connections."""
        self.acks: list[Ack] = []
        """Responses to this turn's sends, in the order of the log; the owner sends them and clears the list."""
        self._refusals: dict[str, tuple[ResponseCode, str]] = {}
        self.refusal: tuple[ResponseCode, str] | None = None
        """Code and remark with which all sends are refused at present, the oldest of several; None: accepted."""
        self.count = 0
        """Messages accepted since the start."""
        self.bytes = 0
        """Bytes of their bodies."""
        self.dead_letters = DeadLetters()
        self.set_store_host(store_host)

    def set_store_host(self, store_host: bytes) -> None:
        """Set this broker's advertised address, in the form of records, once it is known."""
        self.store_host = store_host
        self.is_v4 = len(store_host) == 8
        self.message_id = store_host.hex().upper() + "%016X"
        """Template of a message's offset id, by its log offset."""
        answer = _ANSWER.replace('"REGION"', f'"{self.config.region.replace("%", "%%")}"')
        self.answer = answer.replace("HOST", store_host.hex().upper()).replace("VERSION", str(VERSION_SPOKEN)).encode()
        """Template of the response header: log offset, queue id, queue offset, unique key, opaque."""
        self.prefixes = [pack(">II", length + 4, length) for length in range(len(answer) + _ANSWER_GROWTH)]
        """Frame and header lengths of a response without a body, by the length of its header."""
        text = _BATCH_ANSWER.replace("@REGION", msgspec.json.encode(self.config.region).decode().replace("%", "%%"))
        text = text.replace("@VERSION", str(VERSION_SPOKEN))
        self.batch_answers = text.replace("@KEY", "").encode(), text.replace("@KEY", ',"transactionId":"%b"').encode()
        """Templates of the response header to a batch without and with a unique key of its own: message ids, queue id,
        offset of the first message, key, opaque."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self.config = config
        segment_bytes = self.store.config.segment_bytes
        self.body_bytes_max = min(config.message_bytes_max, segment_bytes // 2)
        """Maximum body of an ordinary message; its record then fits into a segment file in any case."""
        self.properties_bytes_max = min(PLAIN_PROPERTIES_BYTES_MAX, segment_bytes // 4)

    def refuse(self, reason: str, remark: str, code: ResponseCode = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
        """Refuse all sends for a reason, such as "disk full", until `admit` withdraws that reason."""
        self._refusals[reason] = (code, remark)
        self.refusal = next(iter(self._refusals.values()))

    def admit(self, reason: str) -> None:
        """Withdraw a reason to refuse; no effect if it was not given."""
        self._refusals.pop(reason, None)
        self.refusal = next(iter(self._refusals.values()), None)

    def admits_ordinary(self, link: Link) -> bool:
        """Return whether messages of a connection may be stored without decoding each of them."""
        return self.refusal is None and link.is_v4 and self.is_v4 and self.config.permission & _WRITE != 0
