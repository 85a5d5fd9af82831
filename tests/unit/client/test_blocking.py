"""The blocking client: interrupted calls, other threads, other processes, functions of users that exit."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import uvloop

from tandemq import ConsumeFrom, Message, MessageQueue, StoredMessage, TransactionProducer, TransactionState
from tandemq.client.aio.loop_thread import LoopThread
from tandemq.client.blocking import BlockingConsumer, BlockingProducer, BlockingTransactionProducer
from tandemq.errors import ClosedError, ConfigError, LocalError, OutcomeUnknown, TandemError
from tandemq.run.local import LocalCluster

pytestmark = pytest.mark.system
FIRST = ConsumeFrom.FIRST


class Interrupted(Exception):
    """Raised by the signal handler."""


def until(probe: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not probe():
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)


@contextmanager
def interrupted(when: Callable[[], object]) -> Iterator[None]:
    """Interrupt the body by an exception from a signal handler, as soon as `when`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupted

    def wait() -> None:
        until(when)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        with pytest.raises(Interrupted):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tandemq-client"]


def consuming(cluster: LocalCluster) -> BlockingConsumer:
    return BlockingConsumer(cluster.name_servers, group="g", topics={"T": "*"}, consume_from=FIRST)


def test_interrupted_receive_takes_no_message(tandemq_broker: LocalCluster) -> None:
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer, consuming(tandemq_broker) as consumer:
        receivers = consumer._inner._receivers
        for _ in range(3):
            with interrupted(lambda: receivers):
                consumer.receive()
            until(lambda: not receivers)
        sent = {producer.send(Message("T", b"%d" % number)).unique_key for number in range(6)}
        seen = set[str]()
        while seen != sent:
            message = consumer.receive(30)
            assert message is not None, f"{len(seen)} of 6 came"
            seen.add(message.unique_key)
            message.ack()


def test_message_that_was_taken_for_an_interrupted_call_is_delivered_at_once(tandemq_broker: LocalCluster) -> None:
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer, consuming(tandemq_broker) as consumer:
        producer.send(Message("T", b"x"))
        message = consumer.receive(30)
        assert message is not None
        consumer._thread.call(_soon(lambda: consumer._return(message._inner)))
        again = consumer.receive(30)
        assert again is not None and (again.body, again.reconsume_times) == (b"x", 0)
        again.ack()


def test_consumer_subscribes_to_a_topic_later(tandemq_broker: LocalCluster) -> None:
    ns = tandemq_broker.name_servers
    with BlockingProducer(ns, group="p") as producer, BlockingConsumer(ns, group="g", consume_from=FIRST) as consumer:
        producer.send(Message("T", b"x"))
        consumer.subscribe("T")
        message = consumer.receive(60)
        assert message is not None and message.body == b"x"
        message.ack()


@pytest.mark.parametrize("has_begun", [False, True])
def test_receive_that_is_interrupted_while_it_begins_loses_no_message(
    has_begun: bool, tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LoopThread.begin

    def interrupted_begin(self: LoopThread, work: Coroutine[Any, Any, object]) -> None:
        if has_begun:
            begin(self, work)
        raise Interrupted

    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer, consuming(tandemq_broker) as consumer:
        receivers = consumer._inner._receivers
        with monkeypatch.context() as patch:
            patch.setattr(LoopThread, "begin", interrupted_begin)
            with pytest.raises(Interrupted):
                consumer.receive()
        consumer._thread.call(_soon(lambda: None))
        until(lambda: not receivers)
        producer.send(Message("T", b"x"))
        message = consumer.receive(60)
        assert message is not None
        message.ack()


async def _soon(action: Callable[[], object]) -> None:
    action()


def test_result_of_an_abandoned_call_is_undone() -> None:
    thread = LoopThread()
    started, undone = threading.Event(), list[str]()

    async def take() -> str:
        started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "taken"
        return "unreachable"

    with interrupted(started.is_set):
        thread.call(take(), undone.append)
    until(lambda: undone == ["taken"])
    thread.stop()


def test_interrupted_constructor_and_close_leave_no_thread(tandemq_broker: LocalCluster) -> None:
    with interrupted(client_threads):
        BlockingConsumer("127.0.0.1:1", group="g", topics={"T": "*"}, start_timeout_ms=200_000)
    until(lambda: not client_threads())
    producer = BlockingProducer(tandemq_broker.name_servers, group="p")
    producer.send(Message("T", b"x"))
    core = producer._inner._core
    assert core is not None
    core.in_flight += 1  # close waits for it
    with interrupted(lambda: core._is_closed):
        producer.close()
    assert not client_threads()
    producer.close()


def test_interrupted_start_of_the_thread_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted_start)
        with pytest.raises(Interrupted):
            LoopThread()
    until(lambda: not client_threads())


def test_send_in_flight_when_close_is_interrupted_has_an_unknown_outcome(
    tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = BlockingProducer(tandemq_broker.name_servers, group="p")
    producer.send(Message("T", b"x"))
    core = producer._inner._core
    assert core is not None
    monkeypatch.setattr(producer._inner._shell, "received", lambda *_: None)
    errors: list[Exception] = []

    def send() -> None:
        try:
            producer.send(Message("T", b"x"))
        except TandemError as error:
            errors.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: core.in_flight)
    with interrupted(lambda: core._is_closed):
        producer.close()
    thread.join()
    [error] = errors
    assert isinstance(error, OutcomeUnknown) and "the client was closed" in str(error)


def test_work_that_is_cut_off_when_the_loop_ends_has_an_unknown_outcome() -> None:
    thread = LoopThread()
    started = threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.get_running_loop().create_future()

    def stop() -> None:
        started.wait()
        thread.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(OutcomeUnknown, match="cancelled before it ended"):
        thread.call(work())
    stopper.join()


def test_close_ends_the_calls_of_other_threads(tandemq_broker: LocalCluster) -> None:
    consumer = consuming(tandemq_broker)
    ended: list[BaseException] = []

    def receive() -> None:
        try:
            consumer.receive()
        except ClosedError as error:
            ended.append(error)

    threads = [threading.Thread(target=receive) for _ in range(3)]
    threads += [threading.Thread(target=consumer.close) for _ in range(3)]
    for thread in threads[:3]:
        thread.start()
    until(lambda: len(consumer._inner._receivers) == 3)
    for thread in threads[3:]:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 3
    assert not client_threads()
    with pytest.raises(ClosedError):
        consumer.receive()


FORKED = """
import os, sys
from tandemq import ConsumeFrom, Message, TransactionState
from tandemq.client.blocking import BlockingConsumer, BlockingProducer, BlockingTransactionProducer
from tandemq.errors import LocalError

ns = sys.argv[1]
check = lambda message: TransactionState.COMMIT
with (
    BlockingProducer(ns, group="p") as producer,
    BlockingTransactionProducer(ns, group="t", check=check, topics=["T"]) as transactions,
    BlockingConsumer(ns, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
):
    producer.send(Message("T", b"0"))
    message = consumer.receive(60)
    begun = transactions.transaction(Message("T", b"1"))
    child = os.fork()
    if not child:
        uses = [
            lambda: producer.send(Message("T", b"x")),
            lambda: producer.request(Message("T", b"x")),
            lambda: consumer.receive(),
            message.ack,
            begun.__enter__,
        ]
        refused = 0
        for use in uses:
            try:
                use()
            except LocalError as error:
                refused += "made by fork" in str(error)
        for client in (producer, transactions, consumer):
            client.close()
        with BlockingProducer(ns, group="p") as own:
            own.send(Message("T", b"2"))
        os._exit(0 if refused == len(uses) else 1)
    _, status = os.waitpid(child, 0)
    message.ack()
    with begun:
        pass
    producer.send(Message("T", b"3"))
    bodies = sorted(consumer.receive(60).body for _ in range(3))
    print(status, bodies)
"""


def test_copy_made_by_fork_refuses_calls_at_once_and_leaves_the_original_alone(tandemq_broker: LocalCluster) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKED, tandemq_broker.name_servers]
    done = subprocess.run(command, timeout=200, capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout == "0 [b'1', b'2', b'3']\n", done.stderr


@pytest.mark.tandemq(transactionCheckInterval=200, transactionTimeOut=100)
def test_check_that_exits_is_asked_again(tandemq_broker: LocalCluster) -> None:
    ways: list[BaseException] = [SystemExit(3), StopIteration(), KeyboardInterrupt()]

    def check(_message: StoredMessage) -> TransactionState:
        if ways:
            raise ways.pop()
        return TransactionState.COMMIT

    async def unknown(_message: StoredMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async def begin() -> None:
        async with TransactionProducer(ns, group="p", check=unknown, topics=["T"]) as crashed:
            await crashed.transaction(Message("T", b"x")).__aenter__()

    ns = tandemq_broker.name_servers
    asyncio.run(begin())
    with BlockingTransactionProducer(ns, group="p", check=check, topics=["T"]) as producer:
        with consuming(tandemq_broker) as consumer:
            assert consumer.receive(60) is not None
        producer.send(Message("T", b"the loop lives"))
    assert not ways


def test_asynchronous_check_is_refused() -> None:
    async def check(_message: StoredMessage) -> TransactionState:
        return TransactionState.COMMIT

    with pytest.raises(ConfigError, match="not a plain function"):
        BlockingTransactionProducer("127.0.0.1:1", group="p", check=check)  # type: ignore[arg-type]


def test_blocking_call_within_the_client_and_an_exit_there_raise_and_do_not_hang(tandemq_broker: LocalCluster) -> None:
    def send_within(queues: list[MessageQueue]) -> MessageQueue:
        producer.send(Message("T", b"x"))
        return queues[0]

    def leave(_queues: list[MessageQueue]) -> MessageQueue:
        raise SystemExit(3)

    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer:
        producer.send(Message("T", b"x"))
        with pytest.raises(LocalError, match="would wait for itself"):
            producer.send(Message("T", b"x"), select=send_within)
        with pytest.raises(SystemExit):
            producer.send(Message("T", b"x"), select=leave)
        with pytest.raises(LocalError, match="closed"):
            producer.send(Message("T", b"x"))


def test_blocking_client_works_on_uvloop(tandemq_broker: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", uvloop.new_event_loop)
    with BlockingProducer(tandemq_broker.name_servers, group="p") as producer, consuming(tandemq_broker) as consumer:
        producer.send(Message("T", b"x"))
        message = consumer.receive(30)
        assert message is not None
        message.ack()
