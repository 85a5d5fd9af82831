"""Clients where other code owns the event loop or the process: notebooks, several loops, `fork`, cancellation."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tandemq import Admin, ConsumeFrom, Message, PopConsumer, Producer, PullConsumer, PushConsumer, TransactionProducer
from tandemq.errors import ClosedError, LocalError
from tandemq.model.message import StoredMessage
from tandemq.model.transactions import TransactionState
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
FIRST = ConsumeFrom.FIRST


async def send_and_receive(name_servers: str, group: str) -> bytes:
    async with Producer(name_servers, group="p") as producer:
        await producer.send(Message("T", b"x"))
    async with PushConsumer(name_servers, group=group, topics={"T": "*"}, consume_from=FIRST) as consumer:
        message = await consumer.receive(60)
        assert message is not None
        await message.ack()
        return message.body


def test_cells_of_a_notebook_share_a_running_loop(tandemq_broker: LocalCluster) -> None:
    """Each cell is a task of its own on a loop that runs before and after it; clients outlive the cell that made them,
    and one that is interrupted can be followed by others."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    names: dict[str, Any] = {}

    def cell(work: Coroutine[Any, Any, object]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def start() -> None:
        names["producer"] = Producer(tandemq_broker.name_servers, group="p")
        names["consumer"] = PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST)
        await names["producer"].start()
        await names["consumer"].start()

    async def interrupted() -> None:
        running = asyncio.create_task(names["consumer"].run(ignore))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    async def ignore(_message: object) -> None: ...

    try:
        cell(start())
        cell(interrupted())
        assert cell(names["producer"].send(Message("T", b"x"))).queue.topic == "T"
        message = cell(names["consumer"].receive(60))
        assert message.body == b"x"
        cell(message.ack())
        cell(names["consumer"].close())
        cell(names["producer"].close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_lines_of_the_asyncio_prompt_share_a_client(tandemq_broker: LocalCluster) -> None:
    lines = f"""
from tandemq import *
producer = Producer("{tandemq_broker.name_servers}", group="p")
await producer.start()
print("sent", (await producer.send(Message("T", b"x"))).status.value)
await producer.close()
exit()
"""
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=lines, capture_output=True, text=True, timeout=120, check=False
    )
    assert "sent SEND_OK" in done.stdout
    assert "Traceback" not in done.stderr


def test_each_loop_of_a_process_has_clients_of_its_own(tandemq_broker: LocalCluster) -> None:
    bodies: list[bytes] = []

    def work(group: str) -> None:
        bodies.append(asyncio.run(send_and_receive(tandemq_broker.name_servers, group)))

    threads = [threading.Thread(target=work, args=(f"g{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bodies == [b"x"] * 3


def test_client_of_one_loop_is_refused_on_the_next(tandemq_broker: LocalCluster) -> None:
    producer = Producer(tandemq_broker.name_servers, group="p")
    with asyncio.Runner() as runner:
        runner.run(producer.start())
        runner.run(producer.send(Message("T", b"x")))

        async def elsewhere() -> None:
            with pytest.raises(LocalError, match="another event loop"):
                await producer.send(Message("T", b"x"))
            with pytest.raises(LocalError, match="another event loop"):
                await producer.close()

        asyncio.new_event_loop().close()
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        thread.start()
        thread.join()
        runner.run(producer.close())


def test_child_made_by_fork_gets_an_error_instead_of_a_hang(tandemq_broker: LocalCluster) -> None:
    """The child has no loop, or a new one; the connections stay the parent's."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, tandemq_broker.name_servers],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == ["child: LocalError", "child: LocalError", "parent: SEND_OK"], done.stderr
    assert done.stderr.count("is a copy made by fork") == 2


FORKING = """
import asyncio, os, sys
from tandemq import Message, Producer
from tandemq.errors import TandemError

async def attempt(producer, who):
    try:
        result = await producer.send(Message("T", b"x"))
        print(f"{who}: {result.status.value}", flush=True)
    except TandemError as error:
        print(f"{who}: {type(error).__name__}", flush=True)
        print(error, file=sys.stderr, flush=True)

def child(producer):
    asyncio._set_running_loop(None)
    asyncio.run(attempt(producer, "child"))
    try:
        producer.begin(Message("T", b"x"))
    except TandemError as error:
        print(f"child: {type(error).__name__}", flush=True)
        print(error, file=sys.stderr, flush=True)
    os._exit(0)

async def main():
    async with Producer(sys.argv[1], group="p") as producer:
        await producer.send(Message("T", b"x"))
        number = os.fork()
        if not number:
            child(producer)
        os.waitpid(number, 0)
        await attempt(producer, "parent")

asyncio.run(main())
"""


# Cancellation.


async def no_check(_message: StoredMessage) -> TransactionState:
    return TransactionState.ROLLBACK


CALLS: dict[str, Callable[[Any, str], Coroutine[Any, Any, object]]] = {
    "send": lambda clients, topic: clients["producer"].send(Message(topic, b"x")),
    "batch": lambda clients, topic: clients["producer"].send_batch([Message(topic, b"x")] * 2),
    "oneway": lambda clients, topic: clients["producer"].send_oneway(Message(topic, b"x")),
    "request": lambda clients, topic: clients["producer"].request(Message(topic, b"x")),
    "flush": lambda clients, _: clients["producer"].flush(),
    "queues": lambda clients, topic: clients["producer"].queues(topic),
    "transaction": lambda clients, topic: clients["transactions"].transaction(Message(topic, b"x")).__aenter__(),
    "receive": lambda clients, _: clients["push"].receive(),
    "run": lambda clients, _: clients["push"].run(_ignored),
    "subscribe": lambda clients, topic: clients["push"].subscribe(topic),
    "pop": lambda clients, _: clients["pop"].receive(),
    "poll": lambda clients, _: clients["pull"].poll(),
    "topics": lambda clients, _: clients["admin"].topics(),
}


async def _ignored(_message: object) -> None: ...


async def test_cancelled_call_ends_with_the_cancellation_and_harms_no_other(tandemq_broker: LocalCluster) -> None:
    """Each call is cancelled after 0, 1, 2 … turns of the loop, until it ends by itself or waits for longer."""
    name_servers = tandemq_broker.name_servers
    clients: dict[str, Any] = {
        "producer": Producer(name_servers, group="p"),
        "transactions": TransactionProducer(name_servers, group="t", check=no_check),
        "push": PushConsumer(name_servers, group="g", topics={"Empty": "*"}),
        "pop": PopConsumer(name_servers, group="h", topics={"Empty": "*"}),
        "pull": PullConsumer(name_servers, group="r"),
        "admin": Admin(name_servers),
    }
    async with asyncio.timeout(120):
        for client in clients.values():
            await client.start()
        await clients["producer"].send(Message("Known", b"x"))
        for name, call in CALLS.items():
            for turns in range(6):
                task = asyncio.create_task(call(clients, "Known"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                if task.cancel():
                    with pytest.raises(asyncio.CancelledError):
                        await task
                    assert task.cancelled(), name
        assert (await clients["producer"].send(Message("Known", b"x"))).queue.topic == "Known"
        await clients["push"].subscribe("Known")
        assert await clients["push"].receive() is not None
        for client in clients.values():
            await client.close()


@pytest.mark.parametrize("turns", range(6))
async def test_cancelled_start_leaves_a_closed_client(turns: int, tandemq_broker: LocalCluster) -> None:
    consumer = PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": "*"})
    async with asyncio.timeout(60):
        starting = asyncio.create_task(consumer.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        with pytest.raises(ClosedError):
            await consumer.receive()
        async with consumer:
            assert await consumer.receive(0) is None
