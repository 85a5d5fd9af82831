"""The cluster of docs/guides/deploy.md, made with the page's own commands."""

from collections.abc import Sequence

from tests.blackbox.machines import SMALL, Machine
from tests.pages import Page

DEPLOY = Page("docs/guides/deploy.md")
ZOOKEEPER = "zookeeper://10.0.0.1:2181,10.0.0.2:2181,10.0.0.3:2181"
REGISTRY = "namesrv://10.0.0.1:9876"
"""Where Java is not needed, the registry in the first machine's name server takes ZooKeeper's place."""


def deploy(machines: Sequence[Machine], *, has_zookeeper: bool) -> None:
    """Follow the page up to a healthy cluster."""
    [settings] = DEPLOY.blocks("Settings")
    [secret] = DEPLOY.blocks("Secret")
    each, once = DEPLOY.blocks("Start")
    for number, machine in enumerate(machines, start=1):
        own = DEPLOY.replaced(settings, {"N=1\n": f"N={number}\n"} | ({} if has_zookeeper else {ZOOKEEPER: REGISTRY}))
        machine.run(own)
        with machine.path("/etc/tandemq/broker.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{key}={value}\n" for key, value in SMALL.items())
    if not has_zookeeper:
        each = DEPLOY.replaced(each, {" zookeeper": ""})
        with machines[0].path("/etc/tandemq/namesrv.conf").open("a", encoding="utf-8") as conf:
            conf.write(machines[0].local("registryEnable=true\nhaSecretFile=/etc/tandemq/replication.secret\n"))
    machines[0].run(secret)
    made = machines[0].path("/etc/tandemq/replication.secret")
    for machine in machines[1:]:
        copy = machine.path("/etc/tandemq/replication.secret")
        copy.write_bytes(made.read_bytes())
        copy.chmod(0o600)
    for machine in machines:
        machine.run(each)
    assert "HEALTHY: 1 group, 3 brokers" in machines[0].run(once)
