"""The blocking client takes its arguments and its documentation from the asyncio client."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from tandemq import PopConsumer, PoppedMessage, Producer, PushConsumer, ReceivedMessage, Transaction
from tandemq.client.blocking import (
    BlockingConsumer,
    BlockingMessage,
    BlockingPopConsumer,
    BlockingPoppedMessage,
    BlockingProducer,
    BlockingTransaction,
)


@pytest.mark.parametrize(
    ("blocking", "wrapped"),
    [
        (BlockingProducer.send, Producer.send),
        (BlockingProducer.request, Producer.request),
        (BlockingTransaction.commit, Transaction.commit),
        (BlockingConsumer.subscribe, PushConsumer.subscribe),
        (BlockingMessage.retry, ReceivedMessage.retry),
        (BlockingPopConsumer.subscribe, PopConsumer.subscribe),
        (BlockingPoppedMessage.change_invisible, PoppedMessage.change_invisible),
    ],
)
def test_method_has_signature_and_documentation_of_the_asynchronous_one_and_is_none(
    blocking: Callable[..., Any], wrapped: Callable[..., Any]
) -> None:
    assert inspect.signature(blocking) == inspect.signature(wrapped)
    assert inspect.getdoc(blocking) == inspect.getdoc(wrapped)
    assert not inspect.iscoroutinefunction(blocking)


@pytest.mark.parametrize(
    ("blocking", "wrapped"),
    [(BlockingProducer, Producer), (BlockingConsumer, PushConsumer), (BlockingPopConsumer, PopConsumer)],
)
def test_constructor_documents_the_arguments_that_it_takes(blocking: type, wrapped: type) -> None:
    assert inspect.signature(blocking).parameters == inspect.signature(wrapped).parameters
    documentation = inspect.getdoc(blocking.__init__) or ""  # type: ignore[misc]  # of the class itself
    assert "start" in documentation.partition("\n")[0]
    for name in inspect.signature(wrapped).parameters:
        assert f"{name}: " in documentation
    with pytest.raises(TypeError, match="group"):
        blocking("127.0.0.1:1")
