"""Acknowledgements that the engine takes: the same records and responses as one by one."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.pop.acks import Acks
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.engine import NAME
from tandemq.model.codes import RequestCode, ResponseCode
from tests.fuzz.frames import frame_of
from tests.unit.broker.features.pop.consumer import GROUP, TOPIC, bodies, pop, pop_all
from tests.unit.broker.harness import CLIENT, Harness
from tests.unit.engine.modules import compiled_engine

ODD_NUMBERS = ("-1", "01", "", "x", "5", "9" * 25, str(1 << 62), "2147483648", "1 ", "\u0663")
OTHER = 9


def broker_with_pops(seed: int, **changes: Any) -> tuple[Harness, list[dict[str, str]]]:
    """Return a broker, and the fields of acknowledgements of all messages it has given out."""
    broker = Harness(SimDisk(Random(seed)), **changes)
    broker.create_topic(TOPIC)
    for link in (7, OTHER):
        broker.open(link)
    broker.pass_time(2_000)
    for at in range(40):
        broker.send(TOPIC, b"%03d" % at, queue_id=at % 4)
    fields = []
    for _ in range(12):
        for message in pop(broker, maxMsgNums=5, invisibleTime=20_000):
            handle = message.handle
            fields.append(
                {
                    "consumerGroup": GROUP,
                    "topic": TOPIC,
                    "queueId": str(handle.queue_id),
                    "offset": str(handle.offset),
                    "extraInfo": str(handle),
                }
            )
    assert len(fields) == 40
    return broker, fields


def changed(fields: dict[str, str], random: Random) -> dict[str, str]:
    """Return fields of which one is perhaps unusual."""
    fields = dict(fields)
    kind = random.randrange(14)
    parts = fields["extraInfo"].split(" ")
    if kind == 0:
        parts[random.randrange(8)] = random.choice((*ODD_NUMBERS, "other"))
    elif kind == 1:
        del parts[random.randrange(8)]
    elif kind == 2:
        parts.append(str(random.randrange(1 << 40)))
    elif kind == 3:
        fields["offset"] = random.choice((*ODD_NUMBERS, "0", "9", "10", "11", "12"))
        if random.random() < 0.5:
            parts[7] = fields["offset"]
    elif kind == 4:
        fields["queueId"] = random.choice(("0", "3", "4", *ODD_NUMBERS))
    elif kind == 5:
        fields["topic"] = random.choice(("Missing", "", "%RETRY%" + GROUP + "_" + TOPIC))
    elif kind == 6:
        del fields[random.choice(list(fields))]
    elif kind == 7:
        fields[random.choice(("bname", "ns", "x"))] = random.choice(("", "broker-a", "\u4e2d"))
    elif kind == 8:
        fields["consumerGroup"] = random.choice(("another", "\u4e2d", ""))
    fields["extraInfo"] = " ".join(parts) if "extraInfo" in fields else ""
    return fields


def frame(fields: dict[str, str], opaque: int, random: Random) -> bytes:
    """Return a request, in any form of JSON."""
    header = {"code": RequestCode.ACK_MESSAGE, "extFields": fields, "flag": 2 * (opaque % 11 == 0), "opaque": opaque}
    items = list(header.items())
    random.shuffle(items)
    separators = random.choice(((",", ":"), (", ", ": "), (" ,", " : ")))
    return frame_of(0, json.dumps(dict(items), separators=separators, ensure_ascii=opaque % 2 == 0).encode())


def answers(broker: Harness, turns: list[list[tuple[int, bytes]]]) -> list[tuple[int, int, int, str | None]]:
    """Return the responses to requests, each with its link, in the order of links and opaques."""
    found = []
    for received in turns:
        for link, buffers in broker.turn(received).sends.items():
            for raw in FrameDecoder().feed(b"".join(map(bytes, buffers))):
                command = decode_command(raw)
                found.append((link, command.opaque, command.code, command.remark))
    return sorted(found)


@given(st.integers(0, 1 << 32), st.sampled_from(("ASYNC_FLUSH", "SYNC_FLUSH")))
@settings(max_examples=60, deadline=None)
def test_many_acknowledgements_have_the_result_of_one_by_one(seed: int, flush: str) -> None:
    compiled_engine()
    results = []
    for is_decoded in (False, True):
        random = Random(seed)
        broker, listed = broker_with_pops(1, flush_type=flush)
        asked = [changed(random.choice(listed), random) for _ in range(random.randrange(1, 60))]
        turns: list[list[tuple[int, bytes]]] = []
        opaque = 1_000
        while asked:
            turn: dict[int, bytes] = {}
            for _ in range(random.choice((1, 3, 20))):
                if asked:
                    opaque += 1
                    link = random.choice((CLIENT, OTHER))
                    turn[link] = turn.get(link, b"") + frame(asked.pop(), opaque, random)
            turns.append(list(turn.items()))
        acks = broker.node.features.find(Acks)
        if is_decoded:
            acks.take_ordinary = lambda _link, _data, position, *_: position  # type: ignore[method-assign]
        found = answers(broker, turns)
        broker.pass_time(40_000)
        results.append((found, acks.acked, bodies(pop_all(broker)), broker.node.faults))
    assert results[0] == results[1]
    assert results[0][-1] == 0


def test_engine_takes_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_engine()
    broker, listed = broker_with_pops(1)
    handled: list[int] = []
    monkeypatch.setattr(Acks, "_checked", lambda *_: handled.append(1))
    data = b"".join(frame(fields, 2 * at + 1, Random(at)) for at, fields in enumerate(listed[:20]))
    if NAME == "python":
        return
    found = answers(broker, [[(CLIENT, data)]])
    assert not handled
    assert [code for _, _, code, _ in found] == [ResponseCode.SUCCESS] * sum((2 * at + 1) % 11 != 0 for at in range(20))
