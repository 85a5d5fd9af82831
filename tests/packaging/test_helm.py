"""The Helm chart: valid objects for several sets of values, whose commands, settings and files exist."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq import __version__
from tandemq.config.files import load_broker_config, load_name_server_config, load_proxy_config
from tandemq.config.tls import read_client_tls
from tandemq.coordination.registry.records import Mode, config_from_json, config_path
from tandemq.registry import NodeFound, Read, parse_address
from tandemq.run.registry_session import RegistryClient
from tests.packaging import helm
from tests.packaging.test_compose import parsed
from tests.unit.boundary.registries import NameServerPlace

pytestmark = pytest.mark.timeout(1800)
Objects = list[dict[str, Any]]

PAIR = {"name": "broker-b", "replicas": 2, "mode": "slave-consume", "extraConfig": {"autoCreateTopicEnable": False}}
SINGLE = {"name": "broker-a", "replicas": 1, "persistence": {"existingClaim": "old-store"}}
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "ZooKeeper": {"registry": {"zookeeper": {"address": "zk-0.zk:2181,zk-1.zk:2181"}}, "nameServer": {"replicas": 2}},
    "etcd": {
        "registry": {
            "etcd": {
                "address": "etcd-0.etcd:2379,etcd-1.etcd:2379/queues?ca=/run/tandemq/etcd/ca.crt",
                "existingSecret": "etcd-client",
            }
        }
    },
    "TLS": {
        "tls": {"existingSecret": "certificates", "replication": True, "checkHost": True},
        "broker": {"address": "dns"},
        "kafka": {"enabled": True, "advertisedHost": "kafka.example.org"},
        "auth": {"enabled": True},
    },
    "no persistence": {
        part: {"persistence": {"enabled": False}} for part in ("broker", "nameServer", "registry", "console")
    }
    | {"kafka": {"enabled": True, "persistence": {"enabled": False}}},
    "existing claims": {
        "groups": [SINGLE],
        "registry": {"persistence": {"existingClaim": "old-registry"}},
        "console": {"enabled": True, "persistence": {"existingClaim": "old-console"}},
        "kafka": {"enabled": True, "persistence": {"existingClaim": "old-kafka"}},
    },
    "Kafka": {
        "kafka": {"enabled": True},
        "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    },
    "everything": {
        "groups": [{"name": "broker-a", "replicas": 3}, PAIR],
        "broker": {
            "extraConfig": {"mappedFileSizeCommitLog": 1_073_741_824, "autoCreateTopicEnable": True},
            "extraVolumes": [{"name": "extra", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra"}],
            "tolerations": [{"key": "storage", "operator": "Exists"}],
            "nodeSelector": {"disk": "fast"},
            "podAnnotations": {"note": "x"},
        },
        "console": {"enabled": True, "hostNames": ["console.example.org"]},
        "auth": {"enabled": True},
        "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "image": {"repository": "registry.example.org/tandemq", "digest": f"sha256:{'0' * 64}"},
        "commonLabels": {"team": "queues"},
    },
}


@pytest.fixture(scope="module", params=list(VALUES))
def values(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of values, one of several."""
    path = tmp_path_factory.mktemp("values") / "values.json"
    path.write_text(json.dumps(VALUES[request.param]))
    return path


def rendered(tmp_path: Path, values: dict[str, Any]) -> Objects:
    path = tmp_path / "values.json"
    path.write_text(json.dumps(values))
    return helm.documents("--values", str(path))


def of_kind(objects: Objects, *kinds: str) -> Objects:
    return [found for found in objects if found["kind"] in kinds]


def pods(objects: Objects) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return name, labels and specification of the pods."""
    for found in objects:
        if found["kind"] == "Pod":
            yield found["metadata"]["name"], found["metadata"]["labels"], found["spec"]
        elif "template" in found.get("spec", {}):
            template = found["spec"]["template"]
            yield found["metadata"]["name"], template["metadata"]["labels"], template["spec"]


def containers(objects: Objects) -> Iterator[dict[str, Any]]:
    for _, _, pod in pods(objects):
        yield from (*pod.get("initContainers", ()), *pod["containers"])


def files(objects: Objects) -> dict[str, str]:
    (found,) = of_kind(objects, "ConfigMap")
    texts: dict[str, str] = found["data"]
    return texts


def test_version_is_that_of_the_package() -> None:
    chart = (helm.CHART / "Chart.yaml").read_text(encoding="utf-8")
    assert f"\nappVersion: {__version__}\n" in chart


def test_chart_is_without_faults_for_helm_and_kubernetes(values: Path) -> None:
    found = helm.run(helm.program(), "lint", "--strict", helm.CHART, "--values", values)
    assert "0 chart(s) failed" in found
    assert {"StatefulSet", "Service", "ConfigMap"} <= {each["kind"] for each in helm.documents("--values", str(values))}


def test_validation_finds_unknown_fields() -> None:
    text = "{apiVersion: v1, kind: Service, metadata: {name: x}, spec: {clusterIp: None}}"
    result = json.loads(helm.run(helm.validator(), helm.PROGRAM, *helm.VERSIONS, text=text))
    assert len(result["problems"]) == len(helm.VERSIONS)
    assert "Service x, 1.28: spec: " in result["problems"][0]
    assert "clusterIp" in result["problems"][0]


def test_pods_have_no_privileges_and_all_volumes(values: Path) -> None:
    objects = helm.documents("--values", str(values))
    for name, _, pod in pods(objects):
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["runAsUser"], context["fsGroup"]) == (True, 10_001, 10_001), name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]
        made = {volume["name"] for volume in pod["volumes"]}
        claims = [each["spec"] for each in of_kind(objects, "StatefulSet") if each["metadata"]["name"] == name]
        made |= {claim["metadata"]["name"] for spec in claims for claim in spec.get("volumeClaimTemplates", ())}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            own = container["securityContext"]
            assert own["readOnlyRootFilesystem"]
            assert not own["allowPrivilegeEscalation"]
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= made, name


def test_secret_of_etcd_is_mounted_where_its_address_names_files(tmp_path: Path) -> None:
    objects = rendered(tmp_path, VALUES["etcd"])
    text, warnings = files(objects)["broker-a.conf"], list[str]()
    broker = load_broker_config(text, path="broker-a.conf", warn=warnings.append, overrides={"brokerId": "0"})
    assert warnings == []
    address = parse_address(broker.registry_address)
    assert (address.hosts, address.prefix) == ("etcd-0.etcd:2379,etcd-1.etcd:2379", "/queues")
    assert address.access.ca_file == "/run/tandemq/etcd/ca.crt"
    for container in containers(objects):
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["etcd"] == "/run/tandemq/etcd", container["name"]
    assert not [each for each in of_kind(objects, "StatefulSet") if each["metadata"]["name"].endswith("-registry")]


def test_services_budgets_and_spread_select_pods(values: Path) -> None:
    objects = helm.documents("--values", str(values))
    labels = [found for _, found, _ in pods(objects)]
    selectors = [found["spec"]["selector"] for found in of_kind(objects, "Service")]
    selectors += [found["spec"]["selector"]["matchLabels"] for found in of_kind(objects, "PodDisruptionBudget")]
    selectors += [
        constraint["labelSelector"]["matchLabels"]
        for _, _, pod in pods(objects)
        for constraint in pod.get("topologySpreadConstraints", ())
    ]
    assert len(selectors) > 4
    for selector in selectors:
        assert sum(selector.items() <= found.items() for found in labels) == 1, selector


def test_commands_exist(values: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The paths of files are those of a pod.
    for name in [name for name in os.environ if name.startswith("TANDEMQ_")]:
        monkeypatch.delenv(name)
    here = tmp_path / "file"
    here.touch()
    objects = helm.documents("--values", str(values))
    names = set()
    for container in containers(objects):
        words = [re.sub(r"=/(etc|run)/tandemq/.*", f"={here}", word) for word in container["args"]]
        words = ["--set=brokerId=0" if word == "--set=brokerId=$(BROKER_ID)" else word for word in words]
        names.add(parsed(words).command.name)
        if container["name"] == "broker" and "lifecycle" in container:
            hook = container["lifecycle"]["preStop"]["exec"]["command"]
            assert hook[0] == "tandemq"
            assert parsed(hook[1:]).command.name == "switch"
    assert {"namesrv", "broker", "proxy", "send", "tail", "import", "set"} <= names


def test_settings_are_valid(values: Path) -> None:
    objects = helm.documents("--values", str(values))
    warnings: list[str] = []
    for name, text in files(objects).items():
        if name == "commands.tls.properties":
            assert read_client_tls(text).ca_file == "/run/tandemq/tls/ca.crt"
        elif name == "namesrv.conf":
            server = load_name_server_config(text, path=name, warn=warnings.append)
            assert (server.listen_port, server.metrics_port) == (9876, 5558)
        elif name == "proxy.conf":
            proxy = load_proxy_config(text, path=name, warn=warnings.append)
            assert (proxy.listen_port, proxy.metrics_port) == (8081, 5559)
        else:
            overrides = {"brokerId": "1", "brokerIP1": "queues-tandemq-broker-a-1.queues-tandemq-broker-a.apps.svc"}
            broker = load_broker_config(text, path=name, warn=warnings.append, overrides=overrides)
            assert (broker.broker_name, broker.listen_port) == (name.removesuffix(".conf"), 10911)
            assert broker.registry_address
    assert warnings == []


def test_ports_of_probes_and_services_exist(values: Path) -> None:
    objects = helm.documents("--values", str(values))
    for container in containers(objects):
        known = {port["name"] for port in container.get("ports", ())}
        probes = [container[kind] for kind in ("startupProbe", "readinessProbe", "livenessProbe") if kind in container]
        assert len(probes) in (0, 3)
        assert bool(probes) == bool(known)
        assert {probe["httpGet"]["port"] for probe in probes} <= known
    for service in of_kind(objects, "Service"):
        (pod,) = [pod for _, labels, pod in pods(objects) if service["spec"]["selector"].items() <= labels.items()]
        known = {port["name"] for container in pod["containers"] for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= known


def test_members_have_what_their_number_needs(tmp_path: Path) -> None:
    objects = rendered(tmp_path, VALUES["everything"] | {"groups": [{"name": "broker-a", "replicas": 3}, PAIR]})
    texts = files(objects)
    assert "inSyncReplicas=2" in texts["broker-a.conf"].splitlines()
    assert "minInSyncReplicas=2" in texts["broker-a.conf"].splitlines()
    assert "minInSyncReplicas=1" in texts["broker-b.conf"].splitlines()
    # Of whole numbers Helm makes floats; a group's own settings decide, `false` too.
    assert "mappedFileSizeCommitLog=1073741824" in texts["broker-b.conf"].splitlines()
    assert "autoCreateTopicEnable=true" in texts["broker-a.conf"].splitlines()
    assert "autoCreateTopicEnable=false" in texts["broker-b.conf"].splitlines()
    assert all("lifecycle" in each for each in containers(objects) if each["name"] == "broker")
    objects = rendered(tmp_path, {"groups": [SINGLE]})
    (broker,) = [each for each in containers(objects) if each["name"] == "broker"]
    assert "lifecycle" not in broker, "a single member cannot hand over"
    single = files(objects)["broker-a.conf"].splitlines()
    assert {"inSyncReplicas=1", "minInSyncReplicas=1"} <= set(single)


def test_existing_claims_are_used(tmp_path: Path) -> None:
    objects = rendered(tmp_path, VALUES["existing claims"])
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for _, _, pod in pods(objects)
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == {"old-store", "old-registry", "old-console", "old-kafka"}
    assert not of_kind(objects, "PersistentVolumeClaim")


def test_pod_monitor_finds_all_servers(tmp_path: Path) -> None:
    """Its schema comes with the Prometheus operator: the fields are those of its documentation."""
    objects = rendered(tmp_path, VALUES["everything"])
    (monitor,) = of_kind(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    spec = monitor["spec"]
    assert set(spec) == {"namespaceSelector", "selector", "podMetricsEndpoints"}
    (endpoint,) = spec["podMetricsEndpoints"]
    assert set(endpoint) == {"port", "path", "interval", "relabelings"}
    (expression,) = spec["selector"]["matchExpressions"]
    found = [
        container["name"]
        for _, labels, pod in pods(objects)
        if spec["selector"]["matchLabels"].items() <= labels.items()
        and labels[expression["key"]] in expression["values"]
        for container in pod["containers"]
        if endpoint["port"] in {port["name"] for port in container["ports"]}
    ]
    assert sorted(found) == ["broker", "broker", "namesrv", "namesrv", "proxy"]


def test_job_changes_with_the_groups_only(tmp_path: Path) -> None:
    def name(values: dict[str, Any]) -> str:
        (job,) = of_kind(rendered(tmp_path, values), "Job")
        return str(job["metadata"]["name"])

    assert name({}) == name({"broker": {"resources": {"limits": {"cpu": 2}}}, "proxy": {"replicas": 5}})
    assert name({}) != name({"groups": [{"name": "broker-a", "replicas": 3}, PAIR]})
    assert not of_kind(rendered(tmp_path, {"console": {"enabled": True}}), "Job")


def test_new_group_restarts_no_other_pods(tmp_path: Path) -> None:
    def sums(values: dict[str, Any]) -> dict[str, str]:
        workloads = of_kind(rendered(tmp_path, values), "StatefulSet", "Deployment")
        templates = {found["metadata"]["name"]: found["spec"]["template"]["metadata"] for found in workloads}
        return {name: found["annotations"]["checksum/config"] for name, found in templates.items()}

    before, after = sums({}), sums({"groups": [{"name": "broker-a", "replicas": 3}, PAIR]})
    assert set(after) - set(before) == {"queues-tandemq-broker-b"}
    assert before.items() <= after.items()
    changed = sums({"broker": {"extraConfig": {"fileReservedTime": 24}}})
    assert [name for name in before if before[name] != changed[name]] == ["queues-tandemq-broker-a"]


def test_job_publishes_what_the_registry_lacks_and_keeps_the_rest(tmp_path: Path) -> None:
    place = NameServerPlace(tmp_path / "namesrv")
    registry = f"namesrv://127.0.0.1:{place.port}"

    def tandemq(run: str, words: list[str]) -> None:
        environ = {**os.environ, "TANDEMQ_REGISTRY": registry, "TANDEMQ_DATABASE": f"sqlite:///{tmp_path / run}.db"}
        done = subprocess.run(
            [sys.executable, "-m", "tandemq", *words], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def publish(run: str, replicas: int) -> None:
        (job,) = of_kind(rendered(tmp_path, {"groups": [{"name": "broker-a", "replicas": replicas}]}), "Job")
        for container in containers([job]):
            tandemq(run, container["args"])

    def members() -> list[tuple[int, int]]:
        with RegistryClient(parse_address(registry)) as client:
            node = client.do(Read(config_path("DefaultCluster", "broker-a")))
        assert isinstance(node, NodeFound)
        config = config_from_json("broker-a", node.data)
        assert config.mode is Mode.ELECT
        return [(member.broker_id, member.weight) for member in config.members]

    try:
        publish("first", 2)
        assert members() == [(0, 100), (1, 100)]
        tandemq("operator", ["ha", "config", "import"])
        tandemq("operator", ["ha", "config", "set", "broker-a", "--member", "0,weight=7"])
        tandemq("operator", ["ha", "config", "apply"])
        publish("again", 2)
        assert members() == [(0, 7), (1, 100)]
        publish("larger", 3)
        assert members() == [(0, 7), (1, 100), (2, 100)]
    finally:
        place.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--set", "broker.replicas=3"], "replicas is not allowed"),
        (["--set", "groups[0].name=Broker_A,groups[0].replicas=3"], "groups.0.name"),
        (["--set", "groups[0].name=broker-a,groups[0].replicas=0"], "groups.0.replicas"),
        (["--set", "groups[0].name=broker-a,groups[0].replicas=2,groups[0].mode=static"], "groups.0.mode"),
        (["--set", "broker.persistence.existingClaim=old"], "existingClaim is for one member"),
        (["--set", "registry.zookeeper.address=zk:2181,nameServer.replicas=0"], "at least 1 is needed"),
        (["--set", "registry.zookeeper.address=zk:2181,registry.etcd.address=etcd:2379"], "not both"),
        (["--set", "registry.etcd.address=https://etcd:2379"], "registry.etcd.address"),
        (["--set", "kafka.enabled=true,auth.enabled=true"], "set tls.existingSecret"),
        (
            [
                "--set",
                "fullnameOverride=a-name-of-thirty-characters-xx,groups[0].replicas=3,groups[0].name=" + "b" * 30,
            ],
            "52",
        ),
    ],
)
def test_wrong_values_are_refused_with_the_reason(options: list[str], reason: str) -> None:
    assert reason in helm.refusal(*options)


def test_notes_name_the_addresses_of_clients(tmp_path: Path) -> None:
    # `helm template` leaves the notes out.
    chart = tmp_path / "chart"
    shutil.copytree(helm.CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes")
    shown = 'kind: ConfigMap\ndata:\n  notes: {{ tpl (.Files.Get "notes") . | quote }}\n'
    (chart / "templates" / "notes.yaml").write_text(shown)
    words = ["template", "queues", str(chart), "--namespace", "apps", "--kube-version", "1.33.0"]
    words += ["--show-only", "templates/notes.yaml"]
    notes = helm.run(helm.program(), *words, "--set", "console.enabled=true,kafka.enabled=true")
    assert "queues-tandemq-registry-0.queues-tandemq-registry.apps.svc.cluster.local:9876" in notes
    assert "kubectl -n apps exec queues-tandemq-broker-a-0 -- tandemq ha check" in notes
    assert "kubectl -n apps logs deployment/queues-tandemq-console" in notes
    assert "queues-tandemq-kafka.apps.svc:9092" in notes
    assert "Every client that reaches the brokers may do everything" in notes
    with_users = helm.run(helm.program(), *words, "--set", "auth.enabled=true")
    assert "the secret queues-tandemq-admin" in with_users
