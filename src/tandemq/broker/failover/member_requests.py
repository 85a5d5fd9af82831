"""What one member of a group asks another, proven with the secret of replication, both ways.

    caller                                                     asked
    TANDEM_CHALLENGE                              ───────────►
                                                  ◄───────────  a nonce, good for one request on this connection
    request, both nonces, proof over all of it    ───────────►  wrong or missing: refused, counted, logged
      wrong or missing: no answer                 ◄───────────  answer, proof over it and the request's proof

Without a secret (`Broker.keyring` None) requests travel as they are and are taken from anybody. With one these are
refused without a proof: what changes state for the group, and what is for members alone (`PROVEN`). Operators' orders
and what Java asks are not among them.

A nonce is forgotten when it is used, so that a recording proves nothing; at most `NONCES_MAX` wait per connection.
Owner: the node. Source: docs/internals/ha.md 11; decision 0009; requirement H24.
"""

import logging
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.connections.connection import Link
from tandemq.broker.connections.outbound import OnAnswer
from tandemq.codec import proofs
from tandemq.codec.proofs import NONCE_BYTES, Keyring, Roles
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief

if TYPE_CHECKING:
    from tandemq.broker.context import Handler
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
PROVEN = frozenset({Code.TANDEM_LOG_RECORDS, Code.TANDEM_LOG_SUSPECT, Code.TANDEM_HAND_OFFSETS})
"""Requests of members only."""
NONCES_MAX = 8
NONCE, CHALLENGE, PROOF = proofs.NONCE, proofs.CHALLENGE, proofs.PROOF
_ROLES = Roles(b"tandemq-call-1 member asks", b"tandemq-call-1 member answers")
_request_proof = partial(proofs.request_proof, _ROLES)
_answer_proof = partial(proofs.answer_proof, _ROLES)
_secret_of = partial(proofs.secret_of, _ROLES)
_is_of, _text, _bytes = proofs.carries, proofs.to_text, proofs.from_text


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    return {Code.TANDEM_CHALLENGE: _Guard(broker).challenge}


def guarded(broker: "Broker", code: Code, handler: "Handler") -> "Handler":
    """The handler of a code, behind a check of the proof where there has to be one."""
    if broker.keyring is None or code not in PROVEN:
        return handler
    return partial(_Guard(broker).check, handler)


def call(
    broker: "Broker", address: str, command: Command, timeout_ms: int, on_answer: OnAnswer, turn: Turn, now: Now
) -> None:
    """Ask another member, "ip:port", as `Peers.call` does; an answer that is not proven is none."""
    if broker.keyring is None:
        broker.peers.call(address, command, timeout_ms, on_answer, turn, now)
        return
    asking = _Asking(broker, broker.keyring, address, command, now.mono_ms + timeout_ms, on_answer)
    broker.peers.call(address, Command(Code.TANDEM_CHALLENGE), timeout_ms, asking.challenged, turn, now)


def sealed(broker: "Broker", request: Command, answer: Command) -> Command:
    """The answer to a member, proven if its request was."""
    secret = None if broker.keyring is None else _secret_of(broker.keyring, request)
    if secret is not None:
        answer.fields = {**answer.fields, PROOF: _text(_answer_proof(secret, request, answer))}
    return answer


class _Asking(NamedTuple):
    """One request under way."""

    broker: "Broker"
    keyring: Keyring
    address: str
    command: Command
    until_ms: int
    on_answer: OnAnswer

    def challenged(self, answer: Command | None, now: Now) -> None:
        """The other side told its nonce: ask what was to be asked."""
        nonce = None if answer is None else _bytes(answer.fields.get(CHALLENGE, ""))
        if nonce is None or len(nonce) != NONCE_BYTES or now.mono_ms >= self.until_ms:
            if answer is not None:
                self._unproven(answer, now)
            self.on_answer(None, now)
            return
        secret, command = self.keyring.secrets()[0], self.command
        command.fields = {**command.fields, CHALLENGE: _text(nonce), NONCE: _text(self.keyring.nonce())}
        command.fields[PROOF] = _text(_request_proof(secret, command))

        def answered(answer: Command | None, at: Now) -> None:
            if answer is not None and not _is_of(answer, _answer_proof(secret, command, answer)):
                self._unproven(answer, at)
                answer = None
            self.on_answer(answer, at)

        self.broker.peers.call(self.address, command, self.until_ms - now.mono_ms, answered, self.broker.turn_out, now)

    def _unproven(self, answer: Command, now: Now) -> None:
        times = self.broker.replication.unproven.note(self.address, now.mono_ms)
        if times:
            log.warning(
                "member: %s does not prove that it knows haSecretFile: no answer times=%d code=%d %s",
                self.address,
                times,
                answer.code,
                brief(answer.remark or ""),
            )


class _Guard:
    """The side that is asked."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def challenge(self, link: Link, command: Command, _now: Now) -> Command | None:
        """A nonce for the next request of this connection; none where no proof is asked for."""
        keyring = self._broker.keyring
        if keyring is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this broker has no haSecretFile")
        nonce = keyring.nonce()
        link.nonces = [*link.nonces, nonce][-NONCES_MAX:]
        return command.answer(ResponseCode.SUCCESS, fields={CHALLENGE: _text(nonce)})

    def check(self, handler: "Handler", link: Link, command: Command, now: Now) -> Command | None:
        """Have a request answered if a member made it, for this connection and now."""
        keyring, nonce = self._broker.keyring, _bytes(command.fields.get(CHALLENGE, ""))
        assert keyring is not None, "there are proofs"
        is_fresh = nonce in link.nonces
        if is_fresh:
            link.nonces = [other for other in link.nonces if other != nonce]
        if not is_fresh or _secret_of(keyring, command) is None:
            name = Code(command.code).name
            why = f"{name} without a proof" if PROOF not in command.fields else f"{name} with a wrong proof"
            self._broker.replication.masters.refused(link.peer, why, now)
            remark = f"{why}: members of the group prove their haSecretFile"
            return command.answer(ResponseCode.NO_PERMISSION, remark=remark)
        answer = handler(link, command, now)
        return None if answer is None else sealed(self._broker, command, answer)
