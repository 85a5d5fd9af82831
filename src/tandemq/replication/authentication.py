"""Mutual authentication on a replication connection, by proofs that both sides know a secret.

    slave                                                  master
    opening: identity, nonce               ─────────────►
                                           ◄─────────────  challenge: nonce
    proof over opening, challenge          ─────────────►  wrong proof: refusal, nothing else
      wrong proof: closed                  ◄─────────────  identity, proof over all frames before
    hello, seal over it                    ─────────────►
                                           ◄─────────────  hello, seal over both hellos

A proof is an HMAC-SHA256 with the secret over the name of its role and the complete frames as they were sent. So a
modified frame, a recorded exchange (the nonces differ) and a reflected one (the roles differ) are refused.
The slave proves first: an unauthenticated peer at a master's port gets a nonce, and nothing computed with the secret.
Seals are HMACs with a key that both sides derive from the secret and the whole exchange.

A side may know several secrets. A slave uses its first one; a master accepts any of its own and answers with the one
that the slave used. Data after the hellos is not sealed: only TLS protects it from changes on the way.

Owner: a session.
Source: docs/internals/ha.md 8; decision 0009; requirement H24.
"""

from hmac import compare_digest

from tandemq.codec.ha import Challenge, MasterProof, Opening, SlaveHello, SlaveProof, decode_step, encode_step
from tandemq.codec.proofs import NONCE_BYTES, SECRET_BYTES_MIN, Keyring, prove
from tandemq.errors import AuthenticationError, ProtocolError

__all__ = ["MASTER", "NONCE_BYTES", "SECRET_BYTES_MIN", "SLAVE", "Keyring", "MasterProver", "SlaveProver", "prove"]
SLAVE, MASTER = b"tandemq-ha-1 slave proves", b"tandemq-ha-1 master proves"
_KEY = b"tandemq-ha-1 key"
_SLAVE_HELLO, _MASTER_HELLO = b"tandemq-ha-1 slave hello", b"tandemq-ha-1 master hello"


class MasterProver:
    """The master's side on one connection: `take` the slave's opening and its proof, then check and seal the hellos."""

    def __init__(self, keyring: Keyring, broker_id: int) -> None:
        """Begin with a fresh nonce."""
        self._secrets = list(keyring.secrets())
        self._nonce = keyring.nonce()
        self._broker_id = broker_id
        self._transcript: list[bytes] = []
        self._key = b""
        self._slave_hello = b""
        self.opening: Opening | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the slave has proven that it knows one of the master's secrets."""
        return bool(self._key)

    def take(self, frame: bytes) -> bytes:
        """Process the slave's next step and return the answer.

        Raises:
            AuthenticationError: its proof is wrong.
            ProtocolError: malformed, or not the expected step.
        """
        assert not self.is_proven, "the exchange is complete"
        answer = self._challenge(frame) if self.opening is None else self._prove(frame)
        self._transcript += [frame, answer]
        return answer

    def _challenge(self, frame: bytes) -> bytes:
        opening = decode_step(frame, Opening)
        if len(opening.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(opening.nonce)} bytes; {NONCE_BYTES} are expected")
        self.opening = opening
        return encode_step(Challenge(self._nonce))

    def _prove(self, frame: bytes) -> bytes:
        proof = decode_step(frame, SlaveProof).proof
        found = [secret for secret in self._secrets if compare_digest(prove(secret, SLAVE, *self._transcript), proof)]
        if not found:
            raise AuthenticationError("the proof is wrong: another haSecretFile")
        broker_id = self._broker_id.to_bytes(8, "big", signed=True)
        answer = encode_step(MasterProof(self._broker_id, prove(found[0], MASTER, *self._transcript, frame, broker_id)))
        self._key = prove(found[0], _KEY, *self._transcript, frame, answer)
        return answer

    def matches_opening(self, hello: SlaveHello) -> bool:
        """Whether a hello has the identity that the slave claimed in its opening."""
        claimed = self.opening
        assert claimed is not None, "the opening comes first"
        return (claimed.cluster, claimed.broker_name, claimed.broker_id) == (
            hello.cluster,
            hello.broker_name,
            hello.broker_id,
        )

    def check_hello(self, hello: bytes, seal: bytes) -> None:
        """Verify the seal of the slave's hello.

        Raises:
            AuthenticationError: the seal is wrong.
        """
        self._slave_hello = hello
        if not compare_digest(prove(self._key, _SLAVE_HELLO, hello), seal):
            raise AuthenticationError("the seal of its hello is wrong: it was changed on the way")

    def seal(self, hello: bytes) -> bytes:
        """Return the seal of the master's hello, over both hellos."""
        return prove(self._key, _MASTER_HELLO, self._slave_hello, hello)


class SlaveProver:
    """The slave's side on one connection: send `opening`, `take` challenge and proof, seal and check the hellos."""

    def __init__(self, keyring: Keyring, cluster: str, broker_name: str, broker_id: int) -> None:
        """Create the opening with a fresh nonce."""
        self._secret = keyring.secrets()[0]
        self.opening = encode_step(Opening(cluster, broker_name, broker_id, keyring.nonce()))
        self._transcript = [self.opening]
        self._key = b""
        self._slave_hello = b""

    @property
    def is_proven(self) -> bool:
        """Whether the master has proven that it knows the slave's secret."""
        return bool(self._key)

    def take(self, frame: bytes) -> bytes:
        """Process the master's next step; return the answer, b"" once the master has proven itself.

        Raises:
            AuthenticationError: its proof is wrong, or it refuses the slave's.
            ProtocolError: malformed, or not the expected step.
        """
        assert not self.is_proven, "the exchange is complete"
        return self._prove(frame) if len(self._transcript) == 1 else self._check(frame)

    def _prove(self, frame: bytes) -> bytes:
        challenge = decode_step(frame, Challenge)
        if challenge.refused is not None:
            raise AuthenticationError(f"refused by the master: {challenge.refused}")
        if len(challenge.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(challenge.nonce)} bytes; {NONCE_BYTES} are expected")
        self._transcript.append(frame)
        answer = encode_step(SlaveProof(prove(self._secret, SLAVE, *self._transcript)))
        self._transcript.append(answer)
        return answer

    def _check(self, frame: bytes) -> bytes:
        received = decode_step(frame, MasterProof)
        if received.refused is not None:
            raise AuthenticationError(f"refused by the master: {received.refused}")
        if not -(1 << 63) <= received.broker_id < 1 << 63:
            raise ProtocolError(f"{received.broker_id} is not a broker id")
        broker_id = received.broker_id.to_bytes(8, "big", signed=True)
        if not compare_digest(prove(self._secret, MASTER, *self._transcript, broker_id), received.proof):
            raise AuthenticationError(
                "the master's proof is wrong: another haSecretFile, or not a master of this group"
            )
        self._key = prove(self._secret, _KEY, *self._transcript, frame)
        return b""

    def seal(self, hello: bytes) -> bytes:
        """Return the seal of the slave's hello."""
        self._slave_hello = hello
        return prove(self._key, _SLAVE_HELLO, hello)

    def check_hello(self, hello: bytes, seal: bytes) -> None:
        """Verify the seal of the master's hello.

        Raises:
            AuthenticationError: the seal is wrong.
        """
        if not compare_digest(prove(self._key, _MASTER_HELLO, self._slave_hello, hello), seal):
            raise AuthenticationError("the seal of the master's hello is wrong: it was changed on the way")
