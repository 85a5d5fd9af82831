from pathlib import Path

import pytest

from tandemq.broker import node
from tandemq.broker.features.built import FEATURES
from tandemq.broker.kernel.feature import Feature, Features
from tandemq.broker.kernel.serving import Serving
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode
from tests.unit.broker.features.statistics.test_broker_metrics import page_of
from tests.unit.broker.features.visits import feature as visits
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness
from tests.unit.broker.roles.registry_group import RegistryGroup
from tests.unit.telemetry.pages import value


def test_feature_with_a_code_a_table_a_timer_and_a_metric_is_a_folder_and_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "FEATURES", (*FEATURES, visits.build))
    broker = Harness(tmp_path)
    assert [broker.ask(visits.CODE).remark for _ in range(2)] == ["1", "2"]
    assert value(page_of(broker), "tandemq_visits") == 2
    assert b'"visits":"2"' in broker.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body
    broker.node.close()

    again = Harness(tmp_path)
    assert again.ask(visits.CODE).remark == "3"
    again.pass_time(visits.FORGET_MS)
    assert value(page_of(again), "tandemq_visits") == 0


def test_table_of_a_feature_reaches_a_slave_that_polls_and_one_that_is_streamed_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "FEATURES", (*FEATURES, visits.build))
    pair = Group(tmp_path / "pair")
    pair.tell_master(pair.slave)
    pair.master.ask(visits.CODE)
    pair.pass_time(10_000)
    assert pair.slave.node.features.find(visits.Visits).count == 1

    group = RegistryGroup(tmp_path / "group", Mode.ELECT)
    group.brokers[0].ask(visits.CODE)
    group.pass_time(1_000)
    assert [broker.node.features.find(visits.Visits).count for broker in group.brokers.values()] == [1, 1]


def test_two_features_for_one_code_are_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "FEATURES", (*FEATURES, visits.build, visits.build))
    with pytest.raises(AssertionError, match=f"two handlers for {visits.CODE}"):
        Harness(tmp_path)


def test_features_are_called_in_the_order_of_the_list_and_only_if_they_override_a_method() -> None:
    calls: list[str] = []

    class First(Feature):
        def failed(self) -> None:
            calls.append("first")

        def needs_log_from(self) -> dict[str, int]:
            return {"the first": 7}

    class Second(Feature):
        def failed(self) -> None:
            calls.append("second")

        def deadline_ms(self) -> int | None:
            return 5

    features = Features()
    features.add(First(), Feature(), Second())
    features.bind()
    for failed in features.failed:
        failed()
    assert calls == ["first", "second"]
    assert features.deadlines_ms() == [5]
    assert features.needs_log_from() == {"the first": 7}
    assert (features.before_commit, features.requests) == ([], {})


def test_serving_changes_only_with_what_clients_may_do() -> None:
    serving = Serving(is_master=True)
    assert serving.is_same_service(Serving(is_master=True, copied_to=3, visible_end=3))
    for change in (Serving(is_master=False), Serving(is_master=True, epoch=1), Serving(is_master=True, read="no")):
        assert not serving.is_same_service(change)
