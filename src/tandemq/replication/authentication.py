"""Both ends of a replication link prove that they know a secret before either says anything of itself or its log.

    slave                                                  master
    opening: who it is, its nonce          ─────────────►
                                           ◄─────────────  challenge: its nonce
    proof over opening, challenge          ─────────────►  wrong: it says that, and nothing else
      wrong: closed                        ◄─────────────  who it is, proof over all that was said before
    hello, seal over it                    ─────────────►
                                           ◄─────────────  hello, seal over both hellos

A proof is an HMAC-SHA256 with the secret over whole frames as they went over the link, behind the name of its role, so
that any changed byte, a recorded exchange (the nonces differ) and a reflected one (the roles differ) are refused.
The slave proves first: a stranger at a master's port gets a nonce, and never anything made with the secret.
Seals are made with a key that both derive from the secret and the whole exchange.

A side may know several secrets. A slave proves with its first one; a master takes any of its own and answers with the
one the slave used. What follows the hellos is not sealed: only TLS keeps it from who can change bytes under way.

Owner: a session. Does not know: where secrets and nonces come from, the log, the time.
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
    """The master's part on one connection: `take` the slave's opening and its proof, then check and seal the hellos."""

    def __init__(self, keyring: Keyring, broker_id: int) -> None:
        """Nothing was said yet."""
        self._secrets = list(keyring.secrets())
        self._nonce = keyring.nonce()
        self._broker_id = broker_id
        self._said: list[bytes] = []
        self._key = b""
        self._slave_hello = b""
        self.opening: Opening | None = None

    @property
    def is_proven(self) -> bool:
        """Whether the slave knows a secret of ours."""
        return bool(self._key)

    def take(self, frame: bytes) -> bytes:
        """Answer the slave's next step.

        Raises:
            AuthenticationError: its proof is wrong.
            ProtocolError: that is not the step expected.
        """
        assert not self.is_proven, "both steps were taken"
        answer = self._challenge(frame) if self.opening is None else self._prove(frame)
        self._said += [frame, answer]
        return answer

    def _challenge(self, frame: bytes) -> bytes:
        opening = decode_step(frame, Opening)
        if len(opening.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(opening.nonce)} bytes; {NONCE_BYTES} are expected")
        self.opening = opening
        return encode_step(Challenge(self._nonce))

    def _prove(self, frame: bytes) -> bytes:
        proof = decode_step(frame, SlaveProof).proof
        found = [secret for secret in self._secrets if compare_digest(prove(secret, SLAVE, *self._said), proof)]
        if not found:
            raise AuthenticationError("the proof is wrong: another haSecretFile")
        who = self._broker_id.to_bytes(8, "big", signed=True)
        answer = encode_step(MasterProof(self._broker_id, prove(found[0], MASTER, *self._said, frame, who)))
        self._key = prove(found[0], _KEY, *self._said, frame, answer)
        return answer

    def is_of(self, hello: SlaveHello) -> bool:
        """Whether a hello is of the broker that the slave said it is."""
        told = self.opening
        assert told is not None, "the opening comes first"
        return (told.cluster, told.broker_name, told.broker_id) == (hello.cluster, hello.broker_name, hello.broker_id)

    def check_hello(self, hello: bytes, seal: bytes) -> None:
        """Whether the slave that proved itself says this.

        Raises:
            AuthenticationError: it does not.
        """
        self._slave_hello = hello
        if not compare_digest(prove(self._key, _SLAVE_HELLO, hello), seal):
            raise AuthenticationError("the seal of its hello is wrong: it was changed under way")

    def seal(self, hello: bytes) -> bytes:
        """The seal of our hello, which answers the slave's."""
        return prove(self._key, _MASTER_HELLO, self._slave_hello, hello)


class SlaveProver:
    """The slave's part on one connection: send `opening`, `take` challenge and proof, seal and check the hellos."""

    def __init__(self, keyring: Keyring, cluster: str, broker_name: str, broker_id: int) -> None:
        """Nothing was said yet."""
        self._secret = keyring.secrets()[0]
        self.opening = encode_step(Opening(cluster, broker_name, broker_id, keyring.nonce()))
        self._said = [self.opening]
        self._key = b""
        self._slave_hello = b""
        self.master_id = -1
        """The master's brokerId, once it has proven itself."""

    @property
    def is_proven(self) -> bool:
        """Whether the master knows our secret."""
        return bool(self._key)

    def take(self, frame: bytes) -> bytes:
        """Take the master's next step: our answer, or b"" once it has proven itself.

        Raises:
            AuthenticationError: its proof is wrong, or it refuses ours.
            ProtocolError: that is not the step expected.
        """
        assert not self.is_proven, "both steps were taken"
        return self._prove(frame) if len(self._said) == 1 else self._check(frame)

    def _prove(self, frame: bytes) -> bytes:
        challenge = decode_step(frame, Challenge)
        if challenge.refused is not None:
            raise AuthenticationError(f"the master refuses us: {challenge.refused}")
        if len(challenge.nonce) != NONCE_BYTES:
            raise ProtocolError(f"a nonce of {len(challenge.nonce)} bytes; {NONCE_BYTES} are expected")
        self._said.append(frame)
        answer = encode_step(SlaveProof(prove(self._secret, SLAVE, *self._said)))
        self._said.append(answer)
        return answer

    def _check(self, frame: bytes) -> bytes:
        told = decode_step(frame, MasterProof)
        if told.refused is not None:
            raise AuthenticationError(f"the master refuses us: {told.refused}")
        if not -(1 << 63) <= told.broker_id < 1 << 63:
            raise ProtocolError(f"{told.broker_id} is no broker id")
        who = told.broker_id.to_bytes(8, "big", signed=True)
        if not compare_digest(prove(self._secret, MASTER, *self._said, who), told.proof):
            raise AuthenticationError("the master's proof is wrong: another haSecretFile, or no master of ours")
        self.master_id = told.broker_id
        self._key = prove(self._secret, _KEY, *self._said, frame)
        return b""

    def seal(self, hello: bytes) -> bytes:
        """The seal of our hello."""
        self._slave_hello = hello
        return prove(self._key, _SLAVE_HELLO, hello)

    def check_hello(self, hello: bytes, seal: bytes) -> None:
        """Whether the master that proved itself answers this to our hello.

        Raises:
            AuthenticationError: it does not.
        """
        if not compare_digest(prove(self._key, _MASTER_HELLO, self._slave_hello, hello), seal):
            raise AuthenticationError("the seal of the master's hello is wrong: it was changed under way")
