"""Name servers of which some do not respond: each is asked, within the time of the call."""

import pytest

from tandemq.client.core.routes import TopicRoute
from tandemq.errors import NetworkError, NoRoute
from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.client.world import Health, World


def fetched(world: World, timeout_ms: int) -> tuple[int, TopicRoute]:
    """Return how long a fetch took, and its route."""
    ticket = world.node.runner.start(world.node.routes.fetch_within("T", timeout_ms), world.now)
    took_ms = world.until(lambda: ticket.done)
    return took_ms, ticket.result()


@pytest.mark.parametrize("health", [Health.SILENT, Health.REFUSING])
def test_time_is_shared_by_the_name_servers(health: Health) -> None:
    for count in (2, 3, 10):
        world = World(name_servers=count)
        world.broker("a")
        world.topic("T")
        for server in world.name_servers[:-1]:
            server.health = health
        took_ms, route = fetched(world, 1_000)
        assert list(route.brokers) == ["a"], count
        assert took_ms <= 1_000, count
        assert fetched(world, 1_000)[0] == 0, "the one that responded is asked first"


def test_all_silent_name_servers_fail_within_the_time() -> None:
    world = World(name_servers=3)
    for server in world.name_servers:
        server.health = Health.SILENT
    ticket = world.node.runner.start(world.node.routes.fetch_within("T", 600), world.now)
    assert world.until(lambda: ticket.done) <= 700
    with pytest.raises(NetworkError, match="no name server responds"):
        ticket.result()


def test_topic_that_a_name_server_lacks_is_asked_of_the_others() -> None:
    """One that has just started has no routes until the brokers register again."""
    world = World(name_servers=3)
    world.broker("a")
    world.topic("T")
    fresh = world.name_servers[0]
    fresh.handlers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command: command.answer(ResponseCode.TOPIC_NOT_EXIST)
    world.name_servers[1].health = Health.REFUSING
    assert list(fetched(world, 1_000)[1].brokers) == ["a"]
    asked = len(world.trace)
    fetched(world, 1_000)
    assert len(world.trace) == asked + 1, "the one that knows it is asked first"


def test_topic_that_no_name_server_knows_has_no_route() -> None:
    world = World(name_servers=3)
    world.name_servers[1].health = Health.REFUSING
    for _ in range(2):
        with pytest.raises(NoRoute, match="no name server knows the topic T"):
            fetched(world, 1_000)
