"""Consumers behind proxies at a broker: who has them, and what they may cost."""

import pytest

from tandemq.broker.state import proxied_consumers
from tandemq.broker.state.proxied_consumers import BYTES_MAX, ProxiedConsumers
from tandemq.broker.state.subscriptions import EXPRESSION_BYTES_MAX
from tandemq.model.group import ConsumerData, SubscriptionData
from tandemq.model.proxied import ProxiedConsumer, ProxiedKey, ProxiedReport


def consumer(client_id: str, group: str = "G", *topics: str, **more: str) -> ProxiedConsumer:
    data = ConsumerData(group, subscription_data_set=[SubscriptionData(topic) for topic in topics])
    return ProxiedConsumer(client_id, more.get("address", "10.0.0.1:1"), more.get("language", "JAVA"), 479, data)


def join(table: ProxiedConsumers, link: int, *consumers: ProxiedConsumer) -> list[str]:
    """Return the reasons of what was refused."""
    return [refused.reason for refused in table.take(ProxiedReport(list(consumers)), link, 0)]


def ids(table: ProxiedConsumers, group: str = "G") -> list[str]:
    return [each.member.client_id for each in table.of_group(group)]


def test_consumers_belong_to_the_connection_that_reported_them_last() -> None:
    table = ProxiedConsumers()
    assert join(table, 1, consumer("a"), consumer("b")) == [] == join(table, 2, consumer("b"), consumer("c"))
    member = table.find("G", "b")
    assert member is not None and member.link == 2
    table.take(ProxiedReport(left=[ProxiedKey("G", "b"), ProxiedKey("G", "c"), ProxiedKey("X", "a")]), 1, 0)
    assert ids(table) == ["a", "b", "c"], "another proxy has them"
    table.link_closed(1)
    assert ids(table) == ["b", "c"] and table.find("G", "a") is None
    table.take(ProxiedReport(left=[ProxiedKey("G", "b")]), 2, 0)
    table.link_closed(2)
    table.link_closed(2)
    assert ids(table) == [] == table.of_group("none")


def test_subscriptions_are_those_of_the_newest_consumer() -> None:
    table = ProxiedConsumers()
    first, second = consumer("a", "G", "T", "U"), consumer("b", "G", "T")
    second.consumer.subscription_data_set[0].sub_string = "x"
    assert join(table, 1, first, second) == []
    assert {name: each.sub_string for name, each in table.subscriptions("G").items()} == {"T": "x", "U": "*"}


def test_malformed_consumers_are_refused_and_the_others_taken() -> None:
    table = ProxiedConsumers()
    long = consumer("long", "G", "T")
    long.consumer.subscription_data_set[0].sub_string = "x" * (EXPRESSION_BYTES_MAX + 1)
    wrong = {
        "group": consumer("a", "no group!"),
        "the client id": consumer(""),
        "address": consumer("a", address="a" * 101),
        "language": consumer("a", language="J" * 101),
        "more than": consumer("many", "G", *(f"T{number}" for number in range(2_001))),
        "bytes": long,
    }
    for expected, each in wrong.items():
        (reason,) = join(table, 1, each, consumer("good"))
        assert expected in reason, reason
    assert ids(table) == ["good"]


def test_what_all_of_them_cost_is_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxied_consumers, "CONSUMERS_MAX", 3)
    table = ProxiedConsumers()
    for _ in range(3):
        assert join(table, 1, *map(consumer, "abc")) == []
        (reason,) = join(table, 2, consumer("d"))
        assert "3 consumers" in reason
        assert join(table, 2, consumer("a")) == [], "one that is known costs nothing more"
        table.link_closed(1)
        table.link_closed(2)
    big = [consumer(str(number), "G", *(f"{number}-{topic}" for topic in range(2_000))) for number in range(3)]
    size = BYTES_MAX // 2_000 // 550
    monkeypatch.setattr(proxied_consumers, "CONSUMERS_MAX", 1_000_000)
    reasons = [join(table, 1, consumer(f"{n}", "G", *(f"t{topic}" for topic in range(2_000)))) for n in range(size + 5)]
    assert reasons[0] == [] and "bytes already" in reasons[-1][0]
    table.link_closed(1)
    assert join(table, 1, *big) == []
