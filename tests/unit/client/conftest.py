"""Runs each test that is a coroutine twice, in debug mode: on a new event loop of asyncio, and on one of uvloop."""

import asyncio
import inspect

import pytest
import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("event_loop")
        metafunc.parametrize("event_loop", LOOPS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    with asyncio.Runner(debug=True, loop_factory=LOOPS[str(pyfuncitem.callspec.params["event_loop"])]) as runner:
        runner.run(pyfuncitem.obj(**arguments))
    return True
