"""Brokers that die, topics that are deleted, checkpoints of other clusters, certificates that expire: real processes.

Each is an error of one line that says what to do, or the query goes on; no message is lost or read twice.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tandemq.client.blocking import BlockingProducer
from tandemq.client.core.operations import InvokeAll
from tandemq.client.core.routes import Routes
from tandemq.codec.record.record import encode_record
from tandemq.config.samples import ON_ANY_DISK
from tandemq.errors import ConfigError, NetworkError, OffsetGone, RemoteError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.run.children import ChildCluster
from tandemq.run.local_tls import ClusterCertificates
from tandemq.spark.runtime.client_pool import close_clients
from tandemq.spark.sources.cluster import reader
from tandemq.spark.sources.cluster.epochs import Epochs
from tandemq.spark.sources.cluster.identity import Identity, OtherTopic, Witness, find_others
from tandemq.spark.sources.cluster.limits import QueueEnd
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.offsets import Position
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.plan import QueueRange
from tandemq.spark.sources.cluster.reader import PullSettings
from tests.blackbox.certificates import Authority
from tests.spark.logs import HOST_V4
from tests.spark.messages import delete_topic, make_topic, numbered, send
from tests.spark.queries import Query
from tests.spec import spec


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildCluster]:
    """One master without slaves. Tests leave it running."""
    with ChildCluster(tmp_path_factory.mktemp("cluster"), groups=1, slaves=0, settings=ON_ANY_DISK) as running:
        yield running


@pytest.fixture(autouse=True)
def fresh_clients() -> Iterator[None]:
    yield
    close_clients()


def line_of(kind: type[TandemError], act: Any) -> str:
    """Return the single line of the error."""
    with pytest.raises(kind) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@spec("P33")
def test_broker_killed_between_planning_and_reading_is_waited_for_or_named_in_one_line(cluster: ChildCluster) -> None:
    names = cluster.name_servers
    send(names, numbered("Killed", 0, 100))
    patient = Query(names, subscribe="Killed")
    hasty = Query(names, subscribe="Killed", maxOffsetsPerTrigger="60", timeoutMs="800")
    assert [hasty.step(), hasty.step()] == [0, 60]
    rest = hasty.plan()
    patient.step()
    tasks = patient.plan()
    cluster.broker("broker-a").kill()
    reading = threading.Thread(target=patient.read, args=(tasks,))
    reading.start()
    line = line_of(NetworkError, lambda: hasty.read(rest))
    assert line.startswith("no member returned offset ")
    assert " of Killed broker-a queue " in line
    assert "within 800 ms" in line
    # The route went with the broker's connection: this is neither a deleted topic nor lost data.
    hasty.restart(closes=False)
    line = line_of(NetworkError, hasty.plan)
    assert "no answer within 800 ms: no member of broker-a is registered at the name servers (is it down?" in line
    cluster.broker("broker-a").start()
    cluster.wait_until(cluster.all_registered)
    reading.join(90)
    assert sorted(patient.rows) == list(range(100))
    send(names, numbered("Killed", 100, 110))
    assert patient.drain() == list(range(110))
    hasty.restart(timeoutMs="30000")
    assert hasty.drain() == list(range(110))


@spec("P34")
def test_topic_deleted_in_the_middle_of_a_stream(cluster: ChildCluster) -> None:
    names = cluster.name_servers
    for topic, start in (("Gone-a", 0), ("Gone-b", 100)):
        make_topic(names, topic, 1)
        send(names, numbered(topic, start, start + 50))
    query = Query(names, subscribePattern="Gone-.*")
    assert len(query.drain()) == 100
    delete_topic(names, "Gone-a")
    send(names, numbered("Gone-b", 150, 160))
    line = line_of(OffsetGone, query.plan)
    assert line == (
        "Gone-a broker-a queue 0 is gone: its topic was deleted (failOnDataLoss=false continues without them)"
    )
    query.restart(failOnDataLoss="false")
    assert query.drain() == [*range(50), *range(100, 160)]
    # Created again after its loss was accepted.
    make_topic(names, "Gone-a", 1)
    send(names, numbered("Gone-a", 200, 220))
    query.restart(failOnDataLoss="true")
    assert query.drain() == [*range(50), *range(100, 160), *range(200, 220)]
    # Deleted and created again between two triggers, with fewer and with more messages than were read of it.
    delete_topic(names, "Gone-a")
    make_topic(names, "Gone-a", 1)
    for start, end in ((300, 310), (310, 400)):
        send(names, numbered("Gone-a", start, end))
        query.restart()
        line = line_of(OffsetGone, query.plan)
        assert line.startswith("Gone-a on broker-a is not the topic that was read: it was deleted and created again")
        assert line.endswith("(failOnDataLoss=false continues without them)")
    query.restart(failOnDataLoss="false")
    read = [*range(50), *range(100, 160), *range(200, 220), *range(300, 400)]
    assert query.drain() == read
    query.restart(failOnDataLoss="true")
    send(names, numbered("Gone-a", 400, 410))
    assert query.drain() == [*read, *range(400, 410)]


@spec("P34")
def test_topic_deleted_in_the_middle_of_a_batch(cluster: ChildCluster) -> None:
    names = cluster.name_servers
    make_topic(names, "Cut", 1)
    send(names, numbered("Cut", 0, 50))
    query = Query(names, subscribe="Cut")
    query.step()
    tasks = query.plan()
    delete_topic(names, "Cut")
    line = line_of(OffsetGone, lambda: query.read(tasks))
    assert line.startswith(
        "50 messages of Cut broker-a queue 0, offsets 0 to 49, are gone: the topic was deleted (fail"
    )
    query.restart()
    assert line_of(OffsetGone, query.plan).startswith("no queue of the checkpoint exists: it is of another cluster, or")
    query.restart(failOnDataLoss="false")
    assert query.drain() == []
    make_topic(names, "Cut", 1)
    send(names, numbered("Cut", 50, 60))
    assert query.drain() == list(range(50, 60))


@spec("P34")
@pytest.mark.parametrize("master", ["m:1", ""])
def test_topic_that_brokers_do_not_have_any_more_is_loss_at_once(master: str) -> None:
    how = PullSettings("127.0.0.1:9876")
    members = {0: master, 1: "s:1"} if master else {1: "s:1", 2: "s:2"}
    reading = reader._RangeState(QueueRange(MessageQueue("T", "a", 0), 5, 100), members, 7)
    routes = cast(Routes, type("R", (), {"members": lambda _self, _name: {}})())
    absent = RemoteError("TOPIC_NOT_EXIST (17): topic[T] not exist", code=ResponseCode.TOPIC_NOT_EXIST)
    reading.failures = dict.fromkeys(members.values(), absent)
    with pytest.raises(
        OffsetGone, match="93 messages of T a queue 0, offsets 7 to 99, are gone: the topic was deleted"
    ):
        reader._handle_absence(routes, how, reading)
    # A slave that has it, or has not answered, may have the messages; a master has the last word.
    reading.failures["s:1"] = NetworkError("no response")
    reading.ends_at = {} if master else {"s:2": 5}
    if master:
        with pytest.raises(OffsetGone):
            reader._handle_absence(routes, how, reading)
    else:
        reader._handle_absence(routes, how, reading)
        assert reading.position == 7


QUEUE = MessageQueue("T", "a", 0)


@spec("P35")
@pytest.mark.parametrize(
    ("there", "end", "later", "is_final", "is_other"),
    [
        ((9, 1_000, 500), 20, None, True, False),
        ((9, 1_000, 501), 20, None, True, True),
        ((9, 1_001, 500), 20, None, False, True),
        # Deleted by retention: the first message that exists says nothing.
        ((15, 1_001, 900), 20, None, True, False),
        # Rewritten in a later epoch, which is another error.
        ((9, 2_000, 700), 20, 600, True, False),
        ((9, 2_000, 599), 20, 600, True, True),
        # Fewer messages: of a truncated log they are older, of another topic they are newer.
        ((4, 900, 250), 5, None, True, False),
        ((4, 1_001, 250), 5, None, True, True),
        # A slave that lags.
        ((4, 1_001, 250), 5, None, False, False),
        (None, 5, None, False, False),
        # Nothing to compare: a topic that has become shorter may be another one.
        (None, 20, None, True, False),
        (None, 5, None, True, True),
        (None, 0, None, True, True),
    ],
)
def test_message_that_was_read_is_compared_with_the_one_at_its_offset(
    there: tuple[int, int, int] | None, end: int, later: int | None, is_final: bool, is_other: bool
) -> None:
    identity = Identity({}, {("T", "a"): Witness(QUEUE, 9, 1_000, 500)})
    layout = QueueLayout((QUEUE,), {"a": {0: "m:1"}})
    epochs = {"a": Epochs(((1, 0), (2, later)) if later is not None else ((1, 0),), is_final)}
    position = Position({QUEUE: 10}, {"a": 1})
    steps = find_others(layout, {QUEUE: QueueEnd(end, is_final)}, epochs, identity, position, {}, ReadFrom.ANY)
    found: list[OtherTopic] = []
    try:
        step: Any = next(steps)
        while True:
            assert isinstance(step, InvokeAll)
            answers = [_answer(there) for _ in step.requests]
            step = steps.send(answers)
    except StopIteration as over:
        found = over.value
    assert [(one.topic, one.broker_name) for one in found] == ([("T", "a")] if is_other else [])
    assert identity == Identity.of(identity.to_json())


def _answer(there: tuple[int, int, int] | None) -> Command:
    if there is None:
        return Command(ResponseCode.PULL_NOT_FOUND)
    offset, store_ms, log_offset = there
    record = encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=offset,
        log_offset=log_offset,
        body=b"x",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=0,
        born_host=HOST_V4,
        store_ms=store_ms,
        store_host=HOST_V4,
        reconsume_times=0,
    )
    return Command(ResponseCode.SUCCESS, body=record)


@spec("P35")
def test_checkpoint_of_another_cluster_is_recognised(cluster: ChildCluster, tmp_path: Path) -> None:
    query = Query(cluster.name_servers, subscribe="Same")
    make_topic(cluster.name_servers, "Same", 1)
    send(cluster.name_servers, numbered("Same", 0, 40))
    assert query.drain() == list(range(40))
    checkpoint = dict(query.offset or {})
    assert checkpoint["/clusters"] == {"broker-a": "DefaultCluster"}
    assert checkpoint["/witnesses"]["Same"]["broker-a"][:2] == [0, 39]
    with ChildCluster(tmp_path / "other", groups=1, slaves=0, settings=ON_ANY_DISK) as other:
        make_topic(other.name_servers, "Same", 1)
        for more, strict in ((100, True), (130, True), (150, False)):
            # Fewer messages than the checkpoint has read, as many, and more.
            send(other.name_servers, numbered("Same", 100 if more == 100 else more, more + 30))
            query.restart(nameServer=other.name_servers, failOnDataLoss=str(strict).lower())
            if strict:
                line = line_of(OffsetGone, query.plan)
                assert line.startswith(
                    "Same on broker-a is not the topic that was read: it was deleted and created again"
                )
                assert "of another cluster: of queue 0 offset 39 was read, stored at " in line
        query.rows.clear()
        assert len(query.drain()) == 90
    query.offset = checkpoint
    query.restart(nameServer=cluster.name_servers, failOnDataLoss="true")
    send(cluster.name_servers, numbered("Same", 40, 45))
    query.rows.clear()
    assert query.drain() == list(range(40, 45))


@spec("P35")
def test_checkpoint_of_a_cluster_of_another_name_is_refused(cluster: ChildCluster) -> None:
    make_topic(cluster.name_servers, "Named", 1)
    send(cluster.name_servers, numbered("Named", 0, 5))
    query = Query(cluster.name_servers, subscribe="Named")
    query.drain()
    assert query.offset is not None
    query.offset["/clusters"] = {"broker-a": "Staging"}
    for strict in ("true", "false"):
        query.restart(failOnDataLoss=strict)
        assert line_of(ConfigError, query.plan) == (
            "the checkpoint is of the cluster 'Staging', but broker-a belongs to 'DefaultCluster' here "
            "(use the name servers of that cluster, or another checkpointLocation)"
        )
    query.offset["/clusters"] = 5
    assert "the checkpoint: its /clusters or /witnesses cannot be read" in line_of(ConfigError, query.plan)


@spec("P35")
def test_checkpoint_of_an_earlier_version_continues(cluster: ChildCluster) -> None:
    names = cluster.name_servers
    make_topic(names, "Older", 2)
    send(names, numbered("Older", 0, 30))
    query = Query(names, subscribe="Older")
    assert query.drain() == list(range(30))
    assert query.offset is not None
    old = {"Older": query.offset["Older"]}
    query.offset = old
    query.restart()
    assert query.step() == 0
    assert query.offset == old  # nothing new to read: no other offset, no micro-batch
    send(names, numbered("Older", 30, 40))
    assert query.drain() == list(range(40))
    assert set(query.offset) == {"Older", "/clusters", "/witnesses"}
    starting = Query(names, subscribe="Older", startingOffsets=str(query.offset).replace("'", '"'))
    assert starting.drain() == []  # as an option it means the same


@spec("P33")
def test_certificate_that_expires_is_named_and_a_renewed_one_is_used(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = tmp_path / "tls"
    files.mkdir()
    install(authority.ca_file, files / "ca.pem")
    install_pair(authority.issue("good"), files)
    tls = {"tls": "true", "tlsCaFile": str(files / "ca.pem")}
    certificates = ClusterCertificates.kept_in(files)
    with ChildCluster(tmp_path / "secure", groups=1, slaves=0, settings=ON_ANY_DISK, tls=certificates) as secure:
        query = Query(secure.name_servers, **tls)
        send_secure(secure, 0, 20)
        assert query.drain() == list(range(20))
        send_secure(secure, 20, 30)
        secure.name_server.kill()
        install_pair(authority.issue("late", is_expired=True), files)
        secure.name_server.start()
        query.restart()
        line = line_of(NetworkError, query.plan)
        assert line.startswith("no connection within 1500 ms: no name server responds: ")
        assert "TLS: the server's certificate has expired: CN=late" in line
        assert "renew it there, or correct the clock of this machine" in line
        secure.name_server.kill()
        install_pair(authority.issue("renewed"), files)
        secure.name_server.start()
        secure.wait_until(secure.all_registered, 60)
        query.restart()
        assert query.drain() == list(range(30))


def install(source: str | Path, target: Path) -> None:
    draft = target.with_suffix(".new")
    draft.write_bytes(Path(source).read_bytes())
    draft.chmod(0o600)
    draft.replace(target)


def install_pair(pair: tuple[str, str], files: Path) -> None:
    for source, name in zip(pair, ("server.crt", "server.key"), strict=True):
        install(source, files / name)


def send_secure(cluster: ChildCluster, start: int, end: int) -> None:
    with BlockingProducer(cluster.name_servers, group="tests", tls=cluster.tls or False) as producer:
        for message in numbered("Orders", start, end):
            producer.send(message)
