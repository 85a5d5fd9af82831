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
    assert list(numbers.update("Orders", queues("b1", "b0"))) == queues("b0", "b1")
    assert list(numbers.update("Orders", queues("a0", "b2", "b0"))) == queues("b0", "b1", "a0", "b2")
    again = PartitionNumbers(path)
    assert list(again.update("Orders", queues("a0"))) == queues("b0", "b1", "a0", "b2")
    assert again.queue("Orders", 2) == queues("a0")[0]
    assert again.queue("Orders", 4) is again.queue("Orders", -1) is again.queue("Other", 0) is None


@spec("P43")
def test_a_queue_has_no_number_that_is_not_on_disk(tmp_path: Path) -> None:
    numbers = PartitionNumbers(tmp_path / "missing" / "numbers.json")
    with pytest.raises(LocalError, match="missing"):
        numbers.update("Orders", queues("a0"))
    assert numbers.queue("Orders", 0) is None


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    for text in ("", "[]", '{"Orders": [["a"]]}', '{"Orders": 5}', "{"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="no numbers of partitions"):
            PartitionNumbers(path)
