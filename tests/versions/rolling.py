"""A group is upgraded from the last release to this tree and downgraded again, one process after the other, under load.

name server ─► slave ─► [kill -9 of each member] ─► switch, or not ─► former master ─► proxies
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from chaos import filters, grpc_clients, timers, transactions
from chaos.brokers import GROUP, Broker
from chaos.clients import DELAYS, TOPIC, Clients
from chaos.recorder import Recorder
from chaos.rights import rights
from chaos.run import check_stores, judged, promises_of
from chaos.stores import EXIT_FAULTS, faults_of
from tandemq.client.connection import try_request
from tandemq.coordination.registry.records import Mode
from tandemq.errors import LocalError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.ports import Setting
from tests.versions import lasting
from tests.versions.world import TREE, Load, Version, VersionedWorld

SETTINGS: dict[str, Setting] = {
    "flushDiskType": "ASYNC_FLUSH",
    "messageDelayLevel": DELAYS,
    **transactions.SETTINGS,
    **timers.SETTINGS,
    **filters.SETTINGS,
    **grpc_clients.SETTINGS,
}

PACE_S = 0.05
"""Pause of each producer: the judge and the rules want all kinds of messages, not many."""


@dataclass(slots=True)
class Outcome:
    """What a run has found."""

    violations: list[str] = field(default_factory=list)
    """As of `chaos.run`, anomalies found by the judge among them."""
    failed: list[str] = field(default_factory=list)
    """Steps during which sends failed though none may, with their errors: docs/guides/upgrade.md."""
    steps: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    """Errors of all attempts to send, with their numbers."""
    stores: dict[str, Any] = field(default_factory=dict)
    lasting: dict[str, Any] = field(default_factory=dict)
    """What the clients of the last release print that lived through all changes."""


class Rolling:
    """The steps of one run."""

    def __init__(self, world: VersionedWorld, load: Load, outcome: Outcome) -> None:
        self._world = world
        self._load = load
        self._outcome = outcome

    @contextmanager
    def _step(self, text: str, *, may_fail: bool = False) -> Iterator[None]:
        """Note a step, and the sends that fail during it and until clients have got more done, unless they may."""
        before, begun = self._load.failed, time.monotonic()
        yield
        self._load.wait_for_more()
        self._outcome.steps.append(f"{text} ({time.monotonic() - begun:.1f} s)")
        if may_fail:
            return
        if more := {error: count for error, count in self._load.failed.items() if count > before.get(error, 0)}:
            self._outcome.failed.append(f"{text}: {more}")

    def change_all(self, version: Version, *, kills: bool) -> None:
        """Change all processes to a version. `kills`: kill -9 each member while their versions differ."""
        world = self._world
        self._load.wait_for_routes()
        with self._step(f"name server to {version.name}"):
            world.change(world.name_server, version)
        master, *slaves = self._members()
        for slave in slaves:
            with self._step(f"slave {slave.name} to {version.name}"):
                world.change(slave, version)
            if kills and slave is slaves[0]:
                self._kill(slave, "slave")
                self._kill(master, "master")
        if world.mode is Mode.ELECT:
            if kills:  # masters of both versions die
                self._kill(self._members()[0], "next master")
            if (now := self._members()[0]).program != version.program:
                with self._step(f"switch to {slaves[0].name}"):
                    self._switch(now, slaves[0])
        with self._step(f"master {master.name} to {version.name}", may_fail=world.mode is not Mode.ELECT):
            world.change(master, version)
        for proxy in world.proxies:
            with self._step(f"{proxy.name} to {version.name}"):
                world.change(proxy, version)

    def _members(self) -> list[Broker]:
        """Return the master, and the slaves."""
        master = self._world.master
        assert master is not None, "the group is whole"
        return [master, *(one for one in self._world.brokers if one is not master)]

    def _kill(self, member: Broker, role: str) -> None:
        with self._step(f"kill -9 of the {role} {member.name}", may_fail=True):
            member.kill()
            if self._world.mode is Mode.ELECT:
                self._world.wait(lambda: self._world.master is not None)
            self._world.restart(member)

    def _switch(self, master: Broker, target: Broker) -> None:
        fields = {"target": str(target.broker_id)}
        answer = try_request(master.address, Command(RequestCode.TANDEM_SWITCH, fields=fields))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            raise LocalError(f"{master.name} does not switch: {answer.remark if answer is not None else 'no answer'}")
        self._world.wait(lambda: self._world.master is target)
        self._world.wait(self._world.is_whole)


class LastingClients:
    """Clients of the last release, in a process of their own, which live through all changes of servers."""

    def __init__(self, version: Version, name_servers: str, log: Path) -> None:
        """Start them. `log`: file of what they log."""
        self._log = log
        isolated = [word for word in version.program if word == "-I"]
        command = [version.interpreter, *isolated, lasting.__file__, name_servers, "Lasting"]
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def finish(self) -> dict[str, Any]:
        """Let them receive what is left, and end them; return what they print."""
        output, _ = self._process.communicate("", timeout=2 * lasting.SECONDS + 60)
        if self._process.returncode:
            raise LocalError(f"the clients of the last release failed: {self._log.read_text()[-500:]}")
        found: dict[str, Any] = json.loads(output)
        return found

    def kill(self) -> None:
        """End them at once."""
        self._process.kill()
        self._process.communicate()


def verified(version: Version, store: Path) -> list[str]:
    """Return the faults that the tool of a version finds in a store that is closed."""
    words = version.command("log", "verify", store, "--derived", "--json")
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode not in (0, EXIT_FAULTS):
        return [f"I10: {version.name} cannot read {store.name}: {done.stderr[-500:]}"]
    return [f"{text} ({version.name})" for text in faults_of(store.name, json.loads(done.stdout))]


def roll(
    directory: Path,
    mode: Mode,
    versions: Sequence[Version],
    *,
    registry: str = "",
    members: int = 2,
    kills: bool = True,
    settings: Mapping[str, Setting] | None = None,
) -> Outcome:
    """Start a group with the first version, and change it to each of the following ones, under load; check all.

    Args:
        directory: of stores and logs.
        mode: of the group.
        versions: one after the other.
        registry: of the group; "": the name server's.
        members: of the group.
        kills: kill -9 each member whenever their versions differ.
        settings: more ones of the brokers.
    """
    outcome = Outcome()
    history_path = directory / "history.jsonl"
    own = {**SETTINGS, **(settings or {})}
    with (
        VersionedWorld(
            directory, mode=mode, first=versions[0], settings=own, registry=registry, members=members
        ) as world,
        history_path.open("w", encoding="utf-8") as file,
    ):
        run = " ► ".join(version.name for version in versions)
        recorder = Recorder(file, TOPIC, GROUP, run=run, system="TandemQ", promises=promises_of(mode))
        clients = Clients(world, Random(run), recorder, pace_s=PACE_S)
        clients.start()
        load = Load(world, clients)
        load.wait_for_more()
        rolling = Rolling(world, load, outcome)
        old = next(version for version in versions if version is not TREE)
        lasting_clients = LastingClients(old, world.name_server.address, directory / "lasting.log")
        try:
            for version in versions[1:]:
                rolling.change_all(version, kills=kills)
            outcome.lasting = lasting_clients.finish()
        finally:
            lasting_clients.kill()
        outcome.violations += clients.finish()
        world.wait(world.is_whole)
        outcome.violations += world.stop_all()
        outcome.violations += check_stores(world.brokers, clients, outcome.stores, recorder)
        for version in set(versions) - {TREE}:  # whose tool `check_stores` has used
            for member in world.brokers:
                outcome.violations += verified(version, member.store)
        recorder.settled()
    outcome.errors = dict(clients.history.errors)
    outcome.violations += clients.history.violations
    outcome.violations += rights(world.brokers)
    outcome.violations += judged(history_path)
    return outcome
