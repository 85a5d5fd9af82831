"""Requests between members of a group, authenticated in both directions with the secret of haSecretFile.

    caller                                                     callee
    TANDEM_CHALLENGE                              ───────────►
                                                  ◄───────────  a nonce, valid for one request on this connection
    request, both nonces, proof over all of it    ───────────►  proof wrong or missing: refused, counted, logged
      proof wrong or missing: ignored             ◄───────────  response, proof over it and the request's proof

Without a secret (no keyring) requests carry no proof and none is checked. With one, requests that change the state of
the group or are meant for members only (`Request.is_of_member`) are refused without a proof. Operators' commands and
requests of Java peers need none.

A nonce is valid once, so a recorded request cannot be replayed; a connection has at most `NONCES_MAX` unused ones.
Source: docs/internals/ha.md 11; decision 0009; requirement H24.
"""

import logging
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.context import CurrentTurn
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.peers import OnAnswer, Peers
from tandemq.broker.kernel.refused_peers import RefusedPeers
from tandemq.codec import proofs
from tandemq.codec.proofs import NONCE_BYTES, Keyring, Roles
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
NONCES_MAX = 8
NONCE, CHALLENGE, PROOF = proofs.NONCE, proofs.CHALLENGE, proofs.PROOF
ROLES = Roles(b"tandemq-call-1 member asks", b"tandemq-call-1 member answers")
"""Roles in the proofs of a request and of its response."""
_request_proof = partial(proofs.request_proof, ROLES)
_answer_proof = partial(proofs.answer_proof, ROLES)
_secret_of = partial(proofs.secret_of, ROLES)
_carries, _text, _bytes = proofs.carries, proofs.to_text, proofs.from_text


class MemberRequests(Feature):
    """Sends requests to other members, and verifies the requests of other members."""

    def __init__(self, peers: Peers, keyring: Keyring | None, refused: RefusedPeers, turn: CurrentTurn) -> None:
        """`keyring`: None if no secret is configured."""
        self._peers = peers
        self._keyring = keyring
        self._refused = refused
        self._turn = turn
        self._unproven = Refusals()
        """Members whose responses had no valid proof, by address."""

    # The caller.

    def call(self, address: str, command: Command, timeout_ms: int, on_answer: OnAnswer, turn: Turn, now: Now) -> None:
        """Send a request to another member, "ip:port", as `Peers.call` does.

        A response without a valid proof is ignored: `on_answer` gets None.
        """
        if self._keyring is None:
            self._peers.call(address, command, timeout_ms, on_answer, turn, now)
            return
        pending = _PendingCall(address, command, now.mono_ms + timeout_ms, on_answer)
        challenged = partial(self._challenged, self._keyring, pending)
        self._peers.call(address, Command(Code.TANDEM_CHALLENGE), timeout_ms, challenged, turn, now)

    def _challenged(self, keyring: Keyring, call: "_PendingCall", answer: Command | None, now: Now) -> None:
        """Send the request itself, with the callee's nonce."""
        nonce = None if answer is None else _bytes(answer.fields.get(CHALLENGE, ""))
        if nonce is None or len(nonce) != NONCE_BYTES or now.mono_ms >= call.until_ms:
            if answer is not None:
                self._log_unproven(call.address, answer, now)
            call.on_answer(None, now)
            return
        secret, command = keyring.secrets()[0], call.command
        command.fields = {**command.fields, CHALLENGE: _text(nonce), NONCE: _text(keyring.nonce())}
        command.fields[PROOF] = _text(_request_proof(secret, command))

        def answered(answer: Command | None, now: Now) -> None:
            if answer is not None and not _carries(answer, _answer_proof(secret, command, answer)):
                self._log_unproven(call.address, answer, now)
                answer = None
            call.on_answer(answer, now)

        self._peers.call(call.address, command, call.until_ms - now.mono_ms, answered, self._turn.out, now)

    def _log_unproven(self, address: str, answer: Command, now: Now) -> None:
        times = self._unproven.note(address, now.mono_ms)
        if times:
            log.warning(
                "member: %s does not prove that it knows haSecretFile; its response is ignored times=%d code=%d %s",
                address,
                times,
                answer.code,
                brief(answer.remark or ""),
            )

    # The callee.

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.TANDEM_CHALLENGE: Request(self._on_challenge)}

    def wrap(self, _code: Code, request: Request) -> Request:
        """Return the request with a handler that checks the proof first, if only members may send it."""
        if self._keyring is None or not request.is_of_member:
            return request
        return request._replace(handle=partial(self._checked, self._keyring, request.handle))

    def sealed(self, request: Command, answer: Command) -> Command:
        """Return the response, with a proof if its request has a valid one."""
        secret = None if self._keyring is None else _secret_of(self._keyring, request)
        if secret is not None:
            answer.fields = {**answer.fields, PROOF: _text(_answer_proof(secret, request, answer))}
        return answer

    def _on_challenge(self, link: Link, command: Command, _now: Now) -> Command | None:
        """Return a nonce for one request on this connection; an error if this broker has no secret."""
        if self._keyring is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="this broker has no haSecretFile")
        nonce = self._keyring.nonce()
        link.nonces = [*link.nonces, nonce][-NONCES_MAX:]
        return command.answer(ResponseCode.SUCCESS, fields={CHALLENGE: _text(nonce)})

    def _checked(self, keyring: Keyring, handler: Handler, link: Link, command: Command, now: Now) -> Command | None:
        """Handle a request if it has an unused nonce of this connection and a valid proof; else refuse it."""
        nonce = _bytes(command.fields.get(CHALLENGE, ""))
        is_fresh = nonce in link.nonces
        if is_fresh:
            link.nonces = [other for other in link.nonces if other != nonce]
        if not is_fresh or _secret_of(keyring, command) is None:
            name = Code(command.code).name
            why = f"{name} without a proof" if PROOF not in command.fields else f"{name} with a wrong proof"
            self._refused.note(link.peer, why, now)
            remark = f"{why}: members of the group prove their haSecretFile"
            return command.answer(ResponseCode.NO_PERMISSION, remark=remark)
        answer = handler(link, command, now)
        return None if answer is None else self.sealed(command, answer)


class _PendingCall(NamedTuple):
    """A request that waits for the callee's nonce."""

    address: str
    command: Command
    until_ms: int
    on_answer: OnAnswer
