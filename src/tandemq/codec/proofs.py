"""Challenge-response proofs that the sender of a command knows a secret.

    request for a nonce                           ───────────►
                                                  ◄───────────  proofChallenge: a nonce, valid once, on this connection
    command, proofChallenge, proofNonce, proof    ───────────►  wrong or missing proof: refused
      wrong or missing proof: answer ignored      ◄───────────  answer, proof over it and the request's proof

A proof is an HMAC-SHA256 with the secret over the name of a role, the code, the body and every header field except the
proof. So these are not accepted: a modified command, one recorded on another connection (its nonce is unknown there),
a repeated one (its nonce is used up) and an answer returned as a request (it has another role). Proofs are compared in
constant time.

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
"""A shorter secret could be guessed."""
NONCE, CHALLENGE, PROOF = "proofNonce", "proofChallenge", "proof"


class Keyring(NamedTuple):
    """Secrets and nonces with which a node proves its requests and verifies others'."""

    secrets: Callable[[], Sequence[bytes]]
    """Returns the current secrets, at least one. The first is used for own proofs; all are accepted."""
    entropy: Random
    """Source of nonces; unpredictable except in tests and the simulation."""

    def nonce(self) -> bytes:
        """Return a fresh nonce."""
        return self.entropy.randbytes(NONCE_BYTES)


class Roles(NamedTuple):
    """Names of the two sides of an exchange, which are part of its proofs."""

    requester: bytes
    responder: bytes


def prove(secret: bytes, role: bytes, *frames: bytes) -> bytes:
    """Return the HMAC-SHA256 over a role and frames, each preceded by its length: 32 bytes."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in (role, *frames))
    return digest(secret, text, sha256)


def request_proof(roles: Roles, secret: bytes, request: Command) -> bytes:
    """Return the proof of a request, over all of it except the proof."""
    return prove(secret, roles.requester, *_parts(request))


def answer_proof(roles: Roles, secret: bytes, request: Command, answer: Command) -> bytes:
    """Return the proof of an answer, over all of it except the proof, and over the request's proof."""
    requested = request.fields.get(PROOF, "").encode()
    return prove(secret, roles.responder, requested, (answer.remark or "").encode(), *_parts(answer))


def secret_of(roles: Roles, keyring: Keyring, request: Command) -> bytes | None:
    """Return the secret with which a request is proven; None if it is none of the keyring's."""
    return next(
        (secret for secret in keyring.secrets() if carries(request, request_proof(roles, secret, request))), None
    )


def carries(command: Command, proof: bytes) -> bool:
    """Whether a command carries this proof. Compares in constant time."""
    return compare_digest(from_text(command.fields.get(PROOF, "")) or b"", proof)


def to_text(data: bytes) -> str:
    """Encode a nonce or proof for a header field."""
    return b64encode(data).decode()


def from_text(text: str) -> bytes | None:
    """Decode a nonce or proof from a header field; None if it is malformed."""
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _parts(command: Command) -> list[bytes]:
    """Return code, body and all header fields except the proof, sorted by name."""
    fields = [text.encode() for pair in sorted(command.fields.items()) if pair[0] != PROOF for text in pair]
    return [command.code.to_bytes(8, "big", signed=True), bytes(command.body), *fields]
