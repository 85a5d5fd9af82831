"""Mutual authentication of two sessions over a connection that splits, modifies, records, replays and reflects."""

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.ha import (
    HELLO_MARK,
    PROOF_MARK,
    STEP_BYTES_MAX,
    Challenge,
    MasterHello,
    MasterProof,
    Opening,
    SlaveHello,
    SlaveProof,
    decode_step,
    encode_hello,
    encode_step,
    step_length,
)
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError
from tandemq.replication import master, slave
from tandemq.replication.authentication import MASTER, SLAVE, Keyring, MasterProver, SlaveProver, prove
from tests.spec import spec
from tests.unit.replication.logs import FakeLog, make_log

DEFAULTS = BrokerConfig()
SECRET, OTHER = b"a secret of some length", b"another secret of some length"
LOG = make_log([10, 200, 30])
Change = Callable[[bytes, int], bytes]
"""Function that may modify bytes in transit; it gets the number of bytes sent before in that direction."""


def keys(*secrets: bytes, seed: int = 1) -> Keyring:
    return Keyring(lambda: secrets, Random(seed))


def hello(log_end: int = 0, broker_id: int = 3) -> SlaveHello:
    return SlaveHello("C", "b", broker_id, 7, 0, log_end, 4096)


def unchanged(data: bytes, _before: int) -> bytes:
    return data


class Pair:
    """A master with some records, an empty slave, and the connection between them."""

    def __init__(
        self,
        ours: Keyring | None,
        theirs: Keyring | None,
        *,
        up: Change = unchanged,
        down: Change = unchanged,
        pieces: Random | None = None,
        says: SlaveHello | None = None,
        is_classic_admitted: bool = False,
    ) -> None:
        """Connect them; `ours` are the master's keys, `theirs` the slave's."""
        self.master = make_master(ours, is_classic_admitted=is_classic_admitted)
        self.slave = make_slave(theirs, says=says)
        self.pieces = pieces
        self.change = {"up": up, "down": down}
        self.went = {"up": b"", "down": b""}
        self.received = b""
        self.master_closed = self.slave_closed = ""
        self.run()

    def run(self) -> None:
        while self._carry("up") or self._carry("down"):
            pass

    def _carry(self, way: str) -> bool:
        sent = b"".join(self.slave.data_to_send() if way == "up" else self.master.data_to_send(0, 0))
        for piece in cut(sent, self.pieces):
            arrives = self.change[way](piece, len(self.went[way]))
            self.went[way] += piece
            if way == "up":
                self.master.receive_data(arrives, 0)
                self._own_master()
            else:
                self.slave.receive_data(arrives, 0)
                self._own_slave()
        return bool(sent)

    def _own_master(self) -> None:
        while (event := self.master.next_event()) is not None:
            if isinstance(event, master.SlaveHelloReceived):
                self.master.answer_hello(MasterHello(0, log_end=len(LOG)))
            elif isinstance(event, master.MasterSessionClosed):
                self.master_closed = event.reason

    def _own_slave(self) -> None:
        while (event := self.slave.next_event()) is not None:
            if isinstance(event, slave.MasterHelloReceived):
                self.slave.proceed(event.hello, 0)
            elif isinstance(event, slave.RecordsReceived):
                self.received += b"".join(piece.data for piece in event.pieces)
            elif isinstance(event, slave.SlaveSessionClosed):
                self.slave_closed = event.reason

    @property
    def is_copying(self) -> bool:
        return (self.master.state, self.slave.state) == (
            master.MasterSessionState.TRANSFER,
            slave.SlaveSessionState.TRANSFER,
        )


def make_master(keyring: Keyring | None, *, is_classic_admitted: bool = False) -> master.MasterSession:
    return master.MasterSession(
        FakeLog(LOG, segment_bytes=4096),
        0,
        master.MasterSettings(DEFAULTS.ha_heartbeat_ms, DEFAULTS.ha_housekeeping_ms, batch_bytes=32_768),
        is_classic_admitted=is_classic_admitted,
        prover=None if keyring is None else MasterProver(keyring, 0),
    )


def make_slave(keyring: Keyring | None, *, says: SlaveHello | None = None) -> slave.SlaveSession:
    return slave.SlaveSession(
        FakeLog(segment_bytes=4096),
        0,
        safe_end=0,
        hello=says or hello(),
        heartbeat_ms=DEFAULTS.ha_heartbeat_ms,
        housekeeping_ms=DEFAULTS.ha_housekeeping_ms,
        prover=None if keyring is None else SlaveProver(keyring, "C", "b", 3),
    )


def cut(data: bytes, pieces: Random | None) -> Sequence[bytes]:
    if pieces is None or len(data) < 2:
        return [data] if data else []
    at = sorted({0, len(data), *(pieces.randrange(1, len(data)) for _ in range(9))})
    return [data[start:end] for start, end in zip(at, at[1:], strict=False)]


def flip(position: int, mask: int) -> Change:
    def change(data: bytes, before: int) -> bytes:
        if not before <= position < before + len(data):
            return data
        at = position - before
        return data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]

    return change


def changed_pair(way: str, position: int, mask: int, pieces: Random | None = None) -> Pair:
    """Return a pair with the same secret, and with one byte modified in transit."""
    change = flip(position, mask)
    up, down = (change, unchanged) if way == "up" else (unchanged, change)
    return Pair(keys(SECRET, seed=1), keys(SECRET, seed=2), up=up, down=down, pieces=pieces)


@cache
def handshake_lengths() -> tuple[int, int]:
    """Return the number of bytes of the handshake in each direction; reports and log bytes follow."""
    went = Pair(keys(SECRET, seed=1), keys(SECRET, seed=2)).went
    up = went["up"].index(HELLO_MARK)
    down = went["down"].index(HELLO_MARK)
    ends = [
        start + len(encode_hello(said)) + 32
        for start, said in ((up, hello()), (down, MasterHello(0, log_end=len(LOG))))
    ]
    return ends[0], ends[1]


# Peers that know the secret are admitted.


@spec("H24")
@pytest.mark.parametrize("pieces", [None, Random(5)])
def test_pair_with_the_same_secret_authenticates_and_copies(pieces: Random | None) -> None:
    pair = Pair(keys(SECRET, seed=1), keys(SECRET, seed=2), pieces=pieces)
    assert pair.is_copying, (pair.master_closed, pair.slave_closed)
    assert pair.received == LOG
    assert pair.master.is_authenticated
    assert pair.slave.is_authenticated
    assert SECRET not in pair.went["up"] + pair.went["down"]


@pytest.mark.parametrize(
    ("ours", "theirs"), [((OTHER, SECRET), (SECRET, OTHER)), ((SECRET, OTHER), (SECRET,)), ((OTHER, SECRET), (SECRET,))]
)
def test_secret_can_be_rotated_while_both_are_known(ours: tuple[bytes, ...], theirs: tuple[bytes, ...]) -> None:
    assert Pair(keys(*ours), keys(*theirs, seed=2)).is_copying


def test_pair_without_a_secret_does_not_authenticate() -> None:
    pair = Pair(None, None)
    assert pair.is_copying
    assert not pair.master.is_authenticated
    assert not pair.slave.is_authenticated


# Other peers are refused and learn nothing.


@spec("H24")
def test_peer_with_another_secret_gets_a_nonce_and_a_refusal_only() -> None:
    pair = Pair(keys(SECRET), keys(OTHER, seed=2))
    assert "another haSecretFile" in pair.master_closed
    assert "another haSecretFile" in pair.slave_closed
    frames, rest = [], pair.went["down"]
    while rest:
        length = step_length(rest)
        assert length is not None
        frames.append(decode_step(rest[:length], Challenge))
        rest = rest[length:]
    assert frames == [Challenge(Random(1).randbytes(32)), Challenge(refused="the proof is wrong: another haSecretFile")]
    assert b"logEnd" not in pair.went["up"], "the slave has not sent its log end either"


@spec("H24")
def test_master_without_the_secret_gets_none_of_the_slaves_log() -> None:
    """The master sends an invented challenge and proof."""
    session = make_slave(keys(SECRET))
    session.receive_data(encode_step(Challenge(bytes(32))), 0)
    session.receive_data(encode_step(MasterProof(0, bytes(32))), 0)
    event = session.next_event()
    assert isinstance(event, slave.SlaveSessionClosed)
    assert event.is_refusal
    assert "the master's proof is wrong" in event.reason
    sent = b"".join(session.data_to_send())
    assert HELLO_MARK not in sent
    assert b"logEnd" not in sent


@spec("H24")
def test_any_changed_byte_of_the_handshake_is_refused() -> None:
    for way, length in zip(("up", "down"), handshake_lengths(), strict=True):
        for position in range(length):
            pair = changed_pair(way, position, 1 << position % 8)
            pair.master.tick(DEFAULTS.ha_housekeeping_ms + 1)
            assert pair.slave.state is not slave.SlaveSessionState.TRANSFER, (way, position)
            assert pair.received == b"", (way, position)
            if way == "up":
                assert pair.master.state is master.MasterSessionState.SHUTDOWN, position
                assert pair.master.transferred_bytes == 0, position


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["up", "down"]), st.integers(0, 5_000), st.integers(1, 255), st.randoms(use_true_random=False))
def test_any_changed_byte_is_refused_for_any_split_of_the_stream(
    way: str, place: int, mask: int, pieces: Random
) -> None:
    position = place % handshake_lengths()[way == "down"]
    pair = changed_pair(way, position, mask, Random(pieces.random()))
    assert pair.slave.state is not slave.SlaveSessionState.TRANSFER
    assert pair.received == b""


@spec("H24")
def test_recorded_slave_is_refused_by_a_master_with_a_new_nonce() -> None:
    recorded = Pair(keys(SECRET, seed=1), keys(SECRET, seed=2)).went["up"]
    session = make_master(keys(SECRET, seed=3))
    session.receive_data(recorded, 0)
    event = session.next_event()
    assert isinstance(event, master.MasterSessionClosed)
    assert "the proof is wrong" in event.reason
    assert session.transferred_bytes == 0


@spec("H24")
def test_recorded_master_is_refused_by_a_slave_with_a_new_nonce() -> None:
    recorded = Pair(keys(SECRET, seed=1), keys(SECRET, seed=2)).went["down"]
    session = make_slave(keys(SECRET, seed=3))
    session.receive_data(recorded, 0)
    event = session.next_event()
    assert isinstance(event, slave.SlaveSessionClosed)
    assert "the master's proof is wrong" in event.reason
    assert HELLO_MARK not in b"".join(session.data_to_send())


@spec("H24")
def test_reflected_frames_are_refused() -> None:
    session = make_slave(keys(SECRET))
    for _ in range(2):
        session.receive_data(b"".join(session.data_to_send()), 0)
    event = session.next_event()
    assert isinstance(event, slave.SlaveSessionClosed)
    assert "the master's proof is wrong" in event.reason


def test_masters_proof_is_not_accepted_as_a_slaves() -> None:
    frames = (b"opening", b"challenge")
    assert prove(SECRET, SLAVE, *frames) != prove(SECRET, MASTER, *frames)
    assert prove(SECRET, b"r", b"ab", b"c") != prove(SECRET, b"r", b"a", b"bc")


# A side that requires proofs does not proceed without them.


@spec("H24")
def test_slave_without_a_secret_is_refused_by_a_master_that_has_one() -> None:
    pair = Pair(keys(SECRET), None)
    assert "a proof is required" in pair.master_closed
    assert "a proof is required" in pair.slave_closed
    assert b"logEnd" in pair.went["up"]
    assert pair.master.transferred_bytes == 0


@spec("H24")
def test_slave_with_a_secret_refuses_a_master_that_has_none() -> None:
    pair = Pair(None, keys(SECRET))
    assert "no haSecretFile" in pair.master_closed
    assert "no haSecretFile" in pair.slave_closed
    assert b"logEnd" not in pair.went["up"]


def test_hello_instead_of_a_proof_is_refused_by_both_sides() -> None:
    session = make_slave(keys(SECRET))
    session.receive_data(encode_hello(MasterHello(0, log_end=9)), 0)
    event = session.next_event()
    assert isinstance(event, slave.SlaveSessionClosed)
    assert event.is_refusal
    assert "does not authenticate" in event.reason
    other = make_master(keys(SECRET))
    other.receive_data(encode_step(Opening("C", "b", 3, bytes(32))) + encode_hello(hello()), 0)
    closed = other.next_event()
    assert isinstance(closed, master.MasterSessionClosed)
    assert closed.reason == "it did not complete its proof"
    assert other.state is master.MasterSessionState.SHUTDOWN


def test_address_of_a_classic_peer_does_not_replace_a_proof() -> None:
    """Reports of a Java slave are accepted; a hello is not."""
    pair = Pair(keys(SECRET), None, is_classic_admitted=True)
    assert "a proof is required" in pair.master_closed
    session = make_master(keys(SECRET), is_classic_admitted=True)
    session.receive_data(bytes(8), 0)
    assert session.state is master.MasterSessionState.TRANSFER
    assert not session.is_authenticated


def test_hello_with_another_identity_than_the_proof_is_refused() -> None:
    pair = Pair(keys(SECRET), keys(SECRET, seed=2), says=hello(broker_id=4))
    assert "another identity" in pair.master_closed
    assert pair.master.transferred_bytes == 0


# Malformed steps.


@pytest.mark.parametrize(
    "step",
    [
        PROOF_MARK + (STEP_BYTES_MAX + 1).to_bytes(4, "big"),
        PROOF_MARK + bytes(4),
        PROOF_MARK + b"\xff\xff\xff\xff",
        PROOF_MARK + (2).to_bytes(4, "big") + b"[]",
        PROOF_MARK + (2).to_bytes(4, "big") + b"\xff{",
        encode_step(Opening("C", "b", 1, bytes(31))),
        encode_step(SlaveProof(bytes(32))),
    ],
)
def test_malformed_step_closes_either_side(step: bytes) -> None:
    for session in (make_master(keys(SECRET)), make_slave(keys(SECRET))):
        session.receive_data(step, 0)
        assert isinstance(session.next_event(), master.MasterSessionClosed | slave.SlaveSessionClosed)


def test_broker_id_out_of_range_is_a_protocol_error() -> None:
    prover = SlaveProver(keys(SECRET), "C", "b", 3)
    prover.take(encode_step(Challenge(bytes(32))))
    with pytest.raises(ProtocolError, match="is not a broker id"):
        prover.take(encode_step(MasterProof(1 << 70, bytes(32))))


def test_slow_proof_times_out() -> None:
    session = make_master(keys(SECRET))
    opening = encode_step(Opening("C", "b", 3, bytes(32)))
    for second in range(20):
        session.receive_data(opening[second : second + 1], second * 1_000)
        session.tick(second * 1_000)
        assert session.state is not master.MasterSessionState.SHUTDOWN
    session.tick(20_001)
    assert session.state is master.MasterSessionState.SHUTDOWN
