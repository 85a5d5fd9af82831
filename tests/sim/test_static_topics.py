"""Seeds with a static topic move its queues, and use every request that is about logical queues."""

import json
from typing import Any

import pytest

from lab.sim.group_simulation import GroupSimulation
from lab.sim.runner import run_one
from lab.sim.simulation import Simulation, quiet
from lab.sim.workload.raw_client import Then
from lab.sim.world.groups import mode_of
from lab.sim.world.plan import GROUP_SEEDS, has_static_topic
from tandemq.boundary import Now
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.spec import spec

SEED = 37
OF_STATIC_GROUPS = GROUP_SEEDS + 93


@spec("L02", "L04")
def test_seed_with_a_static_topic_moves_queues_and_violates_nothing() -> None:
    assert has_static_topic(SEED)
    with quiet():
        result = run_one(SEED)
    assert not result.rule, result.text
    for code in (Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.GET_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO):
        assert result.requests[code] >= 3, code


def test_seed_without_a_static_topic_has_no_clients_of_one() -> None:
    assert not has_static_topic(1)
    simulation = Simulation(1)
    assert simulation.moving is None
    assert simulation.checks.logical is None


@spec("L02", "L04")
def test_seed_of_a_group_with_a_registry_and_fixed_roles_moves_queues_and_violates_nothing() -> None:
    simulation = GroupSimulation(OF_STATIC_GROUPS)
    assert {mode_of(group) for group in simulation.plan.groups} == {Mode.STATIC}
    assert simulation.moving is not None
    with quiet():
        result = run_one(OF_STATIC_GROUPS)
    assert not result.rule, result.text
    assert result.requests[Code.UPDATE_AND_CREATE_STATIC_TOPIC] >= 3


class ForgetfulMasters:
    """Masters by address; each has a mapping in memory at once, and confirms it when it is sent a second time."""

    def __init__(self) -> None:
        """No static topic."""
        self.mappings: dict[str, dict[str, Any]] = {}
        self.confirmed: dict[str, int] = {}
        """Broker to the epoch that it confirmed last."""

    def ask(self, address: str, command: Command, _timeout_ms: int, then: Then) -> None:
        """Answer a request of the administrator."""
        mapping = self.mappings.get(address, {"epoch": 0})
        code, body = ResponseCode.SUCCESS, {"writeQueueNums": 3, "mappingDetail": mapping, "offsetTable": {}}
        if command.code == Code.GET_TOPIC_STATS_INFO:
            keys = [json.dumps({"queueId": number}) for number in range(3)]
            body = {"offsetTable": {key: {"maxOffset": 0} for key in keys}}
        elif command.code == Code.UPDATE_AND_CREATE_STATIC_TOPIC:
            wanted = json.loads(command.body)
            if wanted["epoch"] == mapping["epoch"]:
                self.confirmed[wanted["bname"]] = wanted["epoch"]
            else:
                code = ResponseCode.SYSTEM_ERROR
            if wanted["epoch"] >= mapping["epoch"]:
                self.mappings[address] = wanted
        then(command.answer(code, body=json.dumps(body).encode()))


@spec("L04")
def test_mapping_that_a_broker_has_in_memory_is_not_taken_for_a_confirmed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, masters = Simulation(SEED), ForgetfulMasters()
    moving, queues = simulation.moving, simulation.checks.logical
    assert moving is not None
    assert queues is not None
    monkeypatch.setattr(moving, "ask", masters.ask)
    monkeypatch.setattr(moving.random, "random", lambda: 0.5)  # each attempt looks first what is done
    now_ms = 0
    while not moving.done:
        now_ms += 100
        moving.turn([], [], Now(now_ms, now_ms))
        for group in simulation.plan.groups:
            assert queues.epoch_of(group.name) == masters.confirmed.get(group.name, 0)
    assert masters.confirmed.keys() == {group.name for group in simulation.plan.groups}
