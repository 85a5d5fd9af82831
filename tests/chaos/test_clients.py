"""The end of each client's thread in `make chaos` is a violation, unless it ended as it should."""

import threading

import pytest

from chaos.clients import ClientThread
from tandemq.errors import LocalError


def test_end_of_a_thread_says_what_is_wrong() -> None:
    def give_up() -> None:
        raise LocalError("no broker answers")

    def die() -> None:
        raise KeyError("queue")

    good, hopeless, broken = (ClientThread("consumer", work) for work in (lambda: None, give_up, die))
    good.run()
    hopeless.run()
    with pytest.raises(KeyError):
        broken.run()
    assert good.violation() == ""
    assert hopeless.violation() == "I14: consumer gave up: no broker answers"
    assert broken.violation() == "I14: consumer died, its traceback is in the output"


def test_thread_that_does_not_end_is_a_violation() -> None:
    release = threading.Event()

    def wait() -> None:
        release.wait()

    thread = ClientThread("consumer", wait)
    thread.start()
    assert thread.violation() == "I14: consumer does not end"
    release.set()
    thread.join()
    assert thread.violation() == ""
