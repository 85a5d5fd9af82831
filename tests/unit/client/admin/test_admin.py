"""The administration client against brokers in this process."""

import pytest

from tandemq import Admin, ConsumeFrom, Message, Producer, PushConsumer, SendResult
from tandemq.client.admin import groups
from tandemq.client.admin.groups import ResetTarget
from tandemq.errors import LocalError, NoRoute, ProtocolError, RemoteError
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tests.spec import spec
from tests.unit.client.aio.test_clients import take, until


async def send(cluster: LocalCluster, count: int, topic: str = "T") -> list[SendResult]:
    async with Producer(cluster.name_servers, group="p") as producer:
        return [await producer.send(Message(topic, b"%d" % n, tags="t", keys=[f"k{n}", "all"])) for n in range(count)]


async def consume(cluster: LocalCluster, count: int, group: str = "g") -> list[int]:
    async with PushConsumer(
        cluster.name_servers, group=group, topics={"T": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        messages = await take(consumer, count)
        for message in messages:
            await message.ack()
        return [int(message.body) for message in messages]


async def test_topics_are_created_described_and_deleted(tandemq_broker: LocalCluster) -> None:
    async with Admin(tandemq_broker.name_servers) as admin:
        assert await admin.create_topic("T", queues=3) == [tandemq_broker.address]
        assert "T" in await admin.topics()
        route = await admin.topic_route("T")
        assert len(route.publish_queues()) == len(route.subscribe_queues()) == 3
        assert (await admin.topic_config("T"))["broker-a"].write_queue_nums == 3
        await send(tandemq_broker, 5)
        stats = await admin.topic_stats("T")
        assert sum(queue.max_offset - queue.min_offset for queue in stats.values()) == 5
        await admin.delete_topic("T")
        with pytest.raises(NoRoute):
            await admin.topic_route("T")


async def test_messages_of_several_topics_are_counted_at_once(tandemq_broker: LocalCluster) -> None:
    async with Admin(tandemq_broker.name_servers) as admin:
        for topic, count in (("T", 5), ("U", 2)):
            await admin.create_topic(topic, queues=3)
            await send(tandemq_broker, count, topic)
        wanted = {"T": ["broker-a"], "U": ["broker-a"], "V": ["broker-a"], "W": ["elsewhere"]}
        assert await admin.message_counts(wanted) == {"T": 5, "U": 2}


async def test_invalid_names_are_refused_before_anything_is_sent(tandemq_broker: LocalCluster) -> None:
    async with Admin(tandemq_broker.name_servers) as admin:
        with pytest.raises(LocalError):
            await admin.create_topic("no spaces")
        with pytest.raises(LocalError):
            await admin.create_group("")
        with pytest.raises(LocalError):
            await admin.create_topic("T", cluster="elsewhere")
        with pytest.raises(ProtocolError):
            await admin.message_by_id("xyz")


async def test_broker_reports_its_settings_and_statistics(tandemq_pair: LocalCluster) -> None:
    async with Admin(tandemq_pair.name_servers) as admin:
        info = await admin.cluster_info()
        assert sorted(info.brokers["broker-a"].members) == [0, 1]
        assert len(info.addresses()) == 2
        runtime = await admin.broker_runtime(tandemq_pair.address)
        assert runtime["brokerVersionDesc"].startswith("V")
        config = await admin.broker_config(tandemq_pair.address)
        assert config["brokerName"] == "broker-a"


async def test_groups_are_created_listed_and_deleted(tandemq_broker: LocalCluster) -> None:
    async with Admin(tandemq_broker.name_servers) as admin:
        await admin.create_group(SubscriptionGroupConfig("g", retry_max_times=3))
        assert (await admin.groups())["g"].retry_max_times == 3
        await admin.delete_group("g", clean=True)
        assert "g" not in await admin.groups()


async def test_progress_and_connections_of_a_group(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    await send(tandemq_broker, 10)
    async with (
        Admin(ns) as admin,
        PushConsumer(ns, group="g", topics={"T": "t || u"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        for message in (await take(consumer, 10))[:6]:
            await message.ack()
        await consumer.commit()
        found = await admin.connections("g")
        assert found is not None
        assert found.subscriptions["T"] == "t || u"
        assert len(found.connections) == 1
        info = await admin.running_info("g", found.connections[0].client_id)
        assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert "g" in await admin.topic_groups("T")

        async def is_told() -> bool:
            return sum(progress.lag for progress in (await admin.progress("g", "T")).values()) == 4

        await until(is_told)
        await admin.create_group(SubscriptionGroupConfig("idle"))
        every = await admin.all_progress()
        assert every["g"] and await admin.group_progress("g") == every["g"]
        assert await admin.group_progress("idle") == every["idle"] == {}
    async with Admin(ns) as admin:
        assert await admin.connections("g") is None


async def test_messages_are_found_by_id_key_and_offset(tandemq_broker: LocalCluster) -> None:
    sent = await send(tandemq_broker, 5)
    async with Admin(tandemq_broker.name_servers) as admin:
        one = sent[2]
        assert (await admin.message_by_id(one.offset_message_id)).body == b"2"
        assert [message.body for message in await admin.messages_by_key("T", "k3")] == [b"3"]
        assert len(await admin.messages_by_key("T", "all")) == 5
        assert len(await admin.messages_by_key("T", "all", count_max=2)) == 2
        assert [m.body for m in await admin.messages_by_key("T", one.unique_key, unique=True)] == [b"2"]
        assert await admin.messages_by_key("T", "nothing") == []
        found = await admin.message_at(one.queue, one.queue_offset)
        assert found is not None
        assert found.unique_key == one.unique_key
        assert await admin.message_at(one.queue, 1_000) is None


@spec("G12")
async def test_offline_group_is_reset_to_offset_and_time_for_all_queues_and_one(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    async with Admin(ns) as admin:
        await admin.create_topic("T", queues=2)
        sent = await send(tandemq_broker, 10)
        assert sorted(await consume(tandemq_broker, 10)) == list(range(10))
        stored = [(await admin.message_by_id(result.offset_message_id)).store_ms for result in sent]
        plan = await admin.plan_reset("T", ResetTarget(time_ms=stored[5]))
        assert await admin.reset_offsets("g", "T", ResetTarget(time_ms=stored[5])) == plan
        since = [number for number in range(10) if stored[number] >= stored[5]]  # several may be of one millisecond
        assert sorted(await consume(tandemq_broker, len(since))) == since
        await admin.reset_offsets("g", "T", ResetTarget(offset=3))
        assert len(await consume(tandemq_broker, 4)) == 4
        queue = MessageQueue("T", "broker-a", 1)
        await admin.reset_offsets("g", "T", ResetTarget(offset=4, queue=queue))
        assert await admin.offset("g", queue) == 4
        await admin.reset_offsets("g", "T", ResetTarget(time_ms=0, queue=queue))
        assert await admin.offset("g", queue) == 0
        assert await admin.offset("g", MessageQueue("T", "broker-a", 0)) == 5
        await admin.reset_offsets("g", "T", ResetTarget(offset=1_000_000, queue=queue))
        assert await admin.offset("g", queue) == 5
        for wrong in (
            ResetTarget(),
            ResetTarget(time_ms=1, offset=1),
            ResetTarget(offset=1, queue=MessageQueue("T", "broker-a", 9)),
        ):
            with pytest.raises(LocalError):
                await admin.reset_offsets("g", "T", wrong)


@spec("G12")
async def test_online_group_is_reset_to_a_time_and_consumes_again(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    await send(tandemq_broker, 6)
    async with (
        Admin(ns) as admin,
        PushConsumer(ns, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        for message in await take(consumer, 6):
            await message.ack()
        await admin.reset_offsets("g", "T", ResetTarget(time_ms=0))
        assert len(await take(consumer, 6)) == 6


async def test_offsets_are_set_and_cloned(tandemq_broker: LocalCluster) -> None:
    sent = await send(tandemq_broker, 4)
    queue = sent[0].queue
    async with Admin(tandemq_broker.name_servers) as admin:
        await admin.create_group("h")
        assert await admin.bounds(queue) == (0, 1)
        assert await admin.offset_by_time(queue, 0) == 0
        await admin.set_offset("h", queue, 1)
        assert await admin.offset("h", queue) == 1
        await admin.clone_offsets("h", "copy", "T")
        assert await admin.offset("copy", queue) == 1


async def test_name_servers_store_values_and_permissions(tandemq_broker: LocalCluster) -> None:
    await send(tandemq_broker, 1)
    async with Admin(tandemq_broker.name_servers) as admin:
        assert await admin.get_value("space", "key") is None
        await admin.put_value("space", "key", "value")
        assert await admin.get_value("space", "key") == "value"
        await admin.put_value("space", "key", None)
        assert await admin.get_value("space", "key") is None
        assert await admin.set_write_permission("broker-a", may_write=False) > 0
        assert (await admin.topic_route("T")).publish_queues() == []
        await admin.set_write_permission("broker-a", may_write=True)
        assert (await admin.topic_route("T")).publish_queues()


async def test_settings_are_changed_while_running(tandemq_broker: LocalCluster) -> None:
    async with Admin(tandemq_broker.name_servers) as admin:
        await admin.update_broker_config(tandemq_broker.address, {"maxMessageSize": "2000"})
        assert (await admin.broker_config(tandemq_broker.address))["maxMessageSize"] == "2000"
        async with Producer(tandemq_broker.name_servers, group="p", compress_above_bytes=1 << 30) as producer:
            with pytest.raises(RemoteError) as refused:
                await producer.send(Message("T", bytes(3_000)))
        assert refused.value.code == 13


@pytest.mark.parametrize(
    ("old", "new"), [("Progress", "ConsumeProgress"), ("Connection", "ClientConnection"), ("Target", "ResetTarget")]
)
def test_renamed_classes_keep_their_old_names_with_a_warning(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(groups, old) is getattr(groups, new)
    with pytest.raises(AttributeError, match="nothing"):
        _ = groups.nothing
