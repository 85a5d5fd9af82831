"""Damage of the log or of a table of one member, at rest or while it runs; the others are whole.

    damage-log     in a file that all members have: found by a scrub, and repaired from a replica to the same bytes
    damage-table   of a member that is not active, which is killed and started: it gets the others' tables

Nothing acknowledged is lost, and nothing else becomes wrong, as the run's other rules find.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from random import Random
from typing import Any

from chaos import damaged_log, damaged_tables
from chaos.brokers import Broker
from chaos.world import World
from tandemq.client.connection import try_request
from tandemq.codec.remoting.fastjson import loads
from tandemq.coordination.registry.records import Mode
from tandemq.errors import LocalError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

REPAIR_SECONDS = 60.0
"""Time limit for a scrub to find the damage of a log, and to repair it."""
_FULL_SECONDS = 15.0
"""How long to wait for the first file of a log to be full."""
_SCRUB_BYTES = 64 << 20
_LIVE = 0.5
"""Share of the damages that strike while the member runs."""
_SERVES = 0.5
"""Share of the members with a damaged table that become active after that, where an operator can order it."""
_SHOWN = 3
_NAMED = ("topicConfigTable", "subscriptionGroupTable")
_OFFSETS = "offsetTable"
_TABLES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _NAMED[0],
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _NAMED[1],
    RequestCode.GET_ALL_CONSUMER_OFFSET: _OFFSETS,
}
"""Code of a request to the key of its table in the response."""
_LOOK_SECONDS = 0.1
_REFUSED = re.compile(r"config/[\w.-]+|epochFileCheckpoint")


class StorageFaults:
    """The faults of one run."""

    def __init__(self, world: World, violations: list[str]) -> None:
        """`violations`: gets what is found."""
        self._world = world
        self._violations = violations
        self._older: dict[str, damaged_tables.Contents] = {}
        """Tables of each member at an earlier time."""

    def log(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Damage a file of a member's commit log."""
        self._world.wait(self._world.is_in_sync)
        until = time.monotonic() + _FULL_SECONDS
        while not (paths := self._full_files(broker)):
            if time.monotonic() > until:
                return {"kind": ""}
            time.sleep(_LOOK_SECONDS)
        path, is_live = random.choice(paths), random.random() < _LIVE
        before = path.read_bytes()
        if not is_live:
            broker.kill()
        kind, places = damaged_log.damage(path, random)
        time.sleep(seconds)
        if not is_live:
            broker.start()
        if kind:
            self._check_repaired(broker, path, before)
        return {"file": f"commitlog/{path.name}", "kind": kind, "bytes": places, "live": is_live}

    def _full_files(self, broker: Broker) -> list[Path]:
        """Return the files of a member's log that all members have."""
        end = min(one.log_end() for one in self._world.brokers)
        return damaged_log.files_before(broker.judged_store, end)

    def _check_repaired(self, broker: Broker, path: Path, before: bytes) -> None:
        """I10: check that a scrub finds the damage, and that the file then has the bytes that it had."""
        until = time.monotonic() + REPAIR_SECONDS
        found = _scrub(broker, begin=True)
        while not _is_clean(found) or path.read_bytes() != before:
            if time.monotonic() > until:
                left = found.get("damaged", "no answer")
                text = f"I10: commitlog/{path.name} of {broker.name} is not repaired {REPAIR_SECONDS:g} s after a scrub"
                self._violations.append(f"{text} began; damage that it knows: {left}")
                return
            time.sleep(_LOOK_SECONDS)
            found = _scrub(broker)

    def table(self, broker: Broker, seconds: float, random: Random) -> dict[str, Any]:
        """Damage a table of a member that is not active."""
        world = self._world
        world.wait(world.is_in_sync)
        broker = random.choice([one for one in world.brokers if not self._is_active(one)] or [broker])
        older = self._older.get(broker.name) or self._contents(broker)
        self._older[broker.name] = self._contents(broker)
        is_live = random.random() < _LIVE
        if not is_live:
            time.sleep(seconds)
            broker.kill()
        if self._is_active(broker):  # meanwhile
            return {"kind": ""}
        name, kind = damaged_tables.damage(self._contents(broker), older, random)
        if is_live:
            time.sleep(seconds)
            broker.kill()
        deleted = _start(broker)
        self._check_tables(broker, f"the {kind} table {name}")
        if world.mode is Mode.ELECT and random.random() < _SERVES:
            self._switch_to(broker)
        return {"member": broker.broker_id, "file": name, "kind": kind, "live": is_live, "deleted": deleted}

    def _contents(self, broker: Broker) -> damaged_tables.Contents:
        return damaged_tables.contents(broker.judged_store, has_static_topic=self._world.neighbour is not None)

    def _is_active(self, broker: Broker) -> bool:
        if self._world.mode is Mode.STATIC:
            return broker.broker_id == 0
        status = broker.failover_status()
        return bool(status.get("mayRead") or status.get("mayWrite"))

    def _check_tables(self, broker: Broker, damaged: str) -> None:
        """I14, I7: check that the group is whole again, and that the member has the active one's tables."""
        world = self._world
        after = f"after {damaged} of {broker.name} was damaged"
        try:
            world.wait(world.is_in_sync)
        except LocalError:
            reasons = {one.broker_id: one.failover_status().get("why", "no answer") for one in world.brokers}
            self._violations.append(f"I14: the group is not whole {after}: {reasons}")
            return
        until, lacks = time.monotonic() + REPAIR_SECONDS, ["no active member"]
        while lacks and time.monotonic() < until:
            time.sleep(_LOOK_SECONDS)
            if (master := world.master) is not None and (wanted := tables_of(master)):
                lacks = lacking(wanted, tables_of(broker)) if master is not broker else []
        if lacks:
            self._violations.append(f"I7: {REPAIR_SECONDS:g} s {after} it lacks {', '.join(lacks[:_SHOWN])}")

    def _switch_to(self, broker: Broker) -> None:
        """Have the member become active, so that clients use its tables."""
        master = self._world.master
        if master is not None and master is not broker:
            target = {"target": str(broker.broker_id)}
            try_request(master.own_address, Command(RequestCode.TANDEM_SWITCH, fields=target))


def tables_of(broker: Broker | None) -> dict[str, Any]:
    """Return names of topics and groups, and committed offsets, as a member reports them; {} if it does not."""
    found: dict[str, Any] = {}
    for code, key in _TABLES.items():
        answer = None if broker is None else try_request(broker.own_address, Command(code))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return {}
        found[key] = loads(answer.body, is_trusted=True)[key]
    return found


def lacking(wanted: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return what a member lacks of the tables that the active one had: topics, groups, and offsets as high."""
    if not found:
        return ["all tables: it does not answer"]
    lacks = [f"{key} {name}" for key in _NAMED for name, one in wanted[key].items() if found[key].get(name) != one]
    for place, offsets in wanted[_OFFSETS].items():
        own = found[_OFFSETS].get(place, {})
        lacks += [f"{place}/{queue}: {offset}" for queue, offset in offsets.items() if own.get(queue, -1) < offset]
    return lacks


def _start(broker: Broker) -> str:
    """Start a broker; delete the table that it cannot read, as its error says, and return its name."""
    try:
        broker.start()
    except TandemError as error:
        found = _REFUSED.search(str(error))
        if found is None:
            raise
        stem = broker.judged_store / found[0].removesuffix(".bak")
        for path in (stem, stem.with_name(f"{stem.name}.bak")):
            path.unlink(missing_ok=True)
        broker.start()
        return found[0]
    return ""


def _scrub(broker: Broker, *, begin: bool = False) -> dict[str, Any]:
    """Return the health of a broker's log; {} if it does not answer. `begin`: begin a pass."""
    fields = {"begin": "true", "bytesPerSecond": str(_SCRUB_BYTES)} if begin else {}
    answer = try_request(broker.own_address, Command(RequestCode.TANDEM_SCRUB, fields=fields))
    return loads(answer.body) if answer is not None and answer.code == ResponseCode.SUCCESS else {}


def _is_clean(found: dict[str, Any]) -> bool:
    return found.get("state", "running") != "running" and not found["damaged"]
