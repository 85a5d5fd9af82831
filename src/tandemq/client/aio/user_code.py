"""Calls of functions that the user supplies: refused where they cannot work, and kept from ending the client.

An exception of such a function, or a cancellation that it did not get from its caller, is the failure of one call.
SystemExit and KeyboardInterrupt pass, as asyncio lets them. What each failure means: docs/guides/python.md, "how
functions of yours may end".
"""

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from tandemq.client.core.calls import Ticket
from tandemq.client.producer.publish_info import Select
from tandemq.errors import ConfigError, LocalError
from tandemq.model.message import MessageQueue

log = logging.getLogger(__name__)
A = TypeVar("A")
R = TypeVar("R")


def check_async(function: object, name: str) -> None:
    """Refuse a function whose result cannot be awaited, as far as that shows before it is called.

    Args:
        function: an `async def` function, another object that is called like one, or a lambda.
        name: for the error.

    Raises:
        ConfigError: it is a plain function, or cannot be called.
    """
    if not callable(function):
        raise ConfigError(f"{name} is {function!r}, not a function", hint="give an `async def` function")
    target: Any = function
    while isinstance(target, partial):
        target = target.func
    # An asynchronous decorator may wrap a plain function.
    target = inspect.unwrap(getattr(target, "__func__", target), stop=inspect.iscoroutinefunction)
    is_generator = inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target)
    if is_generator or (inspect.isfunction(target) and not inspect.iscoroutinefunction(target) and _is_plain(target)):
        raise not_awaitable(name, function)


def _is_plain(function: Any) -> bool:
    """Return whether a function that is not async returns nothing to await, for all that is declared."""
    try:
        returned = function.__annotations__.get("return")
    except NameError:  # an annotation names what is imported for type checkers only
        return False
    return function.__name__ != "<lambda>" and returned in (None, "None")


def not_awaitable(name: str, function: object) -> ConfigError:
    """Return the error for a function whose result cannot be awaited."""
    return ConfigError(f"{name} {_name_of(function)} is not asynchronous", hint="define it with `async def`")


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))


def in_threads(
    function: Callable[[A], R], name: str, threads: Executor | None = None
) -> Callable[[A], Coroutine[Any, Any, R]]:
    """Return an asynchronous function that calls a plain one in threads, by default those of the event loop. Whatever
    it raises becomes a LocalError: a loop would end by SystemExit, and passes no StopIteration.

    Raises:
        ConfigError: the function is asynchronous, or cannot be called.
    """
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise ConfigError(f"{name} is {function!r}, not a plain function", hint="the asyncio client takes `async def`")

    def call(argument: A) -> R:
        try:
            return function(argument)
        except BaseException as error:
            raise LocalError(f"{name} {_name_of(function)} failed: {error!r}") from error

    async def call_in_thread(argument: A) -> R:
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(threads, run, call, argument)

    return call_in_thread


def guarded_selector(select: Select) -> Select:
    """Return a function that chooses a queue by the user's; what that raises becomes a LocalError of the send."""

    def choose(queues: list[MessageQueue]) -> MessageQueue:
        try:
            queue = select(queues)
        except (Exception, asyncio.CancelledError) as error:
            raise LocalError(f"the function that chooses the queue failed, nothing was sent: {error!r}") from error
        if not isinstance(queue, MessageQueue):
            raise LocalError(f"the function that chooses the queue returned {queue!r}, nothing was sent")
        if queues and queue.topic != queues[0].topic:
            raise LocalError(f"{queue} is no queue of the message's topic {queues[0].topic}, nothing was sent")
        return queue

    return choose


def guarded_callback(action: Callable[[Ticket[Any]], None]) -> Callable[[Ticket[Any]], None]:
    """Return a callback that logs what the user's raises."""

    def call(ticket: Ticket[Any]) -> None:
        try:
            action(ticket)
        except (Exception, asyncio.CancelledError):
            log.exception("callback of a ticket failed: %s", _name_of(action))

    return call
