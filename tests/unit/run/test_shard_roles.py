"""Which roles of a machine's shards move to it after a failover, when, and how often."""

from typing import Any

from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.settings import BrokerConfig
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.run.shard_roles import TRIES_MAX, WAIT_S, WISH_MS, Move, RoleMover, RolesTogether, took_over

MEMBERS = [{"brokerId": number, "address": f"10.0.0.{number}:10911"} for number in range(3)]


def master(took_ms_ago: int | None = None, epoch: int = 7) -> dict[str, Any]:
    return {"mode": "elect", "isMaster": True, "stage": "serving", "epoch": epoch, "master": 1} | {
        "inSync": [0, 1],
        "members": MEMBERS,
        "tookMsAgo": took_ms_ago,
    }


def slave(of: int = 0, *in_sync: int, **more: Any) -> dict[str, Any]:
    found = {"mode": "elect", "isMaster": False, "stage": "slave", "epoch": 3, "master": of, "tookMsAgo": None}
    return found | {"inSync": list(in_sync or (0, 1)), "members": MEMBERS} | more


def roles() -> RolesTogether:
    return RolesTogether(1, ["a", "a-1", "a-2"])


def test_slaves_in_sync_follow_a_shard_that_took_over_and_nothing_follows_a_switch() -> None:
    assert roles().moves([master(), slave(), slave()], 0) == []
    moves = roles().moves([slave(), master(100), slave(2)], 0)
    assert moves == [Move(0, "10.0.0.0:10911", 1), Move(2, "10.0.0.2:10911", 1)]
    assert roles().moves([slave(), master(WISH_MS), slave()], 0) == []
    assert roles().moves([slave(), {}, slave()], 0) == []
    assert not took_over(master(100) | {"stage": "preparing"})


def test_shard_that_is_not_in_sync_has_no_live_master_or_another_mode_stays() -> None:
    for other in (slave(0, 0, 2), slave(9), slave(mode="slave-consume"), {}, slave(stage="claiming")):
        found = roles()
        assert found.moves([master(100), other], 0) == []
        assert found.moves([master(100), slave()], 1) == [Move(1, "10.0.0.0:10911", 0)], "it is asked when it can be"


def test_refused_switch_is_repeated_with_growing_waits_and_given_up() -> None:
    found, now_s = roles(), 100.0
    statuses = [master(100), slave()]
    for tries in range(TRIES_MAX):
        (move,) = found.moves(statuses, now_s)
        found.refused(move, "it is not connected", now_s)
        wait_s = WAIT_S * 2**tries
        assert found.moves(statuses, now_s + wait_s - 0.1) == []
        now_s += wait_s
    assert found.moves(statuses, now_s) == []
    move = Move(1, "10.0.0.0:10911", 0)
    assert found.moves([master(100, epoch=8), slave()], now_s) == [move], "the next failover counts anew"


def test_shard_that_has_followed_is_not_taken_back_from_an_operator() -> None:
    found = roles()
    (move,) = found.moves([master(100), slave()], 0)
    found.moved(move)
    assert found.moves([master(200), slave()], 60) == []
    found = roles()
    assert found.moves([master(100), master()], 0) == []
    assert found.moves([master(100), slave()], 60) == []


def test_role_that_another_machine_has_taken_over_is_looked_at_later() -> None:
    found = roles()
    (move,) = found.moves([slave(2), master(100)], 0)
    found.yields(move, 0)
    assert found.moves([slave(2), master(100)], WAIT_S - 0.1) == []
    assert found.moves([slave(2), master(100)], WAIT_S) == [move]


class Brokers(RoleMover):
    """Moves roles of three shards, and answers for the present masters, which have taken over lately."""

    def __init__(self, answer: Command | None) -> None:
        super().__init__(BrokerConfig(broker_id=1), ["a", "a-1", "a-2"], list)
        self.orders: list[str] = []
        self._answer = answer
        """To a switch; None: none comes."""

    def _ask(self, address: str, command: Command, seconds: float) -> Command:
        if command.code == RequestCode.TANDEM_FAILOVER_STATUS:
            return command.answer(ResponseCode.SUCCESS, body=dumps(master(100)))
        self.orders.append(f"{address} {command.fields['target']}")
        if self._answer is None:
            raise NotConnected("no process answers")
        return self._answer

    def run_once(self, *statuses: dict[str, Any], now_s: float) -> None:
        for move in self._roles.moves(statuses, now_s):
            self._move(move)


def test_machine_of_the_lowest_shard_that_was_taken_over_gets_all() -> None:
    brokers = Brokers(Command(0))
    brokers.run_once(slave(2), master(100), slave(2), now_s=0)
    assert brokers.orders == ["10.0.0.2:10911 1"], "shard 0 stays: its machine asks this one for shard 1"
    brokers.run_once(master(100), slave(2), slave(2), now_s=0)
    assert brokers.orders[1:] == ["10.0.0.2:10911 1"] * 2


def test_refusal_and_silence_are_tried_again_later() -> None:
    for answer in (None, Command(int(ResponseCode.SYSTEM_ERROR), remark="it is not in sync")):
        brokers = Brokers(answer)
        for _ in range(3):
            brokers.run_once(master(100), slave(2), {}, now_s=0)
        assert brokers.orders == ["10.0.0.2:10911 1"]
