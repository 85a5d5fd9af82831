"""NATS JetStream as a peer: the generator's parts, a run against a server in memory, and how the server is fetched."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import nats
from bench.cells import CELLS, NATS, NATS_CELLS
from bench.nats_load import AckCounter, Publishes, main
from tandemq.load import LoadError
from tests.interop.java import PeerError

ACKS = b"".join(
    b'MSG _INBOX.0.%d 1 %d\r\n{"stream":"BENCH", "seq":%d}\r\n' % (number, 26 + len(str(number)), number)
    for number in range(1, 60)
)


@pytest.mark.parametrize("size", [1, 2, 7, 31, 64, len(ACKS)])
def test_acknowledgements_are_counted_however_they_are_cut(size: int) -> None:
    counter = AckCounter()
    for at in range(0, len(ACKS), size):
        assert not counter.feed(ACKS[at : at + size])
    assert (counter.stored, counter.refused, counter.answered) == (59, 0, 59)


def test_refusals_are_no_acknowledgements_and_pings_are_reported() -> None:
    counter = AckCounter()
    refusal = b'{"error":{"code":503,"description":"insufficient storage"},"stream":"BENCH","seq":0}\r\n'
    assert not counter.feed(b"INFO {}\r\nMSG _INBOX.0.1 1 83\r\n" + refusal[:20])
    assert counter.feed(refusal[20:] + b"PING\r\n" + ACKS[:60])
    assert (counter.stored, counter.refused) == (1, 1)
    assert "insufficient storage" in counter.first_refusal


def test_error_of_the_protocol_ends_the_run() -> None:
    with pytest.raises(LoadError, match="Unknown Protocol Operation"):
        AckCounter().feed(b"-ERR 'Unknown Protocol Operation'\r\n")


PUBLISH = re.compile(rb"PUB (\S+) (\S+) (\d+)\r\n")


def publishes_in(data: bytes) -> list[tuple[bytes, bytes, bytes]]:
    """Return subject, reply subject and body of each publish."""
    found, at = [], 0
    while at < len(data):
        head = PUBLISH.match(data, at)
        assert head is not None
        end = head.end() + int(head[3])
        assert data[end : end + 2] == b"\r\n"
        found.append((head[1], head[2], data[head.end() : end]))
        at = end + 2
    return found


def test_publishes_have_bodies_of_many_lengths_and_start_again_after_the_last() -> None:
    prepared = Publishes(3, 300)
    taken = [one for count in (1, 32, 255, 20, 292) for one in publishes_in(bytes(prepared.take(count)))]
    assert len(taken) == 600
    assert taken[300:] == taken[:300]
    assert {subject for subject, _, _ in taken} == {b"bench.%d" % number for number in range(4)}
    assert [reply for _, reply, _ in taken[:3]] == [b"_INBOX.3.0", b"_INBOX.3.1", b"_INBOX.3.2"]
    lengths = [len(body) for _, _, body in taken[:300]]
    assert min(lengths) >= 128
    assert max(lengths) <= 896
    assert len(set(lengths)) > 150
    assert prepared.mean_body_bytes == sum(lengths) / 300


class FakeJetStream:
    """Acknowledges publishes; `lost` of them are not in the stream."""

    def __init__(self, window: int, lost: int = 0) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.window = window
        self.messages = -lost
        self.largest_read = 0
        self.lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        connection.sendall(b'INFO {"server_id":"fake"}\r\nPING\r\n')
        data = b""
        while piece := connection.recv(1 << 16):
            data += piece
            count = 0
            while (publish := PUBLISH.search(data)) and len(data) >= publish.end() + int(publish[3]) + 2:
                data = data[publish.end() + int(publish[3]) + 2 :]
                count += publish[1].startswith(b"bench.")
                connection.sendall(self.response(publish[1], publish[2]))
            self.largest_read = max(self.largest_read, count)
        connection.close()

    def response(self, subject: bytes, reply: bytes) -> bytes:
        with self.lock:
            if subject.startswith(b"bench."):
                self.messages += 1
                body = b'{"stream":"BENCH", "seq":%d}' % self.messages
            elif b"INFO" in subject and self.messages <= 0:
                body = b'{"error":{"code":404}}'
            else:
                body = json.dumps({"state": {"messages": max(self.messages, 0)}}).encode()
        return b"MSG %b 1 %d\r\n%b\r\n" % (reply, len(body), body)


@pytest.fixture(params=[0, 3])
def jetstream(request: pytest.FixtureRequest) -> Iterator[FakeJetStream]:
    server = FakeJetStream(window=4, lost=request.param)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    yield server
    server.listener.shutdown(socket.SHUT_RDWR)
    server.listener.close()
    thread.join()


def test_load_keeps_its_window_and_compares_the_stream_with_the_acknowledgements(
    jetstream: FakeJetStream, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = -jetstream.messages
    code = main([jetstream.address, "2", str(jetstream.window), "0.3", "0.1"])
    printed = capsys.readouterr()
    assert 0 < jetstream.largest_read <= jetstream.window
    assert code == (1 if lost else 0)
    if lost:
        assert "were acknowledged, but the stream has" in printed.err
        return
    result = json.loads(printed.out)
    assert 0 < result["messages"] <= jetstream.messages
    assert (result["refused"], result["unanswered"]) == (0, 0)


def test_missing_server_is_exit_code_one_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["127.0.0.1:1", "1", "1", "0.1", "0"]) == 1
    assert "nats_load: no process answers at 127.0.0.1:1" in capsys.readouterr().err


def test_cells_of_nats_are_sends_of_varied_messages() -> None:
    assert {cell.name for cell in CELLS if cell.is_measured_on(NATS)} == NATS_CELLS
    assert {name.rpartition("/")[2] for name in NATS_CELLS} == {"1x1", "64x1", "1x32", "16x32"}


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that fetch the package; nothing is on the path."""
    seen: list[list[str]] = []
    monkeypatch.setattr(nats, "_CACHE", tmp_path / "cache")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    def run(directory: Path, *command: str) -> None:
        seen.append([word for word in command if not word.startswith("Dir::")])
        if command == ("apt-get", "download", "nats-server"):
            raise subprocess.CalledProcessError(100, command, "", "E: Unable to locate package nats-server")
        if "download" in command:
            (directory / "nats-server_2.9.10_amd64.deb").touch()

    monkeypatch.setattr(nats, "_run", run)
    return seen


def test_package_is_fetched_with_lists_of_its_own_if_the_system_lacks_it(commands: list[list[str]]) -> None:
    assert nats.executable().name == "nats-server"
    assert [command[0] for command in commands] == ["apt-get", "apt-get", "apt-get", "dpkg"]
    assert "update" in commands[1]
    assert commands[-1] == ["dpkg", "-x", "nats-server_2.9.10_amd64.deb", "."]


def test_package_that_cannot_be_had_is_an_error_with_the_reason(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path, *command: str) -> None:
        raise subprocess.CalledProcessError(100, command, "", "E: Unable to locate package nats-server")

    monkeypatch.setattr(nats, "_run", refuse)
    with pytest.raises(PeerError, match="Unable to locate package"):
        nats.executable()
    monkeypatch.setattr(nats, "_run", lambda *_: (_ for _ in ()).throw(FileNotFoundError("apt-get")))
    with pytest.raises(PeerError, match="apt is not there"):
        nats.executable()
    assert commands == []
