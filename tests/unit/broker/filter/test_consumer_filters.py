"""The file of the SQL92 subscriptions."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.filter.consumer_filters import COMPILED_AT_ONCE
from tandemq.codec.remoting.fastjson import loads
from tests.unit.broker.harness import CLIENT, Harness, run_job


def stored(broker: Harness) -> dict[str, Any]:
    """Return the filters in the file, by topic and group."""
    topics = loads(broker.disk.read("config/consumerFilter.json") or b"")["filterDataByTopic"]
    assert {name: found["topic"] for name, found in topics.items()} == {name: name for name in topics}
    return {name: found["groupFilterData"] for name, found in topics.items()}


def test_file_is_encoded_by_its_job_and_has_the_filters_of_the_turn_that_began_it(tmp_path: Path) -> None:
    broker = Harness(tmp_path, property_filter_enable=True)
    broker.heartbeat("G", {"TopicA": "n > 1", "TopicB": "n > 2"}, kind="SQL92")
    broker.heartbeat("H", {"TopicA": "n > 3"}, kind="SQL92")
    broker.pass_time(1_000)
    broker.run_jobs = False
    broker.heartbeat("G", {"TopicA": "n > 4", "TopicB": "n > 2"}, kind="SQL92")
    (saving,) = [job for job in broker.jobs if job.name == "save tables"]
    broker.close(CLIENT)
    after = run_job(saving)
    texts = {(topic, group): found["expression"] for topic, of in stored(broker).items() for group, found in of.items()}
    assert texts == {("TopicA", "G"): "n > 4", ("TopicB", "G"): "n > 2", ("TopicA", "H"): "n > 3"}
    assert not stored(broker)["TopicA"]["G"]["dead"]
    broker.run_jobs = True
    broker.turn([], [after])
    assert stored(broker)["TopicA"]["G"]["dead"]
    assert stored(broker)["TopicA"]["G"] == broker.node.kernel.filters.find("TopicA", "G").to_json()  # type: ignore[union-attr]


def test_many_subscriptions_are_compiled_when_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes up to 20 ms, and all of a heartbeat were compiled in one turn."""
    broker = Harness(tmp_path, property_filter_enable=True)
    filters = broker.node.kernel.filters
    compiled: list[str] = []
    compile_one = filters.expressions.compile

    def note(text: str) -> Any:
        compiled.append(text)
        return compile_one(text)

    monkeypatch.setattr(filters.expressions, "compile", note)
    wanted = {f"T{number}": f"n > {number}" for number in range(100)}
    broker.heartbeat("G", wanted, kind="SQL92")
    assert len(compiled) == COMPILED_AT_ONCE
    last = filters.find("T99", "G")
    assert last is not None
    assert last.compiled.text == "n > 99"
    assert len(compiled) == COMPILED_AT_ONCE + 1
    broker.heartbeat("G", wanted, kind="SQL92")
    assert len(compiled) == 2 * COMPILED_AT_ONCE + 1, "those that are left"
    broker.heartbeat("G", {"T99": "n > 99"}, kind="SQL92")
    assert filters.find("T98", "G") is None
    broker.heartbeat("H", {"T0": "n >"}, kind="SQL92")
    before = len(compiled)
    broker.heartbeat("H", {"T0": "n >"}, kind="SQL92")
    assert (len(compiled), filters.find("T0", "H")) == (before, None), "what is refused is not compiled again"
