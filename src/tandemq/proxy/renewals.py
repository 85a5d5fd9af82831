"""Handles of messages that push consumers work on, which the proxy keeps from expiring.

    keep ─► every RENEW_EVERY_MS: ends within RENEW_BEFORE_MS? ─► another invisible time at the broker ─► its new handle
              └► acknowledged, returned, forwarded: forgotten    └► client gone: returned

A client knows only the handle that it got with the message; `current` returns the newest one.

Invariants: a client has at most `HANDLES_MAX` of them, further ones are not renewed; a message is renewed for
`KEPT_MS_MAX` at most, then it comes back.

Source: docs/reference/grpc.md; RocketMQ DefaultReceiptHandleManager.
"""

import logging

import msgspec

from tandemq.boundary import Now
from tandemq.client.core.operations import Invoke, OperationRunner, Steps, ask_all
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.proxy.handles import Receipt, change_request, changed_receipt

log = logging.getLogger(__name__)
RENEW_EVERY_MS = 5_000
RENEW_BEFORE_MS = 15_000
KEPT_MS_MAX = 3 * 3_600_000
HANDLES_MAX = 100_000
FAILURES_MAX = 3
RETURN_MS = 1_000
INVISIBLE_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
"""Invisible time of each renewal of a message."""


class _Held(msgspec.Struct, eq=False):
    """A message that a client works on."""

    group: str
    topic: str
    receipt: Receipt
    since_ms: int
    renewals: int = 0
    failures: int = 0
    is_asked: bool = False
    """Whether a renewal is in flight."""


class Renewals:
    """All handles that the proxy renews, by client and by the text that the client knows."""

    def __init__(self, routes: Routes, runner: OperationRunner) -> None:
        """None yet."""
        self._routes = routes
        self._runner = runner
        self._clients: dict[str, dict[str, _Held]] = {}

    def keep(self, client_id: str, group: str, topic: str, receipt: Receipt, now: Now) -> None:
        """Renew a handle until it is forgotten."""
        held = self._clients.setdefault(client_id, {})
        if len(held) < HANDLES_MAX:
            held[str(receipt)] = _Held(group, topic, receipt, now.mono_ms)

    def current(self, client_id: str, receipt: Receipt) -> Receipt:
        """Return the newest handle of a message."""
        found = self._clients.get(client_id, {}).get(str(receipt))
        return receipt if found is None else found.receipt

    def forget(self, client_id: str, receipt: Receipt) -> None:
        """Renew a handle no longer; `receipt`: that which the client knows."""
        held = self._clients.get(client_id)
        if held is not None:
            held.pop(str(receipt), None)
            if not held:
                del self._clients[client_id]

    @property
    def count(self) -> int:
        """Number of handles."""
        return sum(map(len, self._clients.values()))

    def client_gone(self, client_id: str, now: Now) -> None:
        """Have the messages of a client delivered to others soon."""
        held = self._clients.pop(client_id, None)
        if held:
            log.info("client %s has gone with %d messages, which are returned", client_id, len(held))
            self._runner.start(self._change(list(held.values()), RETURN_MS), now)

    def renew(self, now: Now) -> None:
        """Renew the handles that end soon; to be called every `RENEW_EVERY_MS`."""
        for client_id, held in list(self._clients.items()):
            due = []
            for text, each in list(held.items()):
                left_ms = each.receipt.handle.revive_ms - now.wall_ms
                if each.is_asked or left_ms > RENEW_BEFORE_MS:
                    continue
                if left_ms <= 0 or each.failures >= FAILURES_MAX or now.mono_ms - each.since_ms > KEPT_MS_MAX:
                    del held[text]
                else:
                    due.append(each)
            if not held:
                del self._clients[client_id]
            by_time: dict[int, list[_Held]] = {}
            for each in due:
                each.is_asked = True
                invisible_ms = INVISIBLE_MS[min(each.renewals, len(INVISIBLE_MS) - 1)]
                by_time.setdefault(invisible_ms, []).append(each)
            for invisible_ms, some in by_time.items():
                self._runner.start(self._change(some, invisible_ms), now)

    def _change(self, held: list[_Held], invisible_ms: int) -> Steps[None]:
        asks: list[Invoke] = []
        asked: list[_Held] = []
        for each in held:
            address = self._routes.members(each.receipt.handle.broker).get(MASTER_ID)
            if address is None:
                each.failures += 1
                each.is_asked = False
                continue
            asked.append(each)
            asks.append(Invoke(address, change_request(each.receipt, each.group, each.topic, invisible_ms)))
        for each, answer in zip(asked, (yield from ask_all(asks)), strict=True):
            each.is_asked = False
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                try:
                    each.receipt = changed_receipt(each.receipt, answer)
                except TandemError as error:
                    log.warning("renewal: %s", error)
                    each.failures += 1
                else:
                    each.renewals += 1
                    each.failures = 0
            else:
                each.failures += 1
