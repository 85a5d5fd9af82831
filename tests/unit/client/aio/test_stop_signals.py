"""SIGINT and SIGTERM: the first one stops, a second one ends the process, and handlers of the application are left."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from tandemq import Message, stop_signals
from tandemq.client.aio.loop_thread import STOP_SIGNALS, LoopThread
from tandemq.client.aio.stop_signals import StopSignals
from tandemq.client.blocking import BlockingProducer
from tandemq.run.local import LocalCluster

CONSUME = """
import asyncio, sys
from tandemq import ConsumeFrom, {kind}

async def handle(message):
    print("begun", message.body.decode(), flush=True)
    try:
        await asyncio.sleep({seconds})
    finally:
        print("ended", message.body.decode(), flush=True)

async def main():
    async with {kind}(sys.argv[1], group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        print("started", flush=True)
        await consumer.run(handle)
    print("closed", flush=True)

asyncio.run(main())
"""
BLOCKING = """
import sys, time
from tandemq import ConsumeFrom, stop_signals
from tandemq.client.blocking import BlockingConsumer

def handle(message):
    print("begun", message.body.decode(), flush=True)
    time.sleep({seconds})
    print("ended", message.body.decode(), flush=True)

with BlockingConsumer(sys.argv[1], group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
    print("started", flush=True)
    {run}
print("closed", flush=True)
"""
ITERATING = """with stop_signals(consumer.stop):
        for message in consumer:
            handle(message)
            message.ack()"""
PROGRAMS = {
    "push": CONSUME.replace("{kind}", "PushConsumer"),
    "pop": CONSUME.replace("{kind}", "PopConsumer"),
    "blocking": BLOCKING.replace("{run}", "consumer.run(handle)"),
    "blocking iteration": BLOCKING.replace("{run}", ITERATING),
}


@pytest.fixture(autouse=True)
def _handlers_are_restored() -> Iterator[None]:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    yield
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before


async def test_first_signal_calls_all_that_wait_for_it() -> None:
    first, second = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(60):
        with stop_signals(first.set), stop_signals(second.set):
            signal.raise_signal(signal.SIGTERM)
            assert not first.is_set()
            await asyncio.gather(first.wait(), second.wait())
            late = asyncio.Event()
            with stop_signals(late.set):
                await late.wait()
        again = asyncio.Event()
        with stop_signals(again.set):
            await asyncio.sleep(0)
            assert not again.is_set()
            signal.raise_signal(signal.SIGINT)
            await again.wait()


def test_without_an_event_loop_the_handler_calls() -> None:
    calls: list[str] = []
    with stop_signals(lambda: calls.append("stop")):
        signal.raise_signal(signal.SIGINT)
        assert calls == ["stop"]


def test_handlers_of_the_application_are_left_to_it() -> None:
    calls: list[int] = []

    def own(number: int, _frame: FrameType | None) -> None:
        calls.append(number)

    before = signal.signal(signal.SIGTERM, own)
    try:
        with stop_signals(lambda: calls.append(0)):
            signal.raise_signal(signal.SIGTERM)
            assert calls == [signal.SIGTERM]
            signal.raise_signal(signal.SIGINT)
            assert calls == [signal.SIGTERM, 0]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_handler_that_the_application_sets_meanwhile_is_kept() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with stop_signals(lambda: None):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_get_no_signals() -> None:
    found: list[object] = []

    def wait() -> None:
        with stop_signals(lambda: None):
            found.extend(signal.getsignal(number) for number in STOP_SIGNALS)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(number) for number in STOP_SIGNALS]


def test_signal_that_another_thread_receives_ends_a_blocking_call() -> None:
    """The kernel chooses the thread; Python calls the handler in the main one, which such a signal does not wake."""
    thread, stopped = LoopThread(), asyncio.Event()
    main_waits, other_ends = threading.Event(), threading.Event()

    def receive() -> None:
        main_waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        other_ends.wait()

    async def wait() -> None:
        main_waits.set()
        await stopped.wait()

    other = threading.Thread(target=receive)
    other.start()
    try:
        with stop_signals(lambda: thread.post(stopped.set)):
            thread.call(wait())
    finally:
        other_ends.set()
        thread.stop()
    other.join()


def test_threads_of_the_client_receive_no_signals_and_child_processes_of_handlers_do() -> None:
    async def masks() -> tuple[set[int], set[int]]:
        def mask() -> set[int]:
            return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))

        return mask(), await asyncio.to_thread(mask)

    thread = LoopThread()
    try:
        own, of_handlers = thread.call(masks())
    finally:
        thread.stop()
    assert set(STOP_SIGNALS) <= own
    assert not of_handlers & set(STOP_SIGNALS)


def test_signals_may_be_removed_twice() -> None:
    signals = StopSignals(lambda: None)
    signals.install()
    signals.remove()
    signals.remove()


class Program:
    """A consumer in a process of its own."""

    def __init__(self, source: str, cluster: LocalCluster) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", source, cluster.name_servers],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, line: str) -> None:
        assert self._process.stdout is not None
        for found in self._process.stdout:
            if found.strip() == line:
                return
        raise AssertionError(f"{line!r} never came: {self._process.communicate()[1]}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ended(self) -> tuple[int, list[str], str]:
        """Return exit status, the lines that were not read, and the errors."""
        out, errors = self._process.communicate(timeout=120)
        return self._process.returncode, out.split("\n")[:-1], errors


@pytest.fixture(params=PROGRAMS)
def source(request: pytest.FixtureRequest) -> str:
    return PROGRAMS[request.param]


def send_one(cluster: LocalCluster) -> None:
    with BlockingProducer(cluster.name_servers, group="p") as producer:
        producer.send(Message("T", b"0"))


@pytest.mark.system
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_consumer_ends_in_order_by_the_first_signal(
    number: signal.Signals, source: str, tandemq_broker: LocalCluster
) -> None:
    send_one(tandemq_broker)
    program = Program(source.replace("{seconds}", "1"), tandemq_broker)
    program.until("begun 0")
    program.signal(number)
    assert program.ended() == (0, ["ended 0", "closed"], "")


@pytest.mark.system
def test_consumer_that_waits_for_messages_ends_by_a_signal(source: str, tandemq_broker: LocalCluster) -> None:
    send_one(tandemq_broker)
    program = Program(source.replace("{seconds}", "0"), tandemq_broker)
    program.until("ended 0")
    program.signal(signal.SIGTERM)
    assert program.ended() == (0, ["closed"], "")


@pytest.mark.system
def test_second_signal_ends_the_process_at_once(source: str, tandemq_broker: LocalCluster) -> None:
    """Two of the same number, sent one after the other, may arrive as one."""
    send_one(tandemq_broker)
    program = Program(source.replace("{seconds}", "3600"), tandemq_broker)
    program.until("begun 0")
    program.signal(signal.SIGINT)
    program.signal(signal.SIGTERM)
    status, lines, errors = program.ended()
    assert status in {-signal.SIGINT, -signal.SIGTERM}
    assert (lines, errors) == ([], "")
