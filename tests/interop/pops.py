"""A POP consumer that asks a broker of any kind for exactly what a test wants to know."""

from __future__ import annotations

from typing import NamedTuple

from lab.pops import handle_of
from tandemq.codec.record.record import decode_messages
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.message import StoredMessage
from tandemq.model.pop import Handle, pop_retry_topic
from tests.interop.java import wait_until
from tests.interop.wire import Frame, ask


class Taken(NamedTuple):
    """A popped message, and its handle."""

    message: StoredMessage
    handle: Handle
    answer: dict[str, str]
    """Fields of the response that it came with."""

    @property
    def text(self) -> str:
        """Its body."""
        return self.message.body.decode()


class Popper:
    """The pops of a group at one broker, each on a connection of its own."""

    def __init__(self, port: int, topic: str, group: str, broker: str = "broker-a") -> None:
        self.port = port
        self.topic = topic
        self.group = group
        self.broker = broker

    def ask(self, **changes: object) -> Frame:
        """Pop; return the response."""
        fields: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "exp": "*",
            "expType": "TAG",
            "order": "false",
        }
        texts = {name: str(value) for name, value in (fields | changes).items()}
        return ask(self.port, RequestCode.POP_MESSAGE, texts, version=479)

    def pop(self, **changes: object) -> list[Taken]:
        """Pop messages; an empty list if there are none."""
        answer = self.ask(**changes)
        header = answer.fields
        if header["code"] == ResponseCode.POLLING_TIMEOUT:
            return []
        assert header["code"] == ResponseCode.SUCCESS, header
        fields = header["extFields"]
        return [Taken(m, handle_of(m, fields, self.broker), fields) for m in decode_messages(answer.body)]

    def await_messages(self, count: int, within_s: float = 60, **changes: object) -> list[Taken]:
        """Pop until so many messages came."""
        found: list[Taken] = []

        def came() -> bool:
            found.extend(self.pop(**changes))
            return len(found) >= count

        wait_until(came, what=f"{count} messages popped", within_s=within_s, every_s=0.3)
        return found

    def ack(self, taken: Taken, **changes: object) -> int:
        """Acknowledge a message; return the code of the response."""
        return self._ask_about(RequestCode.ACK_MESSAGE, taken, changes)

    def change_time(self, taken: Taken, invisible_ms: int, **changes: object) -> int:
        """Change when a message comes back; return the code of the response."""
        more = changes | {"invisibleTime": invisible_ms}
        return self._ask_about(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, taken, more)

    def _ask_about(self, code: int, taken: Taken, changes: dict[str, object]) -> int:
        handle = taken.handle
        fields: dict[str, object] = {
            "consumerGroup": self.group,
            "topic": pop_retry_topic(self.group, self.topic, handle.kind),
            "queueId": handle.queue_id,
            "extraInfo": handle,
            "offset": handle.offset,
        }
        texts = {name: str(value) for name, value in (fields | changes).items()}
        found: int = ask(self.port, code, texts, version=479).fields["code"]
        return found
