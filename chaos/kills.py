"""Kill masters of unmodified Java brokers, or of TandemQ's, under load, and judge the history of the clients.

    python -m chaos.kills --brokers 5.3.3 --role SYNC_MASTER     TandemQ's clients, a master and a slave of Java
    python -m chaos.kills --role elect --clients 5.3.3           Java's clients, two brokers of TandemQ that elect

Master and slave have ASYNC_FLUSH; kill -9 leaves what they have written. A master with a fixed role is started again
some seconds after its death, a member that elects too, while the other one serves. Needs Java 17 and Maven. Exit code
3: the judge found anomalies; 2: the run itself failed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from chaos.pops import INVISIBLE_S, PopHistory, consume
from chaos.recorder import READER, Recorder, now_ms, read_all
from judge.__main__ import main as judge
from tandemq import Admin, Producer, PullConsumer
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message
from tests.interop.driver import Event, JavaDriver, Running
from tests.interop.java import CLIENT_VERSIONS, SERVER_VERSIONS, PeerError, Value, wait_until
from tests.interop.outages import cluster
from tests.interop.peers import NEWEST_VERSION, Broker, NameServer, broker, name_server, start_registered
from tests.interop.wire import registered_brokers

OURS, ELECT = "ours", "elect"
TOPIC, GROUP, QUEUES = "Killed", "broker-a", 4
EXIT_FAILED = 2
_PRODUCERS = ("a", "b")
_PACE_S, _FAILED_S, _OFFSETS_S, _COMMIT_S = 0.003, 0.05, 0.1, 1.0
_PROMISES = {"pop_slack_ms": INVISIBLE_S * 1_000}  # when a message was popped is not known
_DRAIN_S, _QUIET_S = 60.0, 3.0
_RETRIES = 1_000
"""Of a Java producer: attempts at an address that refuses connections take no time."""
_WITHOUT_POPS = 2
"""Number of clients that read, at brokers that have no pops."""
STORE: dict[str, Value] = {"mappedFileSizeCommitLog": 16 << 20, "flushDiskType": "ASYNC_FLUSH"}


class Members(NamedTuple):
    """The name server, and the brokers of one group, which run."""

    name_server: NameServer
    brokers: list[Broker]
    elects: bool

    @property
    def address(self) -> str:
        """Return the address of the name server."""
        return self.name_server.address

    def master(self) -> Broker:
        """Return the master: the first broker, or the one that was elected."""
        if not self.elects:
            return self.brokers[0]
        found = wait_until(self._elected, what="a master is elected", within_s=30)
        assert found is not None, "waited for"
        return found

    def _elected(self) -> Broker | None:
        address = registered_brokers(self.name_server.port).get(GROUP, {}).get("0", "")
        return next((one for one in self.brokers if one.is_running and one.address == address), None)


@contextmanager
def _members(kind: str, role: str, directory: Path) -> Iterator[Members]:
    """Start the brokers. `role`: SYNC_MASTER, ASYNC_MASTER, or elect."""
    if role == ELECT:
        with cluster(Mode.ELECT, [GROUP], directory, flushDiskType="ASYNC_FLUSH") as found:
            yield Members(found.namesrv, list(found.pairs[0]), elects=True)
        return
    with ExitStack() as stack:
        server = name_server(kind, directory / "namesrv")
        stack.enter_context(server)
        server.start()
        settings = {**STORE, "slaveReadEnable": True, "haClassicPeers": "127.0.0.1"}
        if kind != OURS:
            del settings["haClassicPeers"]
        master = broker(kind, directory / "master", server, settings=settings, brokerRole=role)
        slave_settings = {
            **settings,
            "brokerRole": "SLAVE",
            "brokerId": 1,
            "haMasterAddress": f"127.0.0.1:{master.ha_port}",
        }
        slave = broker(kind, directory / "slave", server, settings=slave_settings)
        for one in (master, slave):
            stack.callback(one.kill)
            start_registered(one, server)
        yield Members(server, [master, slave], elects=False)


def _kill_masters(members: Members, seconds: float, down_s: float) -> int:
    """Kill the master again and again, and start it some seconds later; return how often."""
    until, kills = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        time.sleep(down_s + 2.0)
        master = members.master()
        master.kill()
        kills += 1
        time.sleep(down_s)
        start_registered(master, members.name_server) if not members.elects else master.start()
    return kills


class OwnClients:
    """Two producers, a reader that commits, and an observer of its committed offsets: TandemQ's clients."""

    def __init__(self, members: Members, recorder: Recorder) -> None:
        self._members = members
        self._recorder = recorder
        self._is_over, self._drained = threading.Event(), threading.Event()
        self._sent: set[str] = set()
        senders = [threading.Thread(target=self._produce, args=(name,)) for name in _PRODUCERS]
        others = [threading.Thread(target=self._read), threading.Thread(target=self._watch)]
        self._popped = PopHistory(elects=members.elects, recorder=recorder, has_holds=True)
        if not members.brokers[0].version.startswith("4."):
            others.append(threading.Thread(target=self._pop))
        self._senders, self._others = senders, others
        for thread in (*senders, *others):
            thread.start()

    def finish(self) -> None:
        """Stop sending, wait until the reader has everything that was acknowledged, or gets nothing more."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until and not self._is_drained():
            time.sleep(_QUIET_S / 10)
        self._drained.set()
        for thread in self._others:
            thread.join()
        asyncio.run(_read_to_end(self._members.address, self._recorder))
        self._recorder.settled()

    def _is_drained(self) -> bool:
        has_pops = len(self._others) > _WITHOUT_POPS
        due = self._sent.union(tuple(self._popped.places.values()))
        return self._recorder.has_read(self._sent) and not (has_pops and self._popped.missing(due))

    def _pop(self) -> None:
        consume(self._members.address, TOPIC, self._popped, self._drained)

    def _produce(self, name: str) -> None:
        asyncio.run(self._send(name))

    async def _send(self, name: str) -> None:
        async with Producer(self._members.address, group=f"killed-{name}", retries=0) as producer:
            number = 0
            while not self._is_over.is_set():
                number += 1
                body = f"{name}-{number}"
                self._recorder.sending(name, body, sends=1)
                try:
                    result = await producer.send(Message(TOPIC, body.encode(), tags=name, keys=[body]))
                except TandemError:
                    self._recorder.failed(body)
                    await asyncio.sleep(_FAILED_S)
                    continue
                queue = self._recorder.queue(result.queue.queue_id)
                self._recorder.answered(body, result.status.name, queue, result.queue_offset)
                if result.status.name == "SEND_OK":
                    self._sent.add(body)
                await asyncio.sleep(_PACE_S)

    def _read(self) -> None:
        read_all(self._members.address, TOPIC, self._recorder, self._drained, commit_s=_COMMIT_S)

    def _watch(self) -> None:
        while not self._drained.wait(_OFFSETS_S):
            # The members of an elected group do not tell by this request which one is asked rightly.
            if not self._members.elects and self._members.brokers[0].is_running:
                self._ask(self._members.brokers[0])

    def _ask(self, one: Broker) -> None:
        for queue_id in range(QUEUES):
            fields = {"consumerGroup": READER, "topic": TOPIC, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
            op = self._recorder.asking_offset(READER, self._recorder.queue(queue_id))
            answer = try_request(one.address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self._recorder.offset(op, int(answer.fields["offset"]), one.name)


class JavaClients:
    """Two producers and a push consumer of an unmodified Java client, in one JVM; the history is made at the end."""

    def __init__(self, members: Members, java: JavaDriver, recorder: Recorder) -> None:
        self._members = members
        self._recorder = recorder
        limits: dict[str, str | int] = {"poll_ms": 1_000, "heartbeat_ms": 1_000}
        self._producers: dict[str, Running] = {
            name: java.begin(
                "produce", topic=TOPIC, prefix=name, group=f"killed-{name}", interval_ms=3, timeout_ms=10_000,
                attempt_ms=3_000, retries=_RETRIES, **limits,
            )
            for name in _PRODUCERS
        }  # fmt: skip
        self._consumer = java.begin(
            "push", topic=TOPIC, group=READER, deadline_ms=3_600_000, pull_error_ms=500, **limits
        )

    def finish(self) -> None:
        """Stop sending, wait until the consumer has everything that was acknowledged, and write the history."""
        answers = {name: running.end() for name, running in self._producers.items()}
        wanted = {
            f"{name}-{event['index']}" for name, events in answers.items() for event in events if _is_stored(event)
        }
        until = time.monotonic() + _DRAIN_S
        while time.monotonic() < until:
            if wanted <= {event["body"] for event in self._consumer.events("message")}:
                break
            time.sleep(_QUIET_S / 10)
        given = [event for event in self._consumer.end() if event["event"] == "message"]
        self._write(answers, given)

    def _write(self, answers: dict[str, list[Event]], given: list[Event]) -> None:
        """Write all sends, then all deliveries, then what the queues have: times of Java's requests are not known."""
        for name, events in answers.items():
            for event in events:
                if event["event"] in ("sent", "failed"):
                    self._write_send(name, event)
        for event in given:
            queue = f"{event['topic']}/{GROUP}/{event['queueId']}"
            fields = {"group": READER, "q": queue, "messages": [[event["queueOffset"], event["body"]]]}
            self._recorder.writer.note(READER, "poll", t=event["at_ms"], partial=True, unordered=True, **fields)
        asyncio.run(_read_to_end(self._members.address, self._recorder))
        self._recorder.settled()

    def _write_send(self, name: str, event: Event) -> None:
        body, at_ms, writer = f"{name}-{event['index']}", event["at_ms"], self._recorder.writer
        op = writer.invoke(name, "send", t=at_ms, id=body, topic=TOPIC, sends=_RETRIES + 1)
        if event["event"] == "failed":
            writer.end(name, "send", op, "unknown", t=at_ms)
            return
        queue = f"{TOPIC}/{GROUP}/{event['queueId']}"
        fields = {"status": event["status"], "q": queue, "offset": event["queueOffset"]}
        writer.end(name, "send", op, t=at_ms, **fields)


def _is_stored(event: Event) -> bool:
    return bool(event["event"] == "sent" and event["status"] == "SEND_OK")


async def _read_to_end(address: str, recorder: Recorder) -> None:
    """Record every queue from its beginning to its end, when nothing is sent any more."""
    held: list[tuple[int, int, str, str]] = []
    async with PullConsumer(address, group=f"{READER}-again") as consumer:
        queues = await consumer.queues(TOPIC)
        consumer.assign(queues)
        ends = {queue: (await consumer.bounds(queue)).end for queue in queues}
        for queue in queues:
            consumer.seek(queue, 0)
        until = time.monotonic() + _DRAIN_S
        while any((consumer.position(queue) or 0) < end for queue, end in ends.items()):
            for queue, message in await consumer.poll_queues(timeout_s=1.0):
                body = message.body.decode(errors="replace")
                held.append((queue.queue_id, message.queue_offset, body, message.tags))
            if time.monotonic() > until:
                raise PeerError(f"the queues cannot be read to their ends {ends}")
    recorder.stored("broker", held, {queue.queue_id: end for queue, end in ends.items()})


async def _create_topic(address: str) -> None:
    async with Admin(address) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES, broker_name=GROUP)


def run(brokers: str, role: str, clients: str, seconds: float, down_s: float, directory: Path, history: Path) -> int:
    """Run once, write the history; return the number of kills."""
    name = f"{'TandemQ' if brokers == OURS else f'RocketMQ {brokers}'} {role}"
    with (
        _members(brokers, role, directory) as members,
        history.open("w", encoding="utf-8") as file,
        ExitStack() as stack,
    ):
        wait_until(lambda: _try_create(members.address), what=f"topic {TOPIC}", within_s=30)
        is_own = clients == OURS
        clock = now_ms if is_own else lambda: time.time() * 1_000
        recorder = Recorder(file, TOPIC, GROUP, run=f"clients {clients}", system=name, promises=_PROMISES, clock=clock)
        started: OwnClients | JavaClients
        if is_own:
            started = OwnClients(members, recorder)
        else:
            java = stack.enter_context(JavaDriver(clients, directory / "clients", namesrv=members.address))
            started = JavaClients(members, java, recorder)
        kills = _kill_masters(members, seconds, down_s)
        started.finish()
    return kills


def _try_create(address: str) -> bool:
    try:
        asyncio.run(_create_topic(address))
    except TandemError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Run, judge, print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m chaos.kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--brokers", choices=[OURS, *SERVER_VERSIONS, NEWEST_VERSION], default=OURS)
    parser.add_argument("--role", choices=["ASYNC_MASTER", "SYNC_MASTER", ELECT], default="SYNC_MASTER")
    parser.add_argument("--clients", choices=[OURS, *CLIENT_VERSIONS, NEWEST_VERSION], default=OURS)
    parser.add_argument("--seconds", type=float, default=60.0, help="of kills")
    parser.add_argument("--down", type=float, default=4.0, help="seconds from a kill to the restart")
    parser.add_argument("--history", type=Path, metavar="FILE", default=Path("build/kills.jsonl"))
    args = parser.parse_args(arguments)
    if args.role == ELECT and args.brokers != OURS:
        parser.error("--role elect is of TandemQ's brokers: add --brokers ours")
    console = Console(highlight=False)
    args.history.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tandemq-kills-") as directory:
        try:
            kills = run(args.brokers, args.role, args.clients, args.seconds, args.down, Path(directory), args.history)
        except (PeerError, TimeoutError, TandemError) as error:
            console.print(f"the run failed: {error}")
            return EXIT_FAILED
    console.print(f"{kills} kills")
    return judge([str(args.history), "--show", "3"])


if __name__ == "__main__":
    sys.exit(main())
