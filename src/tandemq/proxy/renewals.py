"""Handles of messages that push consumers work on, which the proxy keeps from expiring.

    keep ─► every RENEW_EVERY_MS: ends within RENEW_BEFORE_MS? ─► another invisible time at the broker ─► its new handle
              └► claimed by an acknowledgement …: not renewed    └► client gone: returned

A client knows only the handle that it got with the message; the newest one counts. So a request that ends a message
claims it: it waits for a renewal in flight, and no renewal begins before it has failed. Otherwise the renewal would
bring back what the client has acknowledged.

Invariants: a client has at most `HANDLES_MAX` of them, further ones are not renewed; a message is renewed for
`KEPT_MS_MAX` at most, then it comes back.

Source: docs/reference/grpc.md; RocketMQ DefaultReceiptHandleManager.
"""

import logging
from collections.abc import Iterable

import msgspec

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import Invoke, OperationRunner, Steps, ask_all, pause, wait
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
"""Invisible time of a message that is returned."""
RETURN_AGAIN_MS = 1_000
"""Pause before a return that failed is tried again."""
RETURNS_MAX = 10
"""Maximum number of attempts to return a message; then it comes back when its time is over."""
INVISIBLE_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)
"""Invisible time of each renewal of a message."""


class Held(msgspec.Struct, eq=False):
    """A message that a client works on, or has worked on."""

    group: str
    topic: str
    receipt: Receipt
    """The newest one."""
    since_ms: int
    renewals: int = 0
    failures: int = 0
    is_asked: bool = False
    """Whether a renewal is in flight."""
    claims: int = 0
    """Number of requests in progress that may end it."""
    is_left: bool = False
    """Whether its client has gone, or did not get it."""
    waiting: list[Ticket[None]] = []
    """Settled when the renewal in flight has ended."""


class Renewals:
    """All handles that the proxy renews, by client and by the one that the client knows."""

    def __init__(self, routes: Routes, runner: OperationRunner) -> None:
        """None yet."""
        self._routes = routes
        self._runner = runner
        self._clients: dict[str, dict[Receipt, Held]] = {}

    def keep(self, client_id: str, group: str, topic: str, receipt: Receipt, now: Now) -> None:
        """Renew a handle until its message is ended."""
        held = self._clients.setdefault(client_id, {})
        if len(held) < HANDLES_MAX:
            held[receipt] = Held(group, topic, receipt, now.mono_ms)

    @property
    def count(self) -> int:
        """Number of handles."""
        return sum(map(len, self._clients.values()))

    # Requests that end messages.

    def claim(self, client_id: str, group: str, topic: str, receipt: Receipt) -> Held:
        """Return a message, for a request that ends it; it is not renewed until `release`.

        Its handle is the newest one unless it `is_asked`: then wait for `renewed` first.

        Args:
            client_id: of the client.
            group: of the client.
            topic: of the message.
            receipt: that which the client knows.
        """
        held = self._clients.get(client_id, {}).get(receipt) or Held(group, topic, receipt, 0)
        held.claims += 1
        return held

    def renewed(self, held: Held) -> Steps[None]:
        """Wait until the renewal of a message that is in flight has ended."""
        ended: Ticket[None] = Ticket()
        held.waiting.append(ended)
        yield from wait(ended)

    def release(self, held: Held, now: Now) -> None:
        """Renew a claimed message again: the request that was to end it has failed."""
        held.claims -= 1
        if held.is_left and not held.claims:
            self._runner.start(self._return([held]), now)

    def end(self, client_id: str, receipt: Receipt) -> None:
        """Forget a claimed message, whose claim lasts. `receipt`: that which the client knows."""
        held = self._clients.get(client_id)
        if held is not None:
            held.pop(receipt, None)
            if not held:
                del self._clients[client_id]

    # Clients that do not end their messages.

    def client_gone(self, client_id: str, now: Now) -> None:
        """Have the messages of a client delivered to others soon."""
        held = self._clients.pop(client_id, None)
        if held:
            log.info("client %.200s has gone with %d messages, which are returned", client_id, len(held))
            self._leave(held.values(), now)

    def not_delivered(
        self, client_id: str, group: str, topic: str, receipts: Iterable[Receipt], now: Now, *, is_renewed: bool
    ) -> None:
        """Have messages that a client did not get delivered to others soon.

        Args:
            client_id: of the client.
            group: of the client.
            topic: of the messages.
            receipts: those with which the messages were sent.
            now: the time.
            is_renewed: whether they were kept; those that are not any more, the client did get, and has ended.
        """
        if not is_renewed:
            self._leave([Held(group, topic, receipt, now.mono_ms) for receipt in receipts], now)
            return
        held = self._clients.get(client_id, {})
        found = [held.pop(receipt) for receipt in receipts if receipt in held]
        if not held:
            self._clients.pop(client_id, None)
        self._leave(found, now)

    def _leave(self, held: Iterable[Held], now: Now) -> None:
        """Return messages; those for which requests are in flight, when these have ended."""
        free = []
        for each in held:
            each.is_left = True
            if not each.is_asked and not each.claims:
                free.append(each)
        if free:
            self._runner.start(self._return(free), now)

    def _return(self, held: list[Held]) -> Steps[None]:
        for _ in range(RETURNS_MAX):
            held = yield from self._change(held, RETURN_MS)
            if not held:
                return
            yield from pause(RETURN_AGAIN_MS)
        log.warning("%d messages cannot be returned, they come back when their time is over", len(held))

    # Renewal.

    def renew(self, now: Now) -> None:
        """Renew the handles that end soon; to be called every `RENEW_EVERY_MS`."""
        by_time: dict[int, list[Held]] = {}
        for client_id, held in list(self._clients.items()):
            for text, each in list(held.items()):
                left_ms = each.receipt.handle.revive_ms - now.wall_ms
                if each.is_asked or each.claims or left_ms > RENEW_BEFORE_MS:
                    continue
                if left_ms <= 0 or each.failures >= FAILURES_MAX or now.mono_ms - each.since_ms > KEPT_MS_MAX:
                    del held[text]
                    continue
                each.is_asked = True
                invisible_ms = INVISIBLE_MS[min(each.renewals, len(INVISIBLE_MS) - 1)]
                by_time.setdefault(invisible_ms, []).append(each)
            if not held:
                del self._clients[client_id]
        for invisible_ms, some in by_time.items():
            self._runner.start(self._renew(some, invisible_ms), now)

    def _renew(self, held: list[Held], invisible_ms: int) -> Steps[None]:
        failed = set((yield from self._change(held, invisible_ms)))
        for each in held:
            each.is_asked = False
            if each in failed:
                each.failures += 1
            else:
                each.renewals += 1
                each.failures = 0
            waiting, each.waiting = each.waiting, []
            for ticket in waiting:
                ticket.settle(None)
        yield from self._return([each for each in held if each.is_left and not each.claims])

    def _change(self, held: list[Held], invisible_ms: int) -> Steps[list[Held]]:
        """Change when messages come back; return those for which it failed."""
        failed: list[Held] = []
        asked: list[Held] = []
        asks: list[Invoke] = []
        for each in held:
            address = self._routes.members(each.receipt.handle.broker).get(MASTER_ID)
            if address is None:
                failed.append(each)
            else:
                asked.append(each)
                asks.append(Invoke(address, change_request(each.receipt, each.group, each.topic, invisible_ms)))
        for each, answer in zip(asked, (yield from ask_all(asks)), strict=True):
            if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
                try:
                    each.receipt = changed_receipt(each.receipt, answer)
                except TandemError as error:
                    log.warning("changed invisible time: %s", error)
                    failed.append(each)
            elif isinstance(answer, TandemError) or answer.code != ResponseCode.NO_MESSAGE:
                failed.append(each)
        return failed
