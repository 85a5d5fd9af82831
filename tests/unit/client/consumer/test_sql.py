"""Subscriptions by SQL92 expressions, without sockets."""

import pytest

from tandemq.client.consumer.subscription import check_expression_at_broker, make_subscription
from tandemq.client.core.settings import ConsumeFrom, ConsumerOptions
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.group import SQL_CHARACTERS_MAX, Sql
from tandemq.model.message import MessageQueue
from tests.unit.client.world import Broker, Health, World

EXPRESSION = "amount > 100"


def one_broker() -> tuple[World, Broker]:
    world = World()
    broker = world.broker("a")
    world.topic("T", 1)
    return world, broker


def heartbeat_of(broker: Broker) -> dict[str, object]:
    [consumer] = loads(broker.of(RequestCode.HEART_BEAT)[-1].body)["consumerDataSet"]
    [found] = [item for item in consumer["subscriptionDataSet"] if item["topic"] == "T"]
    return dict(found)


def assert_pulled_by_expression(broker: Broker) -> None:
    data = heartbeat_of(broker)
    assert (data["expressionType"], data["subString"], data["tagsSet"], data["codeSet"]) == (
        "SQL92",
        EXPRESSION,
        [],
        [],
    )
    [pull] = [command for command in broker.of(RequestCode.PULL_MESSAGE) if command.fields["topic"] == "T"]
    assert (pull.fields["sysFlag"], pull.fields["expressionType"]) == ("2", "SQL92")
    assert pull.fields["subVersion"] == str(data["subVersion"])
    assert "subscription" not in pull.fields


def test_push_consumer_subscribes_by_heartbeat_and_pulls_without_the_expression() -> None:
    world, broker = one_broker()
    consumer = world.node.push_consumer(ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST), world.now)
    consumer.subscribe("T", Sql(EXPRESSION), world.now)
    world.until(lambda: len(broker.held) == 2)
    assert_pulled_by_expression(broker)
    [retries] = [c for c in broker.of(RequestCode.PULL_MESSAGE) if c.fields["topic"] == "%RETRY%g"]
    assert (retries.fields["expressionType"], retries.fields["sysFlag"]) == ("TAG", "6")


def test_pull_consumer_sends_a_heartbeat_when_it_subscribes() -> None:
    world, broker = one_broker()
    consumer = world.node.pull_consumer(ConsumerOptions(group="g", consume_from=ConsumeFrom.FIRST))
    world.node.introduce(["T"], world.now)
    world.run(100)
    before = len(broker.of(RequestCode.HEART_BEAT))
    consumer.subscribe("T", Sql(EXPRESSION), world.now)
    consumer.assign([MessageQueue("T", "a", 0)], world.now)
    world.until(lambda: broker.held)
    assert len(broker.of(RequestCode.HEART_BEAT)) > before
    assert_pulled_by_expression(broker)


def checked(world: World) -> str:
    """Return the error of a check of an expression, "" if there is none."""
    steps = check_expression_at_broker(world.node.routes, "client-1", "g", "T", Sql(EXPRESSION))
    ticket = world.node.runner.start(steps, world.now)
    world.until(lambda: ticket.done)
    assert ticket.error is None or isinstance(ticket.error, ConfigError)
    return str(ticket.error or "")


def test_broker_checks_an_expression_before_the_consumer_begins() -> None:
    world, broker = one_broker()
    answers = [(0, None), (23, "it does not compile"), (1, "The broker does not support SQL92")]

    def check(command: Command) -> Command:
        body = loads(command.body)
        assert (body["clientId"], body["group"], body["namespace"]) == ("client-1", "g", "")
        assert body["subscriptionData"]["subString"] == EXPRESSION
        code, remark = answers[0]
        return command.answer(code, remark=remark)

    broker.handlers[RequestCode.CHECK_CLIENT_CONFIG] = check
    while answers:
        error = checked(world)
        assert (answers[0][1] or "") in error
        assert bool(error) == bool(answers.pop(0)[0])


def test_expression_is_not_checked_while_no_broker_answers() -> None:
    world, broker = one_broker()
    broker.health = Health.REFUSING
    assert checked(world) == ""
    del world.topics["T"]
    assert checked(world) == ""


@pytest.mark.parametrize("text", ["", "  ", "x" * (SQL_CHARACTERS_MAX + 1)])
def test_expression_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expression"):
        Sql(text)


def test_subscription_must_be_a_text_or_an_expression() -> None:
    with pytest.raises(ConfigError, match="must be str"):
        make_subscription("T", 3, 0)  # type: ignore[arg-type]
