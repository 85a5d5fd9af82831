"""The reader of queue entries in chaos: what it takes from responses, and what it finds in logs."""

from random import Random

import pytest

from chaos.entries import COUNT, ShownEntries, read_some
from chaos.history import Place, Stored
from tandemq.codec.record.bodies import without_bodies
from tandemq.codec.record.entries import HOLE_SIZE_MIN, QUEUE_ENTRY
from tandemq.codec.record.record import encode_host, encode_record
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import encode_properties


def record(queue_offset: int, key: str) -> bytes:
    """Return a message as a broker sends it without its body."""
    host = encode_host(bytes([127, 0, 0, 1]), 1)
    properties = encode_properties({"KEYS": key}).encode()
    return without_bodies(
        encode_record(
            topic=b"T",
            queue_id=0,
            queue_offset=queue_offset,
            log_offset=0,
            body=b"body",
            properties=properties,
            flag=0,
            sys_flag=0,
            born_ms=1,
            born_host=host,
            store_ms=1,
            store_host=host,
        )
    )


def stored(offset: int, log_offset: int, key: str = "a-1") -> Stored:
    return Stored(Place(0, offset), "a-1", "a", key, "key", log_offset)


def shown(*places: tuple[int, int]) -> ShownEntries:
    found = ShownEntries()
    for offset, log_offset in places:
        found.entry(Place(0, offset), log_offset)
    return found


def test_shown_messages_that_the_log_has_are_no_violation() -> None:
    found = shown((0, 0), (1, 500))
    found.head(Place(0, 1), "a-1", 500)
    assert found.check_log("a-0", [stored(0, 0), stored(1, 500), stored(2, 900)]) == []
    assert found.violations == []
    assert found.report() == {"entries": 2, "heads": 1, "refused": 0}


@pytest.mark.parametrize("log", [[stored(0, 0)], [stored(0, 0), stored(1, 700)]])
def test_entry_of_a_message_that_the_log_lacks_or_has_elsewhere_is_found(log: list[Stored]) -> None:
    (violation,) = shown((0, 0), (1, 500)).check_log("a-0", log)
    assert violation.startswith("I19: 1 shown by entries, not there in the log of a-0")


def test_two_messages_at_one_place_are_found() -> None:
    found = shown((0, 0), (0, 8))
    found.head(Place(0, 0), "a-1", 0)
    found.head(Place(0, 0), "a-2", 0)
    assert [text[:3] for text in found.violations] == ["I5:", "I5:"]
    found.keys[Place(0, 0)] = "a-9"
    assert [text[:3] for text in found.check_log("a-0", [stored(0, 0)])] == ["I5:"]


def test_entries_and_messages_of_responses_are_recorded_and_holes_are_not() -> None:
    asked: list[int] = []
    entries = QUEUE_ENTRY.pack(0, 100, 1) + QUEUE_ENTRY.pack(100, HOLE_SIZE_MIN, HOLE_SIZE_MIN)

    def answer(address: str, command: Command) -> Command | None:
        assert (address, command.fields["count"]) == ("a:1", str(COUNT))
        asked.append(command.code)
        if len(asked) % 3 == 0:
            return None
        is_entries = command.code == RequestCode.TANDEM_QUEUE_ENTRIES
        body = entries if is_entries else record(int(command.fields["index"]), "a-1")
        return command.answer(ResponseCode.SUCCESS, body=body)

    found, random = ShownEntries(), Random(1)
    for _ in range(30):
        read_some(found, "a:1", "T", 0, random, answer)
    assert found.refused == 10
    assert set(asked) == {RequestCode.TANDEM_QUEUE_ENTRIES, RequestCode.TANDEM_QUEUE_HEADS}
    assert found.log_offsets[Place(0, 0)] == 0
    assert set(found.keys.values()) == {"a-1"}
