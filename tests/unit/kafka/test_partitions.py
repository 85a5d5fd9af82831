"""Numbers of partitions: they stay, whatever the topic becomes."""

from pathlib import Path

import pytest

from tandemq.errors import ConfigError, LocalError
from tandemq.kafka.partitions import PartitionNumbers
from tandemq.model.message import MessageQueue
from tests.spec import spec


def queues(*names: str) -> list[MessageQueue]:
    return [MessageQueue("Orders", name[:-1], int(name[-1])) for name in names]


@spec("P43")
def test_numbers_stay_when_queues_and_broker_groups_come_and_go(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    numbers = PartitionNumbers(path)
    numbers.update({"Orders": queues("b1", "b0")})
    assert numbers.queues("Orders") == queues("b0", "b1")
    numbers.update({"Orders": queues("a0", "b2", "b0"), "Empty": []})
    assert numbers.queues("Orders") == queues("b0", "b1", "a0", "b2")
    again = PartitionNumbers(path)
    again.update({"Orders": queues("a0")})
    assert again.queues("Orders") == queues("b0", "b1", "a0", "b2")
    assert again.queue("Orders", 2) == queues("a0")[0]
    assert again.queue("Orders", 4) is again.queue("Orders", -1) is again.queue("Other", 0) is None


@spec("P43")
def test_processes_that_share_the_file_have_the_same_numbers(tmp_path: Path) -> None:
    one, other = PartitionNumbers(tmp_path / "numbers.json"), PartitionNumbers(tmp_path / "numbers.json")
    one.update({"Orders": queues("b0")})
    other.update({"Orders": queues("a0", "b0"), "Other": [MessageQueue("Other", "c", 0)]})
    assert other.queues("Orders") == queues("b0", "a0")
    one.update({"Orders": queues("a1")})
    assert one.queues("Orders") == queues("b0", "a0", "a1")
    assert one.queue("Other", 0) == MessageQueue("Other", "c", 0)


@spec("P43")
def test_a_queue_has_no_number_that_is_not_on_disk(tmp_path: Path) -> None:
    numbers = PartitionNumbers(tmp_path / "missing" / "numbers.json")
    with pytest.raises(LocalError, match="missing"):
        numbers.update({"Orders": queues("a0")})
    assert numbers.queue("Orders", 0) is None


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    for text in ("", "[]", '{"Orders": [["a"]]}', '{"Orders": 5}', "{"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="no numbers of partitions"):
            PartitionNumbers(path)
