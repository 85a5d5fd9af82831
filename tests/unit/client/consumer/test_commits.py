"""Commits at brokers that handle the requests of one connection on several threads, as RocketMQ brokers do."""

from tandemq.client.consumer.offsets.commits import OffsetCommitter, Superseded
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.core.calls import Ticket
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tests.unit.client.world import Broker, World

ADDRESS = "a:10911"


class Threads:
    """Worker threads of a broker: they handle all pending requests at once, the newest first.

    Each thread that finds no offset table of a group and topic creates one, and the last one remains.
    """

    def __init__(self, world: World, broker: Broker) -> None:
        self.world = world
        self.broker = broker
        self.tables: dict[tuple[str, str], dict[int, int]] = {}
        self.commands: list[Command] = []
        broker.handlers[RequestCode.UPDATE_CONSUMER_OFFSET] = self._take

    def _take(self, command: Command) -> None:
        self.commands.append(command)

    def queues(self) -> list[int]:
        """Queues whose offsets are being handled."""
        return [int(command.fields["queueId"]) for command in self.commands]

    def work(self, code: int = ResponseCode.SUCCESS) -> None:
        """Handle the pending requests, and let the client react."""
        self.world.settle()
        commands, self.commands = self.commands[::-1], []
        found = {_table(command): self.tables.get(_table(command)) for command in commands}
        for command in commands:
            table = found[_table(command)]
            if table is None:
                table = self.tables[_table(command)] = {}
            table[int(command.fields["queueId"])] = int(command.fields["commitOffset"])
            self.broker.say(list(self.broker.links)[-1], command.answer(code))
        self.world.settle()


def _table(command: Command) -> tuple[str, str]:
    return command.fields["consumerGroup"], command.fields["topic"]


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "a", queue_id)


def world_of(queues: int) -> tuple[World, Broker, Threads]:
    world = World()
    broker = world.broker("a")
    world.topic("T", queues)
    return world, broker, Threads(world, broker)


def commits_in(world: World) -> OffsetCommitter:
    return OffsetCommitter(world.node.remoting, "billing")


def consumed(world: World, broker: Broker, queues: int, *, orderly: bool = False) -> PushConsumerCore:
    """Return a consumer that has acknowledged one message of each queue and committed nothing."""
    for queue_id in range(queues):
        broker.store("T", queue_id, b"x")
    options = ConsumerOptions(group="billing", consume_from=ConsumeFrom.FIRST, orderly=orderly)
    consumer = world.node.push_consumer(options, world.now)
    consumer.subscribe("T", "*", world.now)
    taken = 0

    def all_taken() -> bool:
        nonlocal taken
        while (delivery := consumer.next_delivery()) is not None:
            consumer.ack(delivery, world.now)
            taken += 1
        return taken == queues

    world.until(all_taken, 4_000)
    return consumer


def test_closing_consumer_commits_the_offset_of_every_queue() -> None:
    world, broker, threads = world_of(4)
    consumer = consumed(world, broker, 4)
    ticket = consumer.close(world.now)
    for _ in range(3):
        threads.work()
    assert ticket.done
    assert threads.tables["billing", "T"] == {0: 1, 1: 1, 2: 1, 3: 1}


def test_first_commit_of_a_topic_is_sent_alone_and_the_others_together() -> None:
    world, _broker, threads = world_of(4)
    commits = commits_in(world)
    for queue_id in range(4):
        commits.commit(queue(queue_id), 1, ADDRESS, world.now)
        commits.commit(queue(queue_id, "U"), 1, ADDRESS, world.now)
    world.settle()
    assert threads.queues() == [0, 0]
    threads.work()
    assert sorted(threads.queues()) == [1, 1, 2, 2, 3, 3]
    threads.work()
    for queue_id in range(4):
        commits.commit(queue(queue_id), 2, ADDRESS, world.now)
    threads.work()
    threads.work()
    assert threads.tables["billing", "T"] == {0: 2, 1: 2, 2: 2, 3: 2}


def test_broker_that_restarts_without_offsets_gets_commits_of_all_queues() -> None:
    world, broker, threads = world_of(2)
    consumer = consumed(world, broker, 2)
    consumer.rebalance_service.commit(world.now)
    for _ in range(3):
        threads.work()
    broker.refuse()
    world.run(100)
    threads.tables.clear()
    broker.recover()
    broker.store("T", 0, b"y")
    broker.store("T", 1, b"y")

    def is_committed_again() -> bool:
        while (delivery := consumer.next_delivery()) is not None:
            consumer.ack(delivery, world.now)
        threads.work()
        return threads.tables.get(("billing", "T")) == {0: 2, 1: 2}

    world.until(is_committed_again, 20_000)


def test_newer_commit_of_a_queue_waits_for_the_older() -> None:
    world, _broker, threads = world_of(1)
    commits = commits_in(world)
    tickets = [commits.commit(queue(0), offset, ADDRESS, world.now) for offset in range(1, 6)]
    threads.work()
    threads.work()
    assert threads.tables["billing", "T"] == {0: 5}
    assert not threads.commands
    assert all(ticket.done for ticket in tickets)
    assert tickets[-1].error is None


def test_refused_commit_does_not_delay_the_others() -> None:
    world, _broker, threads = world_of(2)
    commits = commits_in(world)
    refused, other = (commits.commit(queue(queue_id), 1, ADDRESS, world.now) for queue_id in range(2))
    threads.work(ResponseCode.SYSTEM_ERROR)
    threads.work()
    assert refused.error is not None
    assert (other.done, other.error) == (True, None)


def test_waiting_commits_fail_with_the_broker() -> None:
    world, broker, _threads = world_of(3)
    commits = commits_in(world)
    tickets = [commits.commit(queue(queue_id), 1, ADDRESS, world.now) for queue_id in range(3)]
    world.settle()
    idle: Ticket[None] = commits.idle()
    assert not idle.done
    broker.refuse()
    world.settle()
    assert all(ticket.error is not None for ticket in tickets)
    assert idle.done


def test_dropped_queue_is_unlocked_after_its_commit_and_opened_again_after_that() -> None:
    world, broker, threads = world_of(1)
    consumer = consumed(world, broker, 1, orderly=True)
    assigned = consumer.rebalance_service.get(queue(0))
    assert assigned is not None
    count = len(broker.of(RequestCode.QUERY_CONSUMER_OFFSET))
    consumer.rebalance_service.drop(assigned, world.now)
    consumer.rebalance_service.rebalance(world.now)
    world.settle()
    assert consumer.rebalance_service.queues()
    assert not broker.of(RequestCode.UNLOCK_BATCH_MQ)
    assert len(broker.of(RequestCode.QUERY_CONSUMER_OFFSET)) == count
    threads.work()
    world.until(lambda: len(broker.of(RequestCode.QUERY_CONSUMER_OFFSET)) > count)
    order = [code for code in broker.codes() if code in (RequestCode.UNLOCK_BATCH_MQ, RequestCode.LOCK_BATCH_MQ)]
    assert order[-2:] == [RequestCode.UNLOCK_BATCH_MQ, RequestCode.LOCK_BATCH_MQ]


def test_commit_waiting_for_a_broker_is_superseded_by_a_newer_one_at_another() -> None:
    """Found by simulation seed 1082207: the older commit was sent after the newer one, to the former active member."""
    world, broker, threads = world_of(1)
    other = world.broker("a", 1)
    world.run(31_000)
    commits = commits_in(world)
    commits.commit(queue(0), 68, broker.address, world.now)
    world.settle()
    waits = commits.commit(queue(0), 72, broker.address, world.now)
    world.settle()
    newest = commits.commit(queue(0), 76, other.address, world.now)
    threads.work(ResponseCode.NO_PERMISSION)
    assert isinstance(waits.error, Superseded) and newest.done and newest.error is None
    assert threads.commands == []
    assert [command.fields["commitOffset"] for command in other.of(RequestCode.UPDATE_CONSUMER_OFFSET)] == ["76"]


def test_commit_waiting_for_a_connection_is_superseded_by_a_newer_one_at_another_broker() -> None:
    """Found by simulation seed 2003700: the older commit was sent once the connection was open, after the newer one."""
    world, broker, threads = world_of(2)
    other = world.broker("a", 1)
    world.run(31_000)
    commits = commits_in(world)
    waits = commits.commit(queue(0), 126, broker.address, world.now)
    beside = commits.commit(queue(1), 9, broker.address, world.now)
    newest = commits.commit(queue(0), 127, other.address, world.now)
    threads.work()
    assert isinstance(waits.error, Superseded)
    assert newest.error is None and newest.done and beside.done
    assert threads.tables["billing", "T"] == {1: 9}
    assert [command.fields["commitOffset"] for command in other.of(RequestCode.UPDATE_CONSUMER_OFFSET)] == ["127"]


def test_commit_waiting_for_a_connection_is_not_sent_after_the_queue_was_moved() -> None:
    """Found by simulation seed 1700985: the commit was sent after the move, and undid it."""
    world, broker, threads = world_of(2)
    commits = commits_in(world)
    withdrawn, other = (commits.commit(queue(queue_id), 9, ADDRESS, world.now) for queue_id in range(2))
    commits.withdraw(queue(0), world.now)
    threads.work()
    assert isinstance(withdrawn.error, Superseded) and other.error is None and other.done
    assert threads.tables["billing", "T"] == {1: 9}
    alone = commits.commit(queue(0, "U"), 9, "nowhere:1", world.now)
    idle = commits.idle()
    commits.withdraw(queue(0, "U"), world.now)
    assert alone.done and idle.done
    left = commits.commit(queue(0), 9, ADDRESS, world.now)
    world.settle()
    commits.withdraw(queue(0), world.now)
    threads.work()
    assert left.done and left.error is None, "what has left is answered as ever"
    assert len(broker.of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 2


def test_first_commit_of_a_topic_is_sent_alone_after_an_unsent_one() -> None:
    world, _broker, threads = world_of(4)
    commits = commits_in(world)
    for queue_id in range(4):
        commits.commit(queue(queue_id), 1, ADDRESS, world.now)
    commits.commit(queue(0), 2, ADDRESS, world.now)
    commits.withdraw(queue(1), world.now)
    settled: list[object] = []
    world.node.runner.start(commits.settled(queue(0)), world.now).then(settled.append)
    threads.work()
    assert list(threads.tables["billing", "T"].values()) == [1]
    assert not settled
    threads.work()
    assert threads.tables["billing", "T"] == {2: 1, 3: 1, 0: 2}
    assert settled
