"""pytest fixtures: a broker, a pair, a cluster for your own tests, in this process, up in well under a second.

    def test_order_is_stored(tandemq_broker):
        with BlockingProducer(tandemq_broker.name_servers, group="orders") as producer: …

Each test gets its own, with stores under its `tmp_path` and free ports. Brokers' settings, under RocketMQ's names:

    @pytest.mark.tandemq(messageDelayLevel="1s 1s 1s", autoCreateTopicEnable=False)

and what happens when a master dies, "static" if nothing is said: @pytest.mark.tandemq(mode="elect").

Nothing of TandemQ is imported before a fixture is asked for. Source: docs/guides/testing.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandemq.run.local import LocalCluster


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "tandemq(mode, **settings): failover mode, and broker settings under RocketMQ's names, for a test's fixtures",
    )


@pytest.fixture
def tandemq_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server and one master: `.name_servers`, `.address`, `.broker()`."""
    with _cluster(request, tmp_path, groups=1, slaves=0) as cluster:
        yield cluster


@pytest.fixture
def tandemq_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server, a SYNC_MASTER and its slave, in sync: `.broker(broker_id=1)` is the slave."""
    with _cluster(request, tmp_path, groups=1, slaves=1) as cluster:
        yield cluster


@pytest.fixture
def tandemq_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server and two such pairs: `.broker("broker-b")` is the second master."""
    with _cluster(request, tmp_path, groups=2, slaves=1) as cluster:
        yield cluster


def _cluster(request: pytest.FixtureRequest, directory: Path, *, groups: int, slaves: int) -> LocalCluster:
    from tandemq.run.local import LocalCluster  # noqa: PLC0415  # most test runs need no broker

    settings: dict[str, str | int | float | bool] = {}
    for marker in request.node.iter_markers("tandemq"):
        settings = {**marker.kwargs, **settings}
    mode = str(settings.pop("mode", "static"))
    return LocalCluster(directory / "tandemq", groups=groups, slaves=slaves, mode=mode, settings=settings)
