"""Requests about older segments, which are in other brokers: their addresses, and the requests themselves.

Addresses come from the route of the topic. They are asked for again after `ADDRESS_MS`, and when a broker does not
answer or refuses: another member of its group may be the master now.

Limits: `FORWARDED_MAX` requests at a time, so that slow brokers do not fill this one's memory.
"""

from functools import partial
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.peers import OnAnswer
from tandemq.broker.kernel.topic_routes import TopicRoutes, master_of
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

FORWARD_TIMEOUT_MS = 3_000
ADDRESS_MS = 30_000
FORWARDED_MAX = 256
_MOVED_ON = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    }
)
"""Refusals after which the address is asked for again."""


class _Address(NamedTuple):
    text: str
    until_ms: int


class Forwarding:
    """Requests to other brokers of the same static topics."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without addresses."""
        self._peers = kernel.peers
        self._turn = kernel.turn
        self.routes = TopicRoutes(kernel)
        self._addresses: dict[str, _Address] = {}
        """Masters by broker name."""
        self._in_flight = 0

    @property
    def is_full(self) -> bool:
        """Whether no further request may be forwarded at present."""
        return self._in_flight >= FORWARDED_MAX

    def call(self, topic: str, broker: str, command: Command, on_answer: OnAnswer, now: Now) -> None:
        """Send a request to a broker that has the topic; `on_answer` gets None if it cannot be reached."""
        if self.is_full:
            on_answer(None, now)
            return
        self._in_flight += 1
        ended = partial(self._ended, broker, on_answer)
        known = self._addresses.get(broker)
        if known is not None and now.mono_ms < known.until_ms:
            self._send(known.text, command, ended, now)
            return

        def found(route: dict[str, Any] | None, now: Now) -> None:
            address = master_of(route, broker)
            if address is None:
                ended(None, now)
            else:
                self._addresses[broker] = _Address(address, now.mono_ms + ADDRESS_MS)
                self._send(address, command, ended, now)

        self.routes.route(topic, found, now)

    def _send(self, address: str, command: Command, on_answer: OnAnswer, now: Now) -> None:
        self._peers.call(address, command, FORWARD_TIMEOUT_MS, on_answer, self._turn.out, now)

    def _ended(self, broker: str, on_answer: OnAnswer, answer: Command | None, now: Now) -> None:
        self._in_flight -= 1
        if answer is None or answer.code in _MOVED_ON:
            self._addresses.pop(broker, None)
        on_answer(answer, now)
