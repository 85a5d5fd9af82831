"""pytest fixtures that start a broker, a master with its slave, or a cluster in the test process within a second.

    def test_order_is_stored(tandemq_broker):
        with BlockingProducer(tandemq_broker.name_servers, group="orders") as producer: …

Each test gets its own cluster on free ports, with its stores below `tmp_path`. A marker sets broker settings by
their RocketMQ names, the failover mode, which is "static" by default, and TLS:

    @pytest.mark.tandemq(messageDelayLevel="1s 1s 1s", autoCreateTopicEnable=False)
    @pytest.mark.tandemq(mode="elect")
    @pytest.mark.tandemq(tls=True)      # clients need tls=tandemq_broker.tls

TandemQ is imported only when a test uses a fixture. Source: docs/guides/testing.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandemq.run.local import LocalCluster


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "tandemq(mode, tls, **settings): failover mode, TLS, broker settings by RocketMQ name, of a test's cluster",
    )


@pytest.fixture
def tandemq_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server and one master: `.name_servers` for clients, `.broker()` for the master."""
    with _cluster(request, tmp_path, groups=1, slaves=0) as cluster:
        yield cluster


@pytest.fixture
def tandemq_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server, a SYNC_MASTER and its slave, in sync; `.broker(broker_id=1)` is the slave."""
    with _cluster(request, tmp_path, groups=1, slaves=1) as cluster:
        yield cluster


@pytest.fixture
def tandemq_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """A name server and two broker groups of a master and a slave; `.broker("broker-b")` is the second master."""
    with _cluster(request, tmp_path, groups=2, slaves=1) as cluster:
        yield cluster


def _cluster(request: pytest.FixtureRequest, directory: Path, *, groups: int, slaves: int) -> LocalCluster:
    from tandemq.run.local import LocalCluster  # noqa: PLC0415  # most test runs need no broker

    settings: dict[str, str | int | float | bool] = {}
    for marker in request.node.iter_markers("tandemq"):
        settings = {**marker.kwargs, **settings}
    mode, tls = str(settings.pop("mode", "static")), bool(settings.pop("tls", False))
    return LocalCluster(directory / "tandemq", groups=groups, slaves=slaves, mode=mode, settings=settings, tls=tls)
