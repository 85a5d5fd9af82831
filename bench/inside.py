"""Cost of a broker's turns without sockets: CPU time per message of one process, on a store in memory.

    python -m bench.inside                     all cells, about ten seconds
    python -m bench.inside batch slave         some
    python -m bench.inside --profile batch     with a profile
    python -m bench.inside --varied --form v1 --queues 1024 16x32
    python -m bench.inside --body 1048576 4x8

Other load on the machine disturbs CPU time little, and rates much. The first quarter of a run is not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import pstats
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from tandemq.boundary import JobDone, LinkKind, Now, Opened, Turn
from tandemq.broker.kernel.context import Machine
from tandemq.broker.node import Broker
from tandemq.codec.ha import frame_transfer
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.signature import signed
from tandemq.config.settings import BrokerConfig, parse_delay_levels
from tandemq.load.wire.frames import FORMS, PullFrames, SendFrames, SendShape
from tandemq.load.wire.probe import create_topic_request
from tandemq.load.wire.signing import signed_frames
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.real.disk import RealDisk
from tandemq.real.loop import LOG_RECEIVE_BYTES, RECEIVE_BYTES

_MEMORY = Path("/dev/shm")
_LOG_BYTES = 128 << 20
_TURNS = 400
_PULLED = 32
_SENDS = {"batch": (4, 8, 32), "16x32": (16, 32, 1), "1x32": (1, 32, 1), "64x1": (64, 1, 1), "4x8": (4, 8, 1)}
"""Connections, requests of each in a turn, messages of each request; 128 B."""
_SENT_BYTES = 1 << 30
"""Bodies that a cell sends at most."""
_QUEUES = 8
_SHAPE = SendShape("bench", queue_count=_QUEUES)
_KIB = replace(_SHAPE, body_bytes=1024)
_CREATOR = 1_000
CELLS = (*_SENDS, "slave", "pull")
_ADMIN, _USER = Credentials("admin", "admin-key-of-16"), Credentials("user", "user-key-of-16")
_CHECKED = {
    "authentication_enable": True,
    "authorization_enable": True,
    "init_user": json.dumps({"username": _ADMIN.access_key, "password": _ADMIN.secret_key}),
}
_Step = tuple[int, Callable[[], object]]
"""(messages, the call that processes them)."""


class _NoBacklog:
    def backlog(self, link: int) -> int:
        return 0 * link

    def elapsed_us(self) -> int:
        return 0


class _Driven:
    """A broker driven by hand; jobs run at once."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.now = Now(1_000, 1_700_000_000_000)
        config = BrokerConfig(**settings)
        delays = parse_delay_levels(config.delay_levels)
        machine = Machine("bench", 8 << 30)
        self.node = Broker(config, RealDisk(path), _NoBacklog(), Random(1), machine, self.now, delays)
        self.node.listening("127.0.0.1:10911", "127.0.0.1:10912", self.now)

    def open(self, link: int, kind: LinkKind) -> None:
        self.turn([], [Opened(link, kind, f"127.0.0.1:{30_000 + abs(link)}", "127.0.0.1:10911")])

    def turn(self, received: list[tuple[int, bytes]], events: list[Any] | None = None) -> Turn:
        self.now = Now(self.now.mono_ms + 1, self.now.wall_ms + 1)
        first = turn = self.node.turn(received, events or [], self.now)
        while turn.jobs:
            turn = self.node.turn([], [JobDone(job, job.run()) for job in turn.jobs], self.now)
            for link, buffers in turn.sends.items():
                first.send(link, *buffers)
        return first


def _sends(
    name: str,
    path: Path,
    turns: int = _TURNS,
    shape: SendShape = _SHAPE,
    broker: _Driven | None = None,
    *,
    signatures: str = "",
) -> Iterator[_Step]:
    links, window, batch = _SENDS[name]
    broker = broker or _Driven(path, **(_CHECKED if signatures == "checked" else {}))
    shape = replace(shape, batch=batch)
    broker.open(_CREATOR, LinkKind.REMOTING)
    if shape.queue_count > _QUEUES:
        create = create_topic_request(shape.topic, shape.queue_count)
        broker.turn([(_CREATOR, _signed(create, _ADMIN))])
    if signatures == "checked":
        _let_send(broker, shape.topic)
    turns = min(turns, _SENT_BYTES // (links * window * batch * shape.body_bytes))
    frames = min(1000, max(window, _SENT_BYTES // (16 * links * shape.body_bytes)))
    sources = [SendFrames(shape, identity=link, wall_ms=broker.now.wall_ms, frames=frames) for link in range(links)]
    for link in range(links):
        broker.open(link + 1, LinkKind.REMOTING)
    for _ in range(turns):
        received = [(link + 1, bytes(source.take(window, broker.now.wall_ms))) for link, source in enumerate(sources)]
        if signatures:
            received = [(link, signed_frames(data, _USER)) for link, data in received]
        received = [
            (link, data[at : at + RECEIVE_BYTES])
            for link, data in received
            for at in range(0, len(data), RECEIVE_BYTES)
        ]
        yield links * window * batch, lambda received=received: broker.turn(received)  # type: ignore[misc]


def _signed(request: Command, user: Credentials) -> bytes:
    return encode_command(structs.replace(request, fields=signed(request.fields, request.body, user)))


def _let_send(broker: _Driven, topic: str) -> None:
    """Create a user that may send to a topic, and do nothing else."""
    user = {"password": _USER.secret_key, "userType": "Normal"}
    entry = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
    policies = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
    for code, fields, body in (
        (RequestCode.AUTH_CREATE_USER, {"username": _USER.access_key}, user),
        (RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{_USER.access_key}"}, policies),
    ):
        request = Command(code, 1, fields=fields, body=json.dumps(body).encode())
        broker.turn([(_CREATOR, _signed(request, _ADMIN))])


def _slave(path: Path) -> Iterator[_Step]:
    """Feed a log of messages of 1 KiB in batches to a slave of the classic protocol."""
    count = 0
    for messages, step in _sends("batch", path / "master", _LOG_BYTES // (4 * 8 * 32 * 1215), _KIB):
        step()
        count += messages
    source = RealDisk(path / "master").open("commitlog/" + "0" * 20)
    broker = _Driven(path / "slave", role="SLAVE", broker_id=1, ha_master_address="127.0.0.1:1", ha_protocol="classic")
    connects = broker.turn([]).connects
    broker.open(connects[0].link, LinkKind.HA_SLAVE)
    log = source.pread(count * 1215, 0)
    stream = b"".join(frame_transfer(0, log, 32 * 1024))
    for at in range(0, len(stream), LOG_RECEIVE_BYTES):
        piece = stream[at : at + LOG_RECEIVE_BYTES]
        yield len(piece) // 1215, lambda piece=piece: broker.turn([(connects[0].link, piece)])  # type: ignore[misc]
    assert broker.node.store.log.written_end == len(log), "the slave stored all of it"


def _pull(path: Path) -> Iterator[_Step]:
    """Let four clients catch up on messages of 1 KiB, a queue each, 32 at once."""
    broker = _Driven(path)
    for _, step in _sends("batch", path, _LOG_BYTES // (4 * 8 * 32 * 1215), _KIB, broker):
        step()
    frames = PullFrames("bench", max_messages=_PULLED)
    queues = sorted(queue_id for topic, queue_id in broker.node.store.queues if topic == "bench")
    ends = {queue_id: broker.node.store.queues["bench", queue_id].max_offset for queue_id in queues}
    for at in range(0, min(ends.values()) - _PULLED, _PULLED):
        received = [(link, frames.frame(queue_id, at, at)) for link, queue_id in enumerate(queues, start=1)]
        yield _PULLED * len(queues), lambda received=received: broker.turn(received)  # type: ignore[misc]


def microseconds(
    name: str, profile: cProfile.Profile | None = None, shape: SendShape = _SHAPE, *, signatures: str = ""
) -> float:
    """Return the CPU time per message of one cell, the fastest quarter of its turns."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        path = Path(directory)
        found: list[float] = []
        if name in _SENDS:
            steps = _sends(name, path, shape=shape, signatures=signatures)
        else:
            steps = _slave(path) if name == "slave" else _pull(path)
        for messages, step in steps:
            if profile is not None:
                profile.enable()
            began = time.process_time_ns()
            step()
            found.append((time.process_time_ns() - began) / messages / 1000)
            if profile is not None:
                profile.disable()
    found = sorted(found[len(found) // 4 :])
    return found[len(found) // 4]


def main() -> None:
    """Print the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=", ".join(CELLS))
    parser.add_argument("--profile", action="store_true", help="print the dearest functions as well")
    parser.add_argument("--varied", action="store_true", help="messages as applications send them, not of 128 B")
    parser.add_argument("--body", type=int, default=_SHAPE.body_bytes, help="bytes")
    parser.add_argument("--signatures", choices=("unread", "checked"), default="", help="sends of a user; compare both")
    parser.add_argument("--form", choices=FORMS, default="json", help="of the header and the request code")
    parser.add_argument("--queues", type=int, default=_QUEUES)
    parser.add_argument("--delay", type=int, default=0, help="a level")
    parser.add_argument("--delay-s", type=int, default=0, help="seconds, as timed messages")
    args = parser.parse_args()
    shape = replace(
        _SHAPE,
        body_bytes=args.body,
        varied=args.varied,
        form=args.form,
        queue_count=args.queues,
        delay=args.delay,
        delay_s=args.delay_s,
    )
    logging.disable(logging.CRITICAL)
    unknown = [name for name in args.cells if name not in CELLS]
    if unknown:
        parser.error(f"no cell is called {unknown[0]!r}; there are {', '.join(CELLS)}")
    for name in args.cells or CELLS:
        profile = cProfile.Profile() if args.profile else None
        print(
            f"{name:8} {microseconds(name, profile, shape, signatures=args.signatures):6.2f} µs per message", flush=True
        )
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
