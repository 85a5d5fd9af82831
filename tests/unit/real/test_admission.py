"""Connection limits: clients cannot use the connections reserved for replicas, members and the fast port."""

import pytest

from tandemq.boundary import LinkKind
from tandemq.real.network import admission
from tandemq.real.network.admission import RESERVED_LINKS, Admission

CLIENT, MEMBER = "10.0.0.1", "10.0.0.2"


def full(limit: int = 10) -> Admission:
    places = Admission(lambda: limit, lambda host: host == MEMBER)
    for _ in range(limit):
        assert places.refusal(LinkKind.REMOTING, CLIENT, 0) == ""
        places.opened(LinkKind.REMOTING)
    return places


def test_clients_are_limited_by_the_setting() -> None:
    places = full()
    assert places.refusal(LinkKind.REMOTING, CLIENT, 10) == "maxConnections=10 reached"
    places.closed(LinkKind.REMOTING)
    assert places.refusal(LinkKind.REMOTING, CLIENT, 9) == ""


def test_members_and_the_fast_port_have_reserved_connections() -> None:
    places = full()
    assert places.refusal(LinkKind.REMOTING, MEMBER, 10) == ""
    for _ in range(RESERVED_LINKS):
        assert places.refusal(LinkKind.FAST, CLIENT, 10) == ""
        places.opened(LinkKind.FAST)
    assert "maxConnections" in places.refusal(LinkKind.FAST, CLIENT, 10)
    assert "maxConnections" in places.refusal(LinkKind.REMOTING, MEMBER, 10)


def test_replicas_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "REPLICAS_MAX", 2)
    places = full()
    for _ in range(2):
        assert places.refusal(LinkKind.HA_MASTER, CLIENT, 10) == ""
        places.opened(LinkKind.HA_MASTER)
    assert "replication port" in places.refusal(LinkKind.HA_MASTER, CLIENT, 10)
    places.closed(LinkKind.HA_MASTER)
    assert places.refusal(LinkKind.HA_MASTER, CLIENT, 10) == ""


def test_clients_leave_descriptors_to_members_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "links_max", lambda: 200)
    places = full(200 - RESERVED_LINKS)
    places = Admission(lambda: 50_000, lambda host: host == MEMBER)
    for _ in range(200 - RESERVED_LINKS):
        places.opened(LinkKind.REMOTING)
    assert "136 clients are connected; files need" in places.refusal(LinkKind.REMOTING, CLIENT, 136)
    assert places.refusal(LinkKind.REMOTING, MEMBER, 136) == ""
    assert places.refusal(LinkKind.HA_MASTER, CLIENT, 199) == ""
    assert "files need the other descriptors" in places.refusal(LinkKind.HA_MASTER, CLIENT, 200)
