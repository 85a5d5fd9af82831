"""A client that sends as many small requests as it can, at an elected master and at its name server.

How long the requests of others take beside it is measured by `python -m bench.flood`.
"""

from pathlib import Path

import pytest

from bench.flood import NAME_SERVER_CODES, Flooder, epoch_of, master_address, measure
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.run.children import ChildCluster
from tests.blackbox.programs import Caller, wait_until

pytestmark = pytest.mark.timeout(600)
TOPIC = "Flooded"
ENDING = {RequestCode.TANDEM_SWITCH, RequestCode.TANDEM_FORCE_MASTER, *NAME_SERVER_CODES}
"""Those that are meant to change the epoch, and those of name servers."""


def test_flood_of_any_request_costs_no_lease_and_no_request_of_another_client(tmp_path: Path) -> None:
    with ChildCluster(tmp_path, groups=1, slaves=1, mode=Mode.ELECT) as cluster, Flooder() as flooder:
        address = master_address(cluster)
        epoch = epoch_of(cluster)
        with Caller(int(address.rpartition(":")[2])) as caller:
            assert caller.send(b"first", TOPIC) == ResponseCode.SUCCESS
            for code in sorted(set(RequestCode) - ENDING):
                with flooder.flood(address, code):
                    measure(lambda: _sent(caller), flooder, 0.1)
                assert epoch_of(cluster) == epoch, f"the epoch changed beside a flood of {code!r}"
        with Caller(int(cluster.name_servers.rpartition(":")[2])) as caller:
            for code in NAME_SERVER_CODES:
                answered = flooder.answered
                with flooder.flood(cluster.name_servers, code):
                    measure(lambda: _found(caller), flooder, 0.1)
                    wait_until(lambda: flooder.answered > answered, "the flood is served too")  # noqa: B023
        assert epoch_of(cluster) == epoch


def _sent(caller: Caller) -> None:
    assert caller.send(b"beside", TOPIC) == ResponseCode.SUCCESS


def _found(caller: Caller) -> None:
    answer = caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
    assert answer.code == ResponseCode.SUCCESS
