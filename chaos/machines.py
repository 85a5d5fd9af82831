"""Members that are machines with two shards: `tandemq broker --shards 2`, under one supervisor.

The clients use one of the two groups, which the seed draws. Its shard is what faults of a broker strike; `kill` kills
the supervisor and both shards, as the loss of the machine does. Two more faults strike parts of it:

kill-shard        kill -9 of either shard: its supervisor starts it again
kill-supervisor   kill -9 of the supervisor: the shards go on, and the next supervisor adopts them
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.brokers import GROUP, START_SECONDS, Broker
from chaos.processes import mono_ms
from chaos.proxy import Behaviour, Proxies, Proxy, ProxyLoop
from tandemq.config.shards import PORT_DISTANCE, shard_name, shard_store
from tandemq.errors import LocalError
from tandemq.run.ports import Setting

SHARDS = 2
_LOOK_SECONDS = 0.02
_ENDED = re.compile(r"shard (\S+) ended \((exit code [^)]*)\)")
_NAMED = re.compile(r"^\S+ \S+ \w+ (\S+?): ")


class Machine(Broker):
    """A member with two shards."""

    def __init__(
        self,
        number: int,
        directory: Path,
        registry: Proxies | None,
        where: ProxyLoop,
        settings: Mapping[str, Setting],
        *,
        shard: int,
    ) -> None:
        """`shard`: number of the shard that the clients use; the others are as for a broker."""
        super().__init__(number, directory, registry, where, {**settings, "shards": SHARDS})
        self.shard = shard
        self._behind: dict[tuple[str, int], Proxy] = {}
        """Proxies by kind and shard."""
        self.shard_deaths: dict[int, list[int]] = {each: [] for each in range(SHARDS)}
        """Times at which each shard was seen dead, ms of the monotonic clock."""

    @property
    def address(self) -> str:
        """Address of the shard that the clients use."""
        return self.shard_address(self.shard)

    def shard_address(self, shard: int) -> str:
        """Return the address of a shard for clients; "" before the first start."""
        shards = self.startup.get("shards")
        return str(shards[shard]["address"]) if shards else ""

    @property
    def own_address(self) -> str:
        """Its own address, past its proxy."""
        host, _, port = super().own_address.rpartition(":")
        return f"{host}:{int(port) + PORT_DISTANCE * self.shard}"

    @property
    def judged_store(self) -> Path:
        """Store of the shard that the clients use."""
        return self.shard_path(self.shard)

    def shard_path(self, shard: int) -> Path:
        """Return the store of a shard."""
        return Path(shard_store(str(self.store), shard))

    def make_links(self) -> None:
        """Have the proxies of both shards listen."""
        for shard, facts in enumerate(self.startup["shards"]):
            for what, key in (("clients", "address"), ("slaves", "haAddress")):
                if (what, shard) not in self._behind:
                    host, _, port = str(facts[key]).rpartition(":")
                    self._behind[what, shard] = self.link_to((host, int(port)))

    def behave(self, what: str, behaviour: Behaviour) -> None:
        """See `FaultyChild`; all shards of a machine have one network."""
        if what == "registry":
            super().behave(what, behaviour)
        for (kind, _), link in self._behind.items():
            if kind == what:
                link.behave(behaviour)

    # Processes.

    def shard_pids(self) -> list[int]:
        """Return the process ids of the shards, as the supervisor has recorded them; 0 for one that does not run."""
        try:
            table: dict[str, Any] = json.loads((self.store / "shards" / "run" / "shards.json").read_text())["shards"]
        except (OSError, ValueError, KeyError):
            return [0] * SHARDS
        pids = [table.get(shard_name(GROUP, shard), {}).get("process", [0])[0] for shard in range(SHARDS)]
        return [pid if _is_shard(pid) else 0 for pid in pids]

    @property
    def serving_pid(self) -> int:
        """Process of the shard that the clients use."""
        return self.shard_pids()[self.shard]

    def _kill_pids(self, pids: list[int]) -> None:
        for shard, pid in enumerate(pids):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _wait_gone(pid)
                self.shard_deaths[shard].append(mono_ms())

    def kill(self) -> None:
        """Kill the supervisor and both shards."""
        super().kill()
        self._kill_pids(self.shard_pids())

    def kill_shard(self, shard: int) -> None:
        """Kill a shard, and wait until its supervisor has started it again.

        Raises:
            LocalError: it was not, in time.
        """
        pids = self.shard_pids()
        self._kill_pids([pid if each == shard else 0 for each, pid in enumerate(pids)])
        until = time.monotonic() + START_SECONDS
        while self.shard_pids()[shard] in (0, pids[shard]):
            if time.monotonic() > until:
                raise LocalError(f"{self.name}: shard {shard} is not started again", hint=f"its log: {self.log_path}")
            time.sleep(_LOOK_SECONDS)

    def kill_supervisor(self) -> None:
        """Kill the supervisor only; note shards that ended with it as I16."""
        pids = self.shard_pids()
        super().kill()
        gone = [shard for shard, pid in enumerate(pids) if pid and not _is_shard(pid)]
        self.ended += [f"I16: shard {shard} of {self.name} ended with its supervisor" for shard in gone]

    def stop(self) -> bool:
        """Stop it cleanly; kill shards that no supervisor stops."""
        is_clean = super().stop()
        self._kill_pids(self.shard_pids())
        return is_clean

    def _died(self) -> None:
        """Note that the supervisor and the shards it stopped are seen dead now."""
        super()._died()
        for deaths in self.shard_deaths.values():
            deaths.append(mono_ms())

    def pause(self, seconds: float) -> None:
        """Pause the shard that the clients use."""
        pid = self.shard_pids()[self.shard]
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(seconds)
                os.kill(pid, signal.SIGCONT)
        self.failover_status()

    # What it logged.

    def lines_of(self, shard: int) -> list[str]:
        """Return the log lines of a shard."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        name = shard_name(GROUP, shard)
        return [line for line in lines if (found := _NAMED.match(line)) is not None and found[1] == name]

    def ended_shards(self) -> list[str]:
        """Return violations of I16: shards that ended by themselves."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return [f"I16: shard {name} of {self.name} ended: {how}" for name, how in _ENDED.findall(text)]


def _is_shard(pid: int) -> bool:
    """Return whether a process runs: one that has ended and was not waited for does not."""
    try:
        return pid > 0 and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return False


def _wait_gone(pid: int) -> None:
    until = time.monotonic() + START_SECONDS
    while _is_shard(pid) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS / 10)
