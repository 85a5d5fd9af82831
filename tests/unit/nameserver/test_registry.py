"""The registry in a name server: responses after the change is durable, sessions, and disk faults."""

import json
from random import Random
from struct import pack

import pytest

from lab.samples import tiny_name_server
from lab.sim.world.disk import SimDisk
from tandemq.boundary import Closed, Job, JobDone, LinkKind, Now, Opened, Turn
from tandemq.codec.proofs import Keyring
from tandemq.codec.registry import encode_operation
from tandemq.codec.remoting.frame import encode_command
from tandemq.coordination.registry.interface import Create, Operation, Read, Write
from tandemq.errors import DiskFailed, DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.nameserver import NameServer
from tandemq.nameserver import registry_service as module
from tests.unit.nameserver.driver import answers_in

TIMEOUT_MS = 1_000


class Host:
    """A name server that hosts a registry; the test runs its fdatasync jobs."""

    def __init__(self, disk: SimDisk | None = None, *secrets: bytes) -> None:
        self.disk = disk or SimDisk(Random(1))
        self.now = Now(10_000, 0)
        keyring = Keyring(lambda: secrets, Random(3)) if secrets else None
        self.node = NameServer(tiny_name_server(registry_enable=True), self.disk, keyring=keyring)
        self.jobs: list[Job] = []
        self.answers: dict[int, list[Command]] = {}
        self._opaque = 0

    def turn(self, received: list[tuple[int, bytes]] | None = None, *events: Opened | Closed | JobDone) -> Turn:
        turn = self.node.turn(received or [], list(events), self.now)
        self.jobs += turn.jobs
        for link in turn.sends:
            self.answers.setdefault(link, []).extend(answers_in(turn, link))
        return turn

    def send(self, link: int, command: Command) -> None:
        self._opaque += 1
        command.opaque = self._opaque
        self.turn([(link, encode_command(command))])

    def sync(self) -> None:
        """Run the waiting fdatasync jobs and those that they cause, as a worker thread does."""
        while self.jobs:
            job = self.jobs.pop(0)
            error: Exception | None = None
            try:
                job.run()
            except DiskFailed as failed:
                error = failed
            self.turn([], JobDone(job, error=error))

    def take_responses(self, link: int) -> list[dict[str, str]]:
        """Return the fields of the responses on a connection since the last call; the remark only if it was refused."""
        return [
            {"remark": answer.remark or ""} if answer.code else answer.fields for answer in self.answers.pop(link, [])
        ]

    def outcomes(self, link: int) -> list[str]:
        """Return the outcomes in the responses on a connection since the last call."""
        return [fields.get("outcome", "refused: " + fields.get("remark", "")) for fields in self.take_responses(link)]

    def connect(self, link: int, client: str = "me", session: int = 0) -> int:
        self.turn([], Opened(link, LinkKind.REMOTING, "10.0.0.1:1"))
        self.ask_session(link, client, session)
        self.sync()
        (fields,) = self.take_responses(link)
        return int(fields["sessionId"])

    def ask_session(self, link: int, client: str, session: int) -> None:
        fields = {"client": client, "timeoutMs": str(TIMEOUT_MS), "sessionId": str(session)}
        self.send(link, Command(RequestCode.TANDEM_REGISTRY_CONNECT, fields=fields))

    def do(self, link: int, session: int, operation: Operation) -> None:
        self.send(link, encode_operation(session, operation))

    def send_in_session(self, link: int, session: int, code: RequestCode) -> None:
        self.send(link, Command(code, fields={"sessionId": str(session)}))


def test_no_response_is_sent_before_its_change_is_durable() -> None:
    host = Host()
    writer, watcher = host.connect(1), host.connect(2, "other")
    host.do(2, watcher, Read("/a", watch=True))
    host.send_in_session(2, watcher, RequestCode.TANDEM_REGISTRY_EVENTS)
    assert host.outcomes(2) == ["missing"]
    host.do(1, writer, Create("/a", b"x"))
    host.do(2, watcher, Read("/a"))
    host.send_in_session(1, writer, RequestCode.TANDEM_REGISTRY_PING)
    assert host.outcomes(1) == ["alive"], "the response to a ping depends on no change"
    assert host.outcomes(2) == []
    host.sync()
    assert host.outcomes(1) == ["done"]
    assert host.outcomes(2) == ["events", "found"]


def test_requests_during_an_fdatasync_share_the_next_one() -> None:
    host = Host()
    session = host.connect(1)
    for number in range(20):
        host.do(1, session, Create(f"/{number}", b""))
    assert len(host.jobs) == 1
    job = host.jobs.pop()
    job.run()
    host.turn([], JobDone(job))
    assert host.outcomes(1) == ["done"]
    assert len(host.jobs) == 1
    host.sync()
    assert host.outcomes(1) == ["done"] * 19


@pytest.mark.parametrize("seed", range(10))
def test_acknowledged_changes_survive_a_power_loss(seed: int) -> None:
    host = Host(SimDisk(Random(seed)))
    session = host.connect(1)
    host.do(1, session, Create("/acknowledged", b"1"))
    host.sync()
    host.do(1, session, Write("/acknowledged", b"2", 0))
    host.do(1, session, Create("/unacknowledged", b""))
    assert host.outcomes(1) == ["done"]
    host.disk.crash()
    restarted = Host(host.disk)
    assert restarted.connect(1, session=session) == session, "the session survives"
    restarted.do(1, session, Read("/acknowledged"))
    (found,) = restarted.take_responses(1)
    assert found["outcome"] == "found"
    assert found["version"] in ("0", "1")


def test_no_response_is_sent_after_a_failed_fdatasync() -> None:
    host = Host()
    session = host.connect(1)
    host.disk.fail("datasync")
    host.do(1, session, Create("/a", b""))
    host.sync()
    host.disk.heal()
    assert host.outcomes(1) == []
    host.do(1, session, Read("/a"))
    host.send_in_session(1, session, RequestCode.TANDEM_REGISTRY_PING)
    assert all("refused: the registry takes no requests" in outcome for outcome in host.outcomes(1))
    assert host.node.registry is not None
    assert host.node.registry.deadline_ms() is None
    host.send(1, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    (routes,) = host.answers.pop(1)
    assert routes.code == ResponseCode.SUCCESS, "routes do not depend on the registry"


def test_changes_wait_while_the_disk_is_full() -> None:
    host = Host()
    session = host.connect(1)
    host.disk.fail("pwrite", times=2, error=DiskFull)
    host.do(1, session, Create("/a", b""))
    assert not host.jobs
    assert host.outcomes(1) == []
    for _ in range(2):
        host.send_in_session(1, session, RequestCode.TANDEM_REGISTRY_PING)
        host.now.mono_ms += module.FULL_RETRY_MS
        host.turn()
    host.sync()
    assert host.outcomes(1) == ["alive", "alive", "done"]
    host.do(1, session, Read("/a"))
    assert host.outcomes(1) == ["found"]
    assert Host(host.disk).connect(1, session=session) == session


def test_session_moves_to_the_connection_of_its_last_connect() -> None:
    host = Host()
    session = host.connect(1)
    assert host.connect(2, session=session) == session
    host.do(1, session, Create("/late", b""))
    assert host.outcomes(1) == ["over"]
    host.do(2, session, Read("/late"))
    assert host.outcomes(2) == ["missing"]
    host.turn([], Closed(1, "gone"))
    host.send_in_session(2, session, RequestCode.TANDEM_REGISTRY_PING)
    assert host.outcomes(2) == ["alive"]


def test_session_is_not_resumed_by_another_client() -> None:
    host = Host()
    session = host.connect(1)
    assert host.connect(2, "stranger", session) != session


def test_session_at_a_registry_with_lost_data_gets_a_new_id() -> None:
    before = Host().connect(1)
    emptied = Host()
    assert emptied.connect(1, session=before) != before
    assert emptied.connect(2, "other", session=before) != before


def test_silent_session_expires_and_its_events_request_is_answered() -> None:
    host = Host()
    silent, listening = host.connect(1), host.connect(2, "other")
    host.do(1, silent, Create("/live", b"", ephemeral=True))
    host.sync()
    host.do(2, listening, Read("/live", watch=True))
    host.send_in_session(1, silent, RequestCode.TANDEM_REGISTRY_EVENTS)
    host.send_in_session(2, listening, RequestCode.TANDEM_REGISTRY_EVENTS)
    host.outcomes(1), host.outcomes(2)
    host.now.mono_ms += TIMEOUT_MS
    host.send_in_session(2, listening, RequestCode.TANDEM_REGISTRY_PING)
    assert host.node.deadline_ms() == host.now.mono_ms + 1
    host.now.mono_ms += 1
    host.turn()
    host.sync()
    assert host.outcomes(1) == ["over"]
    assert host.outcomes(2) == ["alive", "events"]
    host.send_in_session(1, silent, RequestCode.TANDEM_REGISTRY_PING)
    assert host.outcomes(1) == ["over"]
    assert host.node.registry is not None
    assert host.node.registry.session_count == 1


def test_closed_session_deletes_its_nodes() -> None:
    host = Host()
    closing, other = host.connect(1), host.connect(2, "other")
    host.do(1, closing, Create("/live", b"", ephemeral=True))
    host.send_in_session(1, closing, RequestCode.TANDEM_REGISTRY_CLOSE)
    host.do(2, other, Read("/live"))
    host.sync()
    assert host.outcomes(1) == ["done", "over"]
    assert host.outcomes(2) == ["missing"]


def test_long_journal_is_replaced_by_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOURNAL_BYTES_MAX", 2_000)
    host = Host()
    session = host.connect(1)
    host.do(1, session, Create("/a", b"0"))
    host.sync()
    for version in range(60):
        host.do(1, session, Write("/a", bytes(100), version))
        host.sync()
    assert host.outcomes(1) == ["done"] * 61
    journal, snapshot = host.disk.list("")
    assert (journal, snapshot) == ("registry.journal-6", "registry.snapshot"), "60 batches, five snapshots"
    restarted = Host(host.disk)
    restarted.connect(1, session=session)
    restarted.do(1, session, Read("/a"))
    assert restarted.take_responses(1)[0]["version"] == "60"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "sessionId"),
        ({"sessionId": "x", "op": "read", "path": "/a"}, "sessionId"),
        ({"sessionId": "1", "op": "steal", "path": "/a"}, "'steal' is not a registry operation"),
    ],
)
def test_malformed_requests_are_refused_with_the_reason(fields: dict[str, str], reason: str) -> None:
    host = Host()
    host.connect(1)
    host.send(1, Command(RequestCode.TANDEM_REGISTRY_OPERATE, fields=fields))
    (outcome,) = host.outcomes(1)
    assert reason in outcome


@pytest.mark.parametrize("client", ["", "x" * 256, "a\nb"])
def test_client_without_a_valid_name_is_refused(client: str) -> None:
    host = Host()
    host.turn([], Opened(1, LinkKind.REMOTING, "10.0.0.1:1"))
    header = json.dumps(
        {"code": 7310, "opaque": 1, "extFields": {"client": client, "timeoutMs": "1000"}}, ensure_ascii=True
    ).encode()
    host.turn([(1, pack(">II", 4 + len(header), len(header)) + header)])
    assert "printable characters" in host.outcomes(1)[0]
    assert not host.jobs


@pytest.mark.parametrize("seed", range(5))
def test_any_request_is_answered_and_the_journal_stays_readable(seed: int) -> None:
    random, host = Random(seed), Host()
    host.connect(1)
    values = (
        "1",
        "0",
        "-1",
        "9" * 30,
        "x",
        "",
        "true",
        "/a",
        "/a/b",
        "/",
        "//",
        "é",
        "read",
        "create",
        "delete",
    )
    names = ("sessionId", "op", "path", "version", "watch", "ephemeral", "timeoutMs", "client")
    for _ in range(2_000):
        fields = {name: random.choice(values) for name in names if random.random() < 0.9}
        if random.random() < 0.7:
            session = str(host.node.registry.last_session) if host.node.registry is not None else ""
            fields |= {"sessionId": session, "op": random.choice(("read", "children", "create", "write", "delete"))}
        header = {"code": random.randrange(7310, 7315), "opaque": 1, "extFields": fields}
        data = json.dumps(header).encode()
        body = random.randbytes(random.choice((0, 3, 1_000)))
        host.turn([(1, pack(">II", 4 + len(data) + len(body), len(data)) + data + body)])
        host.now.mono_ms += 1
        host.sync()
    assert len(host.outcomes(1)) > 1_000
    assert host.node.registry is not None
    assert host.node.registry.failed is None
    assert Host(host.disk).node.registry is not None


def test_number_of_held_responses_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 5)
    host = Host()
    session = host.connect(1)
    for number in range(6):
        host.do(1, session, Create(f"/{number}", b""))
    (outcome,) = host.outcomes(1)
    assert "wait for the disk" in outcome
    host.sync()
    assert host.outcomes(1) == ["done"] * 5


def test_name_server_without_a_registry_does_not_support_its_requests() -> None:
    node = NameServer(tiny_name_server(), SimDisk(Random(1)))
    now = Now(0, 0)
    node.turn([], [Opened(1, LinkKind.REMOTING, "a:1")], now)
    turn = node.turn([(1, encode_command(Command(RequestCode.TANDEM_REGISTRY_PING, 7)))], [], now)
    assert answers_in(turn, 1)[0].code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
