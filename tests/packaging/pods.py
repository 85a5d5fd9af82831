"""The pods of the rendered Helm chart as processes of this machine, replaced as Kubernetes replaces them.

    objects of the chart ─► pods ─┬─ command, settings, environment     as rendered
                                  ├─ address                            another loopback address at each start
                                  ├─ name in the headless service       resolves while the pod exists (`resolved`)
                                  └─ volume                             a directory, which stays

Linux only: every address of 127.0.0.0/8 is the loopback there.
"""

import base64
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.blackbox.programs import wait_until

Document = dict[str, Any]
NAMESPACE, DOMAIN = "apps", "svc.cluster.local"
PLACES = {"/etc/tandemq": "etc", "/run/tandemq": "run", "/var/lib/tandemq": "data"}
ANY, LOOPBACK = "0.0.0.0", "127.0.0.1"  # texts of the chart


class Kubernetes:
    """What all pods share: objects, names, addresses."""

    def __init__(self, directory: Path, objects: list[Document]) -> None:
        self.directory = directory
        self.objects = objects
        self.hosts = directory / "hosts"
        self._names: dict[str, str] = {}
        self._addresses = self._free_addresses()
        self.set_name("", "")
        self.pods = [
            Pod(self, found, ordinal)
            for found in objects
            if found["kind"] == "StatefulSet"
            for ordinal in range(found["spec"]["replicas"])
        ]

    @staticmethod
    def _free_addresses() -> Iterator[str]:
        # A subnet for each process, so that tests do not meet at the fixed ports.
        subnet = f"127.{64 + os.getpid() // 256 % 128}.{os.getpid() % 256}"
        return (f"{subnet}.{number}" for number in range(1, 255))

    def object(self, kind: str, name: str) -> Document:
        """Return an object of the chart."""
        (found,) = [each for each in self.objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        return found

    def of(self, component: str) -> list["Pod"]:
        """Return the pods of a component, in the order of their ordinals."""
        return [pod for pod in self.pods if pod.component == component]

    def new_address(self) -> str:
        return next(self._addresses)

    def set_name(self, name: str, address: str) -> None:
        """Let a name resolve to an address; "": it does not resolve any more."""
        self._names[name] = address
        text = "".join(f"{found} {of}\n" for of, found in self._names.items() if found)
        fresh = self.hosts.with_suffix(".new")
        fresh.write_text(text, encoding="ascii")
        fresh.replace(self.hosts)

    def run_job(self) -> None:
        """Run the containers of the chart's job, one after the other."""
        (job,) = [found for found in self.objects if found["kind"] == "Job"]
        spec = job["spec"]["template"]["spec"]
        directory = self.directory / "job"
        furnish(self, directory, LOOPBACK)
        for container in (*spec["initContainers"], *spec["containers"]):
            environ = {**os.environ, **environment(container, directory, {})}
            done = subprocess.run(
                self.command(container["args"], directory), env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{container['args']}: {done.stdout}{done.stderr}"

    def command(self, words: list[str], directory: Path) -> list[str]:
        """Return the command of a container in its directory."""
        module = "tests.packaging.resolved"
        return [sys.executable, "-m", module, str(self.hosts), *(local(word, directory) for word in words)]

    def close(self) -> None:
        """Kill all pods."""
        for pod in self.pods:
            pod.kill()


def local(text: str, directory: Path) -> str:
    """Return a text of the chart with the paths of a directory."""
    for place, name in PLACES.items():
        text = text.replace(place, str(directory / name))
    return text


def environment(container: Document, directory: Path, fields: dict[str, str]) -> dict[str, str]:
    """Return the variables of a container; `fields`: those of its pod."""
    found: dict[str, str] = {}
    for variable in container["env"]:
        field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        value = fields[field] if field else str(variable["value"])
        for name, before in found.items():
            value = value.replace(f"$({name})", before)
        found[variable["name"]] = local(value, directory)
    return found


def furnish(kubernetes: Kubernetes, directory: Path, address: str) -> None:
    """Write the files of the chart's volumes. The pod has one address, in place of an interface."""
    for name in PLACES.values():
        (directory / name).mkdir(parents=True, exist_ok=True)
    (config,) = [found for found in kubernetes.objects if found["kind"] == "ConfigMap"]
    for name, text in config["data"].items():
        (directory / "etc" / name).write_text(local(text, directory).replace(f"={ANY}\n", f"={address}\n"))
    secret = directory / "run" / "replication" / "replication.secret"
    secret.parent.mkdir(exist_ok=True)
    encoded = kubernetes.object("Secret", "queues-tandemq-replication")["data"][secret.name]
    secret.write_bytes(base64.b64decode(encoded))
    secret.chmod(0o400)


class Pod:
    """A pod of a StatefulSet: the same name and volume, another address at each start."""

    def __init__(self, kubernetes: Kubernetes, workload: Document, ordinal: int) -> None:
        self._kubernetes = kubernetes
        spec = workload["spec"]
        self.name = f"{workload['metadata']['name']}-{ordinal}"
        self.component: str = spec["selector"]["matchLabels"]["app.kubernetes.io/component"]
        self.ordinal = ordinal
        self._host = f"{self.name}.{spec['serviceName']}.{NAMESPACE}.{DOMAIN}"
        self._grace_s = float(spec["template"]["spec"]["terminationGracePeriodSeconds"])
        (self._container,) = spec["template"]["spec"]["containers"]
        self.directory = kubernetes.directory / self.name
        self.address = ""
        self.environ: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def port(self, name: str) -> int:
        """Return a port of the container by its name."""
        (found,) = [port["containerPort"] for port in self._container["ports"] if port["name"] == name]
        return int(found)

    def start(self) -> None:
        """Start it with an address that no pod has had."""
        self.address = self._kubernetes.new_address()
        furnish(self._kubernetes, self.directory, self.address)
        self._kubernetes.set_name(self._host, self.address)
        fields = {
            "metadata.labels['apps.kubernetes.io/pod-index']": str(self.ordinal),
            "metadata.name": self.name,
            "status.podIP": self.address,
        }
        variables = environment(self._container, self.directory, fields)
        self.environ = {**os.environ, **variables}
        words = self._container["args"]
        for name, value in variables.items():
            words = [word.replace(f"$({name})", value) for word in words]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._kubernetes.command(words, self.directory),
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Return whether its readiness probe succeeds."""
        probe = self._container["readinessProbe"]["httpGet"]
        connection = http.client.HTTPConnection(self.address, self.port(probe["port"]), timeout=5)
        try:
            connection.request("GET", probe["path"])
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def exec(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the pod, as `kubectl exec`."""
        assert words[0] == "tandemq"
        own = [word.replace(LOOPBACK, self.address) for word in words[1:]]
        command = self._kubernetes.command(own, self.directory)
        return subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)

    def run(self, *words: str) -> str:
        """Run a command of TandemQ in the pod that has to succeed, and return its output."""
        done = self.exec("tandemq", *words)
        assert done.returncode == 0, f"{self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def delete(self) -> str:
        """Stop it as Kubernetes does: preStop, SIGTERM, no name any more. Return what preStop printed."""
        assert self._process is not None
        printed = ""
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook is not None:
            done = self.exec(*hook["exec"]["command"])
            assert done.returncode == 0, f"{self.name}: {done.stdout}{done.stderr}\n{self.last_lines()}"
            printed = done.stdout
        self._process.terminate()
        assert self._process.wait(self._grace_s) == 0, self.last_lines()
        self._kubernetes.set_name(self._host, "")
        return printed

    def replace(self) -> str:
        """Replace it as a rolling update does, until the new one is ready. Return what preStop printed."""
        printed = self.delete()
        self.start()
        self.wait_ready()
        return printed

    def wait_ready(self) -> None:
        """Wait until its readiness probe succeeds."""
        wait_until(self.is_ready, f"{self.name} is ready")

    def last_lines(self) -> str:
        """Return the end of its log."""
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")[-2_000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
