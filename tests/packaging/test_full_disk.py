"""docs/guides/faults.md, "A full disk": what the page shows and says, on a small file system that root mounts."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.blackbox.deployed import deploy
from tests.blackbox.machines import Machine, healthy, machines
from tests.blackbox.programs import wait_until
from tests.pages import Page

pytestmark = pytest.mark.timeout(900)
FAULTS = Page("docs/guides/faults.md")
DISK_MIB, USED = 64, 0.965
"""Size of the disk, and how full it gets."""
RATIOS = "diskMaxUsedSpaceRatio|diskSpaceCleanForciblyRatio|diskSpaceWarningLevelRatio"
"""Settings that tests of small stores change; here they have their defaults."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[Machine]]:
    """The cluster of deploy.md; the store of the first machine, the master, is on a small disk."""
    with machines(tmp_path) as found:
        disk = found[0].path("/var/lib/tandemq/broker")
        disk.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(disk)], check=True)
        try:
            deploy(found, has_zookeeper=False)
            found[0].run(f"sed -i -E '/^({RATIOS})=/d' /etc/tandemq/broker.conf; systemctl restart tandemq@broker")
            healthy(found[0])
            found[0].run("tandemq ha switch --broker broker-a --to 0")
            healthy(found[0])
            yield found
        finally:
            for machine in found:
                machine.run("systemctl stop tandemq@broker")
            subprocess.run(["umount", str(disk)], check=True)


def fill(machine: Machine) -> Path:
    """Fill the disk of a machine as far as the page shows it; return the file."""
    store = machine.path("/var/lib/tandemq/broker")
    usage = shutil.disk_usage(store)
    file = store / "filler"
    with file.open("wb") as filler:
        filler.write(bytes(int(usage.total * USED) - usage.used))
    return file


def wait_full(machine: Machine) -> None:
    """Wait until the cluster is reported as unhealthy because of a full disk."""
    wait_until(lambda: "the disk is" in machine.run("tandemq ha check --broker broker-a || true"), "the disk is full")


def test_full_disk_of_a_master_is_shown_and_passes_without_a_restart_or_by_a_move(cluster: list[Machine]) -> None:
    [sample] = FAULTS.blocks("A full disk", "")
    [move] = FAULTS.blocks("A full disk")
    expected = re.escape(sample.strip()).replace("96%", r"9[5-7]%")
    master = cluster[0]
    send = "tandemq message send Orders '42 paid' --json"
    assert "SEND_OK" in master.run(send)

    filler = fill(master)
    wait_full(master)
    shown = master.run("tandemq ha check --broker broker-a", code=3).strip()
    assert re.fullmatch(expected, shown), shown
    assert "SERVICE_NOT_AVAILABLE" in master.run(f"! {send} 2>&1")
    read = "tandemq message tail Orders --from earliest --count 1 --json"
    assert "42 paid" in master.run(read), "reads go on"

    filler.unlink()
    healthy(master)
    assert "SEND_OK" in master.run(send), "no restart is needed"

    fill(master)
    wait_full(master)
    master.run("rm /var/lib/tandemq/broker/filler")
    master.run(move)
    assert master.path("/var/lib/tandemq/larger-disk/commitlog").is_dir()
    healthy(master)
    assert "SEND_OK" in master.run(send)
