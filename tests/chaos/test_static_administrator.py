"""The administrator of the static topic in `make chaos` gives up brokers that do not return."""

import threading
from collections.abc import Mapping
from random import Random

import pytest

from chaos import static_administrator
from chaos.logical_history import LogicalHistory
from chaos.requests import QUEUES, Requests
from chaos.static_administrator import Administrator
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import LocalError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

GROUPS = ("a", "b")


class Masters(Requests):
    """Masters that carry out all requests, but for those of `silent` and `refusing` groups; addresses are names."""

    def __init__(self) -> None:
        super().__init__("no name server")
        self.silent: set[str] = set()
        self.refusing: set[str] = set()
        self.is_closed = False
        self._parts: dict[str, tuple[int, object]] = {}

    def masters(self) -> dict[str, str]:
        return {group: group for group in GROUPS}

    def ask(self, address: str, code: int, fields: Mapping[str, object], body: bytes = b"") -> Command | None:
        request = Command(code)
        if address in self.silent:
            return None
        if address in self.refusing:
            return request.answer(ResponseCode.SYSTEM_ERROR, remark="the disk is full")
        if code == RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC:
            self._parts[address] = (int(str(fields["writeQueueNums"])), loads(body))
            return request.answer(ResponseCode.SUCCESS)
        queues, mapping = self._parts[address]
        if code == RequestCode.GET_TOPIC_CONFIG:
            return request.answer(
                ResponseCode.SUCCESS, body=dumps({"writeQueueNums": queues, "mappingDetail": mapping})
            )
        ends = {f'{{"brokerName":"{address}","queueId":{number}}}': {"maxOffset": 0} for number in range(queues)}
        return request.answer(ResponseCode.SUCCESS, body=dumps({"offsetTable": ends}))

    def close(self) -> None:
        self.is_closed = True


class NoWait(threading.Event):
    """Is over after a number of waits, which take no time."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self._left -= 1
        return self._left < 0


def test_topic_is_not_created_on_a_group_without_a_master() -> None:
    history = LogicalHistory(may_go_back=False)
    administrator = Administrator(Requests("127.0.0.1:1"), GROUPS, history, Random(1), patience_s=0)
    with pytest.raises(LocalError, match=r"the master of a has not carried out request 513 .*: none"):
        administrator.create()


@pytest.mark.parametrize("what", ["silent", "refusing"])
def test_move_ends_if_a_broker_does_not_return(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_administrator, "_CONTRADICTIONS", 0)
    masters, history = Masters(), LogicalHistory(may_go_back=False)
    administrator = Administrator(masters, GROUPS, history, Random(1), patience_s=0)
    administrator.create()
    administrator.run(NoWait(3))
    assert (history.moves, len(history.segments), history.violations) == (3, QUEUES, [])

    last = "none" if what == "silent" else "code 1 the disk is full"
    getattr(masters, what).add("b")
    with pytest.raises(LocalError, match=f"the master of b has not carried out request 351 .*: {last}"):
        administrator.run(NoWait(3))
    assert masters.is_closed
    assert history.moves == 3
