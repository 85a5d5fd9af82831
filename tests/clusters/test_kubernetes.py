"""What `spark-submit` of docs/guides/pipeline-clusters.md requests from Kubernetes; nothing here runs its pods."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.clusters.nodes import Nodes
from tests.clusters.page import blocks, replaced

Objects = list[dict[str, Any]]


@contextmanager
def recorder() -> Iterator[tuple[str, Objects]]:
    """Accept objects as an API server does; yields its address, and what it gets."""
    objects: Objects = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _accept(self) -> None:
            found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            objects.append(found)
            found["metadata"] |= {"uid": f"uid-{len(objects)}", "namespace": "default", "resourceVersion": "1"}
            body = json.dumps(found).encode()
            self.send_response(201)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_PUT = _accept  # noqa: N815  # the names that the class looks for

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", objects
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
def test_kubernetes_gets_a_pod_with_the_image_and_the_program(nodes: Nodes, tmp_path: Path) -> None:
    with recorder() as (address, objects):
        text = replaced(blocks("Kubernetes")[0], {"https://server:6443": address})
        no_wait = "spark-submit --conf spark.kubernetes.submission.waitAppCompletion=false"  # its pod never starts
        nodes.check(text.replace("spark-submit", no_wait), activated=nodes.env_a, SPARK_CONF_DIR=str(tmp_path))
    (pod,) = [one for one in objects if one["kind"] == "Pod"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "registry/tandemq-spark"
    assert container["args"][-2:] == ["local:///opt/app/count.py", "/var/lib/tandemq/broker-a"]
    (settings,) = [one["data"]["spark.properties"] for one in objects if one["kind"] == "ConfigMap"]
    mounted = {line for line in settings.splitlines() if ".mount.path=" in line}
    assert mounted == {
        f"spark.kubernetes.{role}.volumes.hostPath.stores.mount.path=/var/lib/tandemq"
        for role in ("driver", "executor")
    }
    assert [one["mountPath"] for one in container["volumeMounts"]].count("/var/lib/tandemq") == 1
