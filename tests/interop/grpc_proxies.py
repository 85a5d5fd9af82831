"""Proxies of the gRPC protocol as child processes: RocketMQ's, unmodified, in cluster mode, and TandemQ's.

    with proxy("5.3.3", directory, namesrv.address) as front:
        front.start()
        client = GrpcClient("python", directory, front.address)

A Java proxy takes connections with and without TLS on the same port, with a certificate that it makes itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.interop.java import HERE, LOOPBACK, SMALL_JVM, Process, Value, free_port, java_command

_STARTED = "rocketmq-proxy startup successfully"
_JVM = tuple(option for option in SMALL_JVM if not option.startswith("-Dtls."))
"""TLS remains enabled, as it is in a Java proxy by default."""


class JavaProxy(Process):
    """A Java proxy in cluster mode.

    Args:
        version: 5.3.3 or 5.5.0.
        directory: home, logs and configuration; made if missing.
        namesrv: address of one or several name servers, `;` between.
        port: of gRPC; 0 takes a free one.
        settings: keys of rmq-proxy.json; they win over the defaults here.
        jvm_options: heap and garbage collector.
    """

    def __init__(
        self,
        version: str,
        directory: Path,
        namesrv: str,
        port: int = 0,
        *,
        settings: Mapping[str, Value] | None = None,
        jvm_options: Sequence[str] = _JVM,
    ) -> None:
        self.port = port or free_port()
        super().__init__(f"proxy-{version}-{self.port}", directory, command=self._java, ready=_STARTED)
        self.version = version
        self.jvm_options = tuple(jvm_options)
        self.conf: dict[str, Value] = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": namesrv,
            "localServeAddr": LOOPBACK,
            "grpcServerPort": self.port,
            "remotingListenPort": free_port(),
            **(settings or {}),
        }

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    def _java(self) -> list[str]:
        home = self.directory / f"{self.name}.home"
        home.mkdir(parents=True, exist_ok=True)
        conf_path = home / "rmq-proxy.json"
        conf_path.write_text(json.dumps(self.conf))
        return java_command(
            "proxy",
            self.version,
            "org.apache.rocketmq.proxy.ProxyStartup",
            "-pc",
            str(conf_path),
            home=home,
            jvm_options=[
                *self.jvm_options,
                f"-DRMQ_PROXY_HOME={home}",
                f"-Drmq.logback.configurationFile={HERE / 'conf' / 'logback.xml'}",
            ],
        )


class OurProxy(Process):
    """TandemQ's proxy.

    Args:
        directory: working directory and log.
        namesrv: address of one or several name servers, `;` between.
        port: 0 takes a free one.
        tls: certificate and key; without them there is no TLS.
    """

    version = "ours"

    def __init__(self, directory: Path, namesrv: str, port: int = 0, *, tls: tuple[Path, Path] | None = None) -> None:
        self.port = port or free_port()
        settings = {"bindAddress": LOOPBACK}
        if tls is not None:
            settings |= {"tls.server.certPath": str(tls[0]), "tls.server.keyPath": str(tls[1])}
        command = [sys.executable, "-m", "tandemq", "proxy", "-n", namesrv, "-p", str(self.port)]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        super().__init__(f"proxy-ours-{self.port}", directory, command=lambda: command, ready=self.port)

    @property
    def address(self) -> str:
        """host:port for clients."""
        return f"{LOOPBACK}:{self.port}"


Proxy = JavaProxy | OurProxy


def proxy(
    kind: str, directory: Path, namesrv: str, port: int = 0, *, settings: Mapping[str, Value] | None = None
) -> Proxy:
    """Return a proxy, not started.

    Args:
        kind: "ours" or a version of RocketMQ.
        directory: working directory and log.
        namesrv: address of one or several name servers.
        port: 0 takes a free one.
        settings: keys of rmq-proxy.json, of a Java proxy only.
    """
    if kind == "ours":
        return OurProxy(directory, namesrv, port)
    return JavaProxy(kind, directory, namesrv, port, settings=settings)
