"""The file of the SQL92 subscriptions."""

from pathlib import Path
from typing import Any

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
