"""The identity file of a store: which broker owns it."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.samples import tiny
from tandemq.errors import ConfigError
from tandemq.real.disk import RealDisk
from tandemq.run.store_identity import FILE, claim


def test_store_without_identity_is_assigned_to_the_broker(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    claim(disk, tiny())
    claim(disk, tiny())
    assert "broker-a" in (tmp_path / FILE).read_text()


@pytest.mark.parametrize(
    "other",
    [{"broker_name": "broker-b"}, {"cluster": "Other"}, {"broker_id": 1, "role": "SLAVE"}],
    ids=["name", "cluster", "id"],
)
def test_store_of_another_broker_is_refused_with_a_hint(tmp_path: Path, other: dict[str, object]) -> None:
    disk = RealDisk(tmp_path)
    claim(disk, tiny())
    with pytest.raises(ConfigError, match=r"is the store of DefaultCluster/broker-a/0.*delete tandemq\.identity"):
        claim(disk, replace(tiny(), **other))  # type: ignore[arg-type]


def test_malformed_identity_is_refused(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    (tmp_path / FILE).write_bytes(b"[rubbish")
    with pytest.raises(ConfigError, match="owner of this store is unknown"):
        claim(disk, tiny())


def test_settings_other_than_the_name_may_change(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    claim(disk, tiny())
    claim(disk, tiny(listen_port=12345, role="SYNC_MASTER"))
