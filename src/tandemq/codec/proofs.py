"""Proofs that whoever sends a command knows a secret: a nonce of the other side, and an HMAC over all of the command.

    asks for a nonce                              ───────────►
                                                  ◄───────────  proofChallenge: a nonce of this connection, good once
    command, proofChallenge, proofNonce, proof    ───────────►  wrong or missing: refused
      wrong or missing: no answer                 ◄───────────  answer, proof over it and the request's proof

A proof is an HMAC-SHA256 with the secret over the name of a role, the code, the body and every header field but the
proof. So a changed command, one recorded on another connection (its nonce is not known there), a repeated one (its
nonce was used) and an answer sent back as a request (another role) prove nothing. Proofs are compared in constant time.

Does not know: where secrets come from, connections, what the commands are about.
Source: docs/internals/ha.md 11; decision 0009; requirement H24.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import sha256
from hmac import compare_digest, digest
from random import Random
from typing import NamedTuple

from tandemq.model.command import Command

NONCE_BYTES = 32
SECRET_BYTES_MIN = 16
"""A shorter secret could be found by trying."""
NONCE, CHALLENGE, PROOF = "proofNonce", "proofChallenge", "proof"


class Keyring(NamedTuple):
    """What a node proves itself with."""

    secrets: Callable[[], Sequence[bytes]]
    """The secrets as they are now, at least one: the first is proven with, all are taken."""
    entropy: Random
    """Where nonces come from; unpredictable outside of tests and the simulation."""

    def nonce(self) -> bytes:
        """A fresh one."""
        return self.entropy.randbytes(NONCE_BYTES)


class Roles(NamedTuple):
    """Names of the two sides of an exchange, as they go into its proofs."""

    asks: bytes
    answers: bytes


def prove(secret: bytes, role: bytes, *frames: bytes) -> bytes:
    """HMAC-SHA256 over a role and frames, each behind its length: 32 bytes."""
    said = b"".join(len(part).to_bytes(8, "big") + part for part in (role, *frames))
    return digest(secret, said, sha256)


def request_proof(roles: Roles, secret: bytes, request: Command) -> bytes:
    """The proof of a request, over all of it but the proof."""
    return prove(secret, roles.asks, *_parts(request))


def answer_proof(roles: Roles, secret: bytes, request: Command, answer: Command) -> bytes:
    """The proof of an answer, over all of it but the proof, and over the request's proof."""
    asked = request.fields.get(PROOF, "").encode()
    return prove(secret, roles.answers, asked, (answer.remark or "").encode(), *_parts(answer))


def secret_of(roles: Roles, keyring: Keyring, request: Command) -> bytes | None:
    """The secret a request is proven with; None: none of ours."""
    return next(
        (secret for secret in keyring.secrets() if carries(request, request_proof(roles, secret, request))), None
    )


def carries(command: Command, proof: bytes) -> bool:
    """Whether a command carries this proof."""
    return compare_digest(from_text(command.fields.get(PROOF, "")) or b"", proof)


def to_text(data: bytes) -> str:
    """A nonce or proof as a header field has it."""
    return b64encode(data).decode()


def from_text(text: str) -> bytes | None:
    """A nonce or proof from a header field; None if it is none."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _parts(command: Command) -> list[bytes]:
    """Code, body and all header fields but the proof, in one order."""
    fields = [text.encode() for pair in sorted(command.fields.items()) if pair[0] != PROOF for text in pair]
    return [command.code.to_bytes(8, "big", signed=True), bytes(command.body), *fields]
