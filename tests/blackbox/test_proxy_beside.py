"""`tandemq broker --proxy-port`: a proxy that ends with the broker, and is started again if it ends by itself."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tandemq.client.connection import try_request
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.service import CLIENT_ID, NAME
from tests.blackbox.programs import runs, wait_until
from tests.request_fields import topic_fields

pytestmark = pytest.mark.timeout(200)
PROXY = ("--proxy-port", "0")


@contextmanager
def started(log: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a program; yield it with its report."""
    command = [sys.executable, "-m", "tandemq", *words, "--json"]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield process, json.loads(line)
        finally:
            process.kill()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A broker with a proxy, and the name server that both know."""
    with ExitStack() as stack:
        data = ("--set", f"kvConfigPath={tmp_path / 'namesrv'}", "--set", "bindAddress=127.0.0.1")
        _, namesrv = stack.enter_context(started(tmp_path / "namesrv.log", "namesrv", "--port", "0", *data))
        yield stack.enter_context(started(tmp_path / "log", *broker_words(tmp_path, namesrv["address"]), *PROXY))


def broker_words(directory: Path, name_servers: str = "") -> list[str]:
    settings = {
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "haListenPort": 0,
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": directory / "store",
        "mappedFileSizeCommitLog": 1 << 20,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return ["broker", *words, *(["-n", name_servers] if name_servers else [])]


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the process id of the proxy; 0 if it does not run."""
    words = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    others = [path.read_text().split() for path in Path(f"/proc/{process.pid}/task").glob("*/children")]
    return next((int(word) for word in (*words, *(word for group in others for word in group))), 0)


def send(address: str) -> str:
    """Send a message to the topic T; return the name of the outcome."""
    message = pb.Message(
        topic=pb.Resource(name="T"),
        system_properties=pb.SystemProperties(message_id="1", message_type=pb.MessageType.NORMAL),
        body=b"body",
    )
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(
            f"/{NAME}/SendMessage", pb.SendMessageRequest.SerializeToString, pb.SendMessageResponse.FromString
        )
        try:
            answer = call(pb.SendMessageRequest(messages=[message]), timeout=20, metadata=((CLIENT_ID, "c"),))
        except grpc.RpcError as error:
            return str(error)
        return pb.Code.Name(answer.status.code)


def refuses(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError:
        return True
    return False


def test_the_proxy_serves_is_started_again_and_ends_with_the_broker(
    servers: tuple[subprocess.Popen[str], dict[str, Any]], tmp_path: Path
) -> None:
    process, printed = servers
    address = printed["proxy"]
    fields = {name: str(value) for name, value in topic_fields("T", 1).items()}
    answer = try_request(printed["address"], Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
    assert answer is not None and answer.code == 0
    wait_until(lambda: send(address) == "OK", "a message stored")
    first = child_of(process)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: child_of(process) not in (0, first) and send(address) == "OK", "another proxy at the same port")
    second = child_of(process)
    process.terminate()
    assert process.wait(60) == 0
    assert not runs(second) and refuses(address)
    log = (tmp_path / "log").read_text()
    assert "the proxy ended (killed by SIGKILL); it is started again in" in log
    assert f"the proxy runs again at {address}" in log and "stopped cleanly" in log
    assert "Traceback" not in log


def test_the_proxy_ends_with_a_killed_broker(servers: tuple[subprocess.Popen[str], dict[str, Any]]) -> None:
    process, printed = servers
    proxy = child_of(process)
    assert runs(proxy)
    process.kill()
    wait_until(lambda: not runs(proxy), "the proxy to end")
    assert refuses(printed["proxy"])


def test_a_broker_whose_proxy_cannot_start_ends_with_the_reason(tmp_path: Path) -> None:
    with closing(socket.socket()) as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        cases = {
            ("--proxy-port", "0"): "a proxy finds brokers by name servers, of which none is given",
            ("-n", "127.0.0.1:1", "--proxy-port", str(port)): f"cannot listen on 127.0.0.1:{port}",
        }
        for words, expected in cases.items():
            command = [sys.executable, "-m", "tandemq", *broker_words(tmp_path), *words]
            done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == 2 and expected in done.stderr, done.stderr
            assert "Traceback" not in done.stderr and not (tmp_path / "store" / "abort").exists()


def test_shards_have_one_proxy_for_all(tmp_path: Path) -> None:
    data = ("--set", f"kvConfigPath={tmp_path / 'namesrv'}", "--set", "bindAddress=127.0.0.1")
    with started(tmp_path / "namesrv.log", "namesrv", "--port", "0", *data) as (_, namesrv):
        words = [*broker_words(tmp_path, namesrv["address"]), *PROXY, "--shards", "2"]
        with started(tmp_path / "log", *words) as (process, printed):
            # Only the last shard has the topic: the proxy knows more than the first.
            fields = {name: str(value) for name, value in topic_fields("T", 1).items()}
            last = printed["shards"][1]["address"]
            answer = try_request(last, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
            assert answer is not None and answer.code == 0
            wait_until(lambda: send(printed["proxy"]) == "OK", "a message stored")
            process.terminate()
            assert process.wait(120) == 0
        assert refuses(printed["proxy"]) and refuses(last)
    assert "Traceback" not in (tmp_path / "log").read_text()


def kill_left(shards: list[dict[str, Any]]) -> None:
    """Kill shards that outlived a supervisor which a failed test has killed."""
    for shard in shards:
        with suppress(OSError):
            if shard["store"] in Path(f"/proc/{shard['pid']}/cmdline").read_text():
                os.kill(shard["pid"], signal.SIGKILL)


def test_proxy_of_shards_that_outlived_their_supervisor_is_started_at_its_port(tmp_path: Path) -> None:
    data = ("--set", f"kvConfigPath={tmp_path / 'namesrv'}", "--set", "bindAddress=127.0.0.1")
    with ExitStack() as stack:
        _, namesrv = stack.enter_context(started(tmp_path / "namesrv.log", "namesrv", "--port", "0", *data))
        words = [*broker_words(tmp_path, namesrv["address"]), "--shards", "2"]
        with started(tmp_path / "log", *words, *PROXY) as (process, printed):
            stack.callback(kill_left, [{**shard, "store": str(tmp_path)} for shard in printed["shards"]])
            fields = {name: str(value) for name, value in topic_fields("T", 1).items()}
            answer = try_request(printed["address"], Command(RequestCode.UPDATE_AND_CREATE_TOPIC, fields=fields))
            assert answer is not None and answer.code == 0
            process.kill()
        port = printed["proxy"].rpartition(":")[2]
        with started(tmp_path / "log-2", *words, "--proxy-port", port) as (process, again):
            assert again["proxy"] == printed["proxy"]
            assert [shard["pid"] for shard in again["shards"]] == [shard["pid"] for shard in printed["shards"]]
            wait_until(lambda: send(again["proxy"]) == "OK", "a message stored")
            process.terminate()
            assert process.wait(120) == 0
        assert not any(runs(shard["pid"]) for shard in again["shards"])
    assert "Traceback" not in (tmp_path / "log-2").read_text()
