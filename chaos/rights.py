"""I6 in the logs of members that have stopped: see `chaos.permissions`."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.brokers import Broker
from chaos.machines import SHARDS, Machine
from chaos.permissions import overlaps
from chaos.processes import mono_ms


def rights(brokers: Sequence[Broker]) -> list[str]:
    """Return violations of I6; those of each shard for itself."""
    machines = [broker for broker in brokers if isinstance(broker, Machine)]
    if machines:
        found = [text for machine in machines for text in machine.ended_shards()]
        for shard in range(SHARDS):
            lines = {machine.name: machine.lines_of(shard) for machine in machines}
            deaths = {machine.name: sorted(machine.shard_deaths[shard]) for machine in machines}
            found += [f"{text} (shard {shard})" for text in overlaps(lines, deaths, mono_ms())]
        return found
    logs = {b.name: b.log_path.read_text(encoding="utf-8", errors="replace").splitlines() for b in brokers}
    return overlaps(logs, {broker.name: broker.deaths for broker in brokers}, mono_ms())
