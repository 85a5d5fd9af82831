"""Access control with many users: what they cost to create, keep, change, copy and list, and what floods cost others.

    python -m bench.access                    100,000 users with two policy entries each: some minutes
    python -m bench.access --users 1000

Master and slave are processes. A quiet client, a process of its own, sends one signed request after the other
meanwhile; `quiet` is the longest time that it waited for one. The flood is one connection that keeps `WINDOW` sends of
users that do not exist in flight.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.cells import OURS
from bench.servers import BrokerGroup, cpu_seconds, resident_mb
from tandemq.client.connection import BlockingConnection
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_request
from tandemq.codec.remoting.signature import signed
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROOT, INNER = Credentials("root", "root-key"), Credentials("inner", "inner-key")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER.access_key, "secretKey": INNER.secret_key}),
}
WINDOW = 500
FLOOD_S = 5.0
SETTLE_S = 12.0
"""The table is written once more within 10 s of a change."""
CHANGES, CHANGED = 20, "user-000001"
LARGE_ENTRIES = 4_900
_STORES = Path(__file__).resolve().parent.parent / "build" / "bench"
_TIMEOUT_S = 300.0


class _Waited(NamedTuple):
    """What a quiet client saw."""

    requests: int
    longest_ms: float


def _be_quiet(address: str, pipe: Connection) -> None:
    """Send one request after the other until the pipe says stop; send back what was seen."""
    requests, longest = 0, 0.0
    with BlockingConnection(address, credentials=ROOT, seconds=_TIMEOUT_S) as broker:
        broker.request(Command(RequestCode.GET_BROKER_HA_STATUS))
        pipe.send(True)
        while not pipe.poll(0.001):
            began = time.perf_counter()
            broker.request(Command(RequestCode.GET_BROKER_HA_STATUS))
            longest = max(longest, time.perf_counter() - began)
            requests += 1
    pipe.send(_Waited(requests, longest * 1_000))


class _Quiet:
    """A quiet client beside the body of `with`; `seen` has what it saw, behind it."""

    seen: _Waited


@contextmanager
def _quiet(address: str) -> Iterator[_Quiet]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_be_quiet, args=(address, there), daemon=True)
    process.start()
    here.recv()
    quiet = _Quiet()
    try:
        yield quiet
    finally:
        here.send(True)
        quiet.seen = here.recv()
        process.join()


def _pipeline(address: str, commands: Iterator[Command], user: Credentials) -> int:
    """Send requests, `WINDOW` in flight, and return their number; each must succeed."""
    decoder, in_flight, done = FrameDecoder(64 << 20), 0, 0
    with BlockingConnection(address, credentials=Credentials("", ""), seconds=_TIMEOUT_S) as broker:
        broker.socket.settimeout(_TIMEOUT_S)
        while True:
            batch = list(islice(commands, WINDOW - in_flight))
            if not batch and not in_flight:
                return done
            frames = []
            for command in batch:
                command.fields = signed(command.fields, command.body, user)
                frames.append(encode_request(command, 1))
            broker.socket.sendall(b"".join(frames))
            in_flight += len(batch)
            for frame in decoder.feed(broker.socket.recv(1 << 20)):
                answer = decode_command(frame)
                assert answer.code == 0, answer.remark
                in_flight -= 1
                done += 1


def _users(count: int) -> Iterator[Command]:
    for number in range(count):
        body = json.dumps({"password": f"key-of-user-{number:06}"}).encode()
        yield Command(RequestCode.AUTH_CREATE_USER, fields={"username": f"user-{number:06}"}, body=body)


def _policies(count: int) -> Iterator[Command]:
    for number in range(count):
        entries = [
            {"resource": f"Topic:orders-{number:06}", "actions": ["Pub", "Sub"], "decision": "Allow"},
            {"resource": f"Group:group-{number:06}*", "actions": ["Sub"], "decision": "Allow"},
        ]
        body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
        yield Command(RequestCode.AUTH_CREATE_ACL, fields={"subject": f"User:user-{number:06}"}, body=body)


def _ask(address: str, command: Command) -> Command:
    with BlockingConnection(address, credentials=ROOT, seconds=_TIMEOUT_S) as broker:
        answer = broker.request(command)
    assert answer.code == 0, answer.remark
    return answer


def _large() -> Command:
    entries = [
        {"resource": f"Topic:{number:05}{'x' * 100}", "actions": ["Pub", "Sub"], "decision": "Allow"}
        for number in range(LARGE_ENTRIES)
    ]
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": entries}]}).encode()
    return Command(RequestCode.AUTH_CREATE_ACL, fields={"subject": "User:user-000000"}, body=body)


def _flood(address: str, pipe: Connection) -> None:
    """Keep refused sends in flight until the pipe says stop; send back their number."""
    fields = dict.fromkeys("efghj", "0") | {"a": "p", "b": "T", "c": "TBW102", "d": "4", "i": ""}
    frames = [
        encode_request(
            Command(
                RequestCode.SEND_MESSAGE_V2,
                fields=signed(fields, b"x" * 100, Credentials(f"unknown-{number}", "key")),
                body=b"x" * 100,
            ),
            1,
        )
        for number in range(20_000)
    ]
    decoder, in_flight, sent, refused = FrameDecoder(), 0, 0, 0
    with BlockingConnection(address, credentials=ROOT, seconds=_TIMEOUT_S) as broker:
        pipe.send(True)
        while not pipe.poll():
            batch = [frames[(sent + number) % len(frames)] for number in range(WINDOW - in_flight)]
            broker.socket.sendall(b"".join(batch))
            sent += len(batch)
            in_flight += len(batch)
            found = len(list(decoder.feed(broker.socket.recv(1 << 20))))
            in_flight -= found
            refused += found
    pipe.send(refused)


@contextmanager
def _flooded(address: str, refused: list[int]) -> Iterator[None]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_flood, args=(address, there), daemon=True)
    process.start()
    here.recv()
    try:
        yield
    finally:
        here.send(True)
        refused.append(here.recv())
        process.join()


def _until(holds: Callable[[], bool]) -> float:
    began = time.perf_counter()
    while not holds():
        assert time.perf_counter() - began < _TIMEOUT_S, "not within the time limit"
        time.sleep(0.02)
    return time.perf_counter() - began


def _user(address: str, name: str) -> bytes:
    return bytes(_ask(address, Command(RequestCode.AUTH_GET_USER, fields={"username": name})).body)


def _creations(group: BrokerGroup, count: int) -> None:
    address, pid = group.master.address, group.master.pid
    before = resident_mb(pid)
    for name, commands in (("users", _users(count)), ("policies", _policies(count))):
        began, cpu = time.perf_counter(), cpu_seconds(pid)
        with _quiet(address) as quiet:
            _pipeline(address, commands, ROOT)
        seconds, each_us = time.perf_counter() - began, (cpu_seconds(pid) - cpu) / count * 1e6
        print(
            f"create {count} {name}: {seconds:.1f} s, {each_us:.0f} µs of CPU time each, "
            f"quiet {quiet.seen.longest_ms:.0f} ms"
        )
    print(f"memory: {(resident_mb(pid) - before) * 1e6 / count:.0f} bytes per user, in all {resident_mb(pid):.0f} MB")


def _changes(group: BrokerGroup) -> None:
    address = group.master.address
    times = []
    with _quiet(address) as quiet:
        for number in range(CHANGES):
            began = time.perf_counter()
            body = json.dumps({"password": f"another-key-{number}"}).encode()
            _ask(address, Command(RequestCode.AUTH_UPDATE_USER, fields={"username": CHANGED}, body=body))
            times.append(time.perf_counter() - began)
    print(f"change one user: {sorted(times)[CHANGES // 2] * 1_000:.0f} ms, quiet {quiet.seen.longest_ms:.0f} ms")
    began, cpu = time.perf_counter(), cpu_seconds(group.slave.pid)
    _ask(address, Command(RequestCode.AUTH_UPDATE_USER, fields={"username": CHANGED}, body=b'{"userStatus":"disable"}'))
    _until(lambda: b"disable" in _user(group.slave.address, CHANGED))
    seconds, cpu = time.perf_counter() - began, cpu_seconds(group.slave.pid) - cpu
    print(f"the slave has the change: {seconds:.1f} s, {cpu:.2f} s of its CPU time")


def _lists(group: BrokerGroup, count: int) -> None:
    address = group.master.address
    for code in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_LIST_ACL):
        began, pages, largest, listed, after = time.perf_counter(), 0, 0, 0, ""
        with _quiet(address) as quiet:
            while True:
                answer = _ask(address, Command(code, fields={"limit": "1000", "after": after}))
                found = json.loads(answer.body) if answer.body else []
                pages, largest, listed = pages + 1, max(largest, len(answer.body)), listed + len(found)
                after = answer.fields.get("next", "")
                if not after:
                    break
        assert listed >= count, listed
        seconds = time.perf_counter() - began
        print(
            f"{code.name}: {listed} in {pages} pages of up to {largest} bytes: {seconds:.1f} s, "
            f"quiet {quiet.seen.longest_ms:.0f} ms"
        )


def _large_policies(group: BrokerGroup) -> None:
    command = _large()
    began = time.perf_counter()
    with _quiet(group.master.address) as quiet:
        _ask(group.master.address, command)
        seconds = time.perf_counter() - began
    print(
        f"policies of {LARGE_ENTRIES} entries, {len(command.body)} bytes: {seconds * 1_000:.0f} ms, "
        f"quiet {quiet.seen.longest_ms:.0f} ms"
    )


def _floods(group: BrokerGroup) -> None:
    address, pid = group.master.address, group.master.pid
    log = group.master.log_path
    time.sleep(SETTLE_S)
    with _quiet(address) as quiet:
        time.sleep(FLOOD_S)
    print(f"without a flood: quiet {quiet.seen.longest_ms:.1f} ms, {quiet.seen.requests / FLOOD_S:.0f} requests/s")
    refused: list[int] = []
    lines, memory = log.read_bytes().count(b"\n"), resident_mb(pid)
    with _flooded(address, refused):
        time.sleep(1)
        cpu = cpu_seconds(pid)
        with _quiet(address) as quiet:
            time.sleep(FLOOD_S)
        cpu = cpu_seconds(pid) - cpu
    lines = log.read_bytes().count(b"\n") - lines
    print(
        f"flood of unknown users: {refused[0]} refused, quiet {quiet.seen.longest_ms:.1f} ms, "
        f"{quiet.seen.requests / FLOOD_S:.0f} requests/s, memory {resident_mb(pid) - memory:+.1f} MB, "
        f"log {lines} lines, {cpu / FLOOD_S:.2f} of a core"
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.access", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=100_000, help="number of users")
    parser.add_argument("--directory", type=Path, default=_STORES / "access", help="where stores are put and deleted")
    args = parser.parse_args(arguments)
    with BrokerGroup(OURS, args.directory, SETTINGS) as group:
        group.start_master()
        group.start(group.slave)
        _creations(group, args.users)
        file = group.directory / "master" / "store" / "config" / "accessControl.json"
        _until(lambda: file.exists() and file.stat().st_size > 100 * args.users)
        print(f"accessControl.json: {file.stat().st_size / 1e6:.1f} MB")
        cpu = cpu_seconds(group.slave.pid)
        seconds = _until(lambda: bool(_user(group.slave.address, f"user-{args.users - 1:06}")))
        print(f"the slave has all: {seconds:.1f} s later, {cpu_seconds(group.slave.pid) - cpu:.1f} s of its CPU time")
        _changes(group)
        _lists(group, args.users)
        _large_policies(group)
        _floods(group)
        group.master.stop()
        group.start(group.master)
        print(f"start with this table: {cpu_seconds(group.master.pid):.1f} s of CPU time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
