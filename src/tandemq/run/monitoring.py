"""Monitoring of a server process: its node measured, its metrics on a port of their own.

Source: docs/guides/monitoring.md.
"""

import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tandemq import __version__
from tandemq.boundary import Now
from tandemq.config.settings import BrokerConfig, NameServerConfig
from tandemq.engine import NAME as ENGINE
from tandemq.real.loop import Loop
from tandemq.real.monitoring.listener import MonitoringListener
from tandemq.real.monitoring.metered_node import MeteredNode
from tandemq.telemetry.buckets import SECONDS_BOUNDS, DurationBuckets
from tandemq.telemetry.collection import MonitoredNode
from tandemq.telemetry.families import Batch, counter, gauge, histogram, single

BUILD = gauge("tandemq_build_info", "1; the labels say which version runs.", "version", "python", "engine")
COMMIT_SECONDS = histogram(
    "tandemq_store_commit_seconds", "Duration of writes to the commit log, one or two per turn.", bounds=SECONDS_BOUNDS
)
BUSY = counter("tandemq_loop_busy_seconds_total", "Time that the event loop worked.")
WAITED = counter("tandemq_loop_wait_seconds_total", "Time that the event loop waited for something to do.")
CONNECTIONS = gauge("tandemq_connections", "Open connections of all kinds.")
UNTAKEN = gauge("tandemq_untaken_bytes", "Bytes of responses that peers have not read.")
REFUSED = counter("tandemq_connections_refused_total", "Connections refused because of a limit.")
CPU = counter("process_cpu_seconds_total", "User and system CPU time.")
RESIDENT = gauge("process_resident_memory_bytes", "Resident memory.")
STARTED = gauge("process_start_time_seconds", "Calendar time of the start.")
OPEN_FILES = gauge("process_open_fds", "Open file descriptors.")
FILES_MAX = gauge("process_max_fds", "Maximum number of open file descriptors.")


class Monitoring:
    """Monitoring of one process. Metrics are off if `metricsPort` is -1: then there is none."""

    def __init__(
        self,
        config: BrokerConfig | NameServerConfig,
        node: MonitoredNode,
        loop: Loop,
        writes: DurationBuckets | None = None,
    ) -> None:
        """Bind the port.

        Args:
            config: the settings.
            node: the node, to be run as `metered` from now on.
            loop: the loop that will run it.
            writes: durations of writes to the commit log.

        Raises:
            ConfigError: the port cannot be used.
        """
        self._loop = loop
        self._writes = writes
        self._began_ns = time.monotonic_ns()
        self._began_s = time.time()
        node.metrics.add(self._collect)
        self.metered = MeteredNode(node, loop.wake, config.metrics_series_max)
        self._listener = MonitoringListener(config.metrics_bind_address, config.metrics_port, self.metered)
        self.address = f"{config.metrics_bind_address}:{self._listener.port}"
        self._listener.start()

    def close(self) -> None:
        """Close the port; the loop has to be stopped."""
        self._listener.close()

    def _collect(self, _now: Now) -> Iterator[Batch | None]:
        state = self._loop.state()
        waited = state.waited_ns / 1e9
        yield Batch(BUILD, {(__version__, ".".join(map(str, sys.version_info[:3])), ENGINE): 1})
        if self._writes is not None:
            yield Batch(COMMIT_SECONDS, distributions={(): self._writes.distribution()})
        yield single(BUSY, max(0.0, (time.monotonic_ns() - self._began_ns) / 1e9 - waited))
        yield single(WAITED, waited)
        yield single(CONNECTIONS, state.connections)
        yield single(UNTAKEN, state.untaken_bytes)
        yield single(REFUSED, state.refused)
        yield single(CPU, time.process_time())
        yield single(STARTED, self._began_s)
        yield from _process_files()


def _process_files() -> Iterator[Batch]:
    """Yield what the kernel knows of this process; nothing where /proc has other contents."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = Path("/proc/self/fd").stat().st_size  # the number of descriptors, since Linux 6.2
    except (OSError, ValueError, IndexError):
        return
    yield single(RESIDENT, pages * os.sysconf("SC_PAGE_SIZE"))
    if files:
        yield single(OPEN_FILES, files)
    yield single(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
