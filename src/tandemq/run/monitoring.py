"""Monitoring of a server process: its node measured, its metrics on a port of their own and pushed to a collector.

Source: docs/guides/monitoring.md.
"""

import logging
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path

from tandemq import __version__
from tandemq.boundary import Now
from tandemq.config.monitoring import PushTarget, parse_target
from tandemq.config.settings import BrokerConfig, MonitoringConfig
from tandemq.engine import NAME as ENGINE
from tandemq.real.loop import Loop
from tandemq.real.monitoring.listener import MonitoringListener
from tandemq.real.monitoring.metered_node import MeteredNode
from tandemq.real.monitoring.otlp_exporter import OtlpExporter, PushSettings
from tandemq.real.network.addresses import text_of
from tandemq.real.network.tls import TlsFiles, client_context
from tandemq.run.metrics_credentials import MetricsCredentials
from tandemq.run.push_headers import HeaderFile
from tandemq.telemetry.buckets import SECONDS_BOUNDS, DurationBuckets
from tandemq.telemetry.collection import MonitoredNode
from tandemq.telemetry.families import Batch, counter, gauge, histogram, single
from tandemq.telemetry.otlp import OtlpRenderer

log = logging.getLogger(__name__)
BUILD = gauge("tandemq_build_info", "1; the labels say which version runs.", "version", "python", "engine")
COMMIT_SECONDS = histogram(
    "tandemq_store_commit_seconds", "Duration of writes to the commit log, one or two per turn.", bounds=SECONDS_BOUNDS
)
BUSY = counter("tandemq_loop_busy_seconds_total", "Time that the event loop worked.")
WAITED = counter("tandemq_loop_wait_seconds_total", "Time that the event loop waited for something to do.")
CONNECTIONS = gauge("tandemq_connections", "Open connections of all kinds.")
UNTAKEN = gauge("tandemq_untaken_bytes", "Bytes of responses that peers have not read.")
REFUSED = counter("tandemq_connections_refused_total", "Connections refused because of a limit.")
CERTIFICATE_EXPIRY = gauge(
    "tandemq_tls_certificate_expiry_timestamp_seconds",
    "Calendar time at which a certificate of this process expires; `setting` names its file.",
    "setting",
)
CPU = counter("process_cpu_seconds_total", "User and system CPU time.")
RESIDENT = gauge("process_resident_memory_bytes", "Resident memory, with the parts of mapped log files that were read.")
STARTED = gauge("process_start_time_seconds", "Calendar time of the start.")
OPEN_FILES = gauge("process_open_fds", "Open file descriptors.")
FILES_MAX = gauge("process_max_fds", "Maximum number of open file descriptors.")


class Monitoring:
    """Monitoring of one process. There is none if metrics are off, see `MonitoringConfig.is_monitored`."""

    def __init__(
        self,
        config: MonitoringConfig,
        service: str,
        node: MonitoredNode,
        loop: Loop,
        identity: str,
        writes: DurationBuckets | None = None,
        expiries: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        """Bind the port, and begin to push, as configured.

        Args:
            config: the settings.
            service: what the process is, for collectors.
            node: the node, to be run as `metered` from now on.
            loop: the loop that will run it.
            identity: name of the process for collectors, unlike that of all others of the cluster.
            writes: durations of writes to the commit log.
            expiries: returns until when the certificates in use are valid, seconds since 1970, by setting.

        Raises:
            ConfigError: the port, or a file for it or for pushes, cannot be used.
        """
        self._loop = loop
        self._writes = writes
        self._expiries = expiries
        self._began_ns = time.monotonic_ns()
        self._began_s = time.time()
        node.metrics.add(self._collect)
        self._listener: MonitoringListener | None = None
        self._exporter: OtlpExporter | None = None
        pushed = _renderer(config, service, identity, self._began_s) if config.metrics_exporter == "OTLP_HTTP" else None
        self.metered = MeteredNode(node, loop.wake, config.metrics_series_max, pushed)
        if pushed is not None:
            self._exporter = OtlpExporter(self.metered, pushed, push_settings(config), f"tandemq/{__version__}")
        self.address = ""
        if config.scrape_port != -1:
            file = config.metrics_credentials_file
            admits = MetricsCredentials(file).admit if file else None
            self._listener = MonitoringListener(config.metrics_bind_address, config.scrape_port, self.metered, admits)
            self.address = text_of((config.metrics_bind_address, self._listener.port))
            self._listener.start()
            if config.has_open_metrics:
                log.warning(
                    "metrics: no metricsCredentialsFile: any client that reaches port %d can read names of topics and "
                    "groups",
                    self._listener.port,
                )
        if self._exporter is not None:
            self._exporter.start()

    def close(self) -> None:
        """Close the port and end the pushes; the loop has to be stopped."""
        if self._exporter is not None:
            self._exporter.close()
        if self._listener is not None:
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
        yield Batch(CERTIFICATE_EXPIRY, {(setting,): end_s for setting, end_s in self._expiries().items()})
        yield single(CPU, time.process_time())
        yield single(STARTED, self._began_s)
        yield from _process_files()


def _process_files() -> Iterator[Batch]:
    """Yield the kernel's figures of this process; nothing where /proc has other contents."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        files = Path("/proc/self/fd").stat().st_size  # the number of descriptors, since Linux 6.2
    except (OSError, ValueError, IndexError):
        return
    yield single(RESIDENT, pages * os.sysconf("SC_PAGE_SIZE"))
    if files:
        yield single(OPEN_FILES, files)
    yield single(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _renderer(config: MonitoringConfig, service: str, identity: str, began_s: float) -> OtlpRenderer:
    resource = {"service.name": service, "service.instance.id": identity, "service.version": __version__}
    if isinstance(config, BrokerConfig):
        resource["service.namespace"] = config.cluster
    began_ms = int(began_s * 1000)
    return OtlpRenderer(config.metrics_series_max, resource, __version__, began_ms, is_delta=config.metrics_in_delta)


def push_settings(config: MonitoringConfig) -> PushSettings:
    """Return where a node pushes its metrics to.

    Raises:
        ConfigError: a file cannot be used.
    """
    target = parse_target(config.push_target)
    tls = None
    if target.is_tls:
        tls = client_context(TlsFiles("", "", config.push_ca_file, "", "", "", "metricsHttpExporterCaFile"))
    elif config.push_header_file and not _is_loopback(target):
        log.warning(
            "metrics: %s is not encrypted: the headers of metricsHttpExporterHeaderFile can be read", target.url
        )
    headers = HeaderFile(config.push_header_file)
    return PushSettings(target, config.push_interval_ms / 1000, config.push_timeout_ms / 1000, headers.headers, tls)


def _is_loopback(target: PushTarget) -> bool:
    try:
        return ip_address(target.host).is_loopback
    except ValueError:
        return target.host == "localhost"
