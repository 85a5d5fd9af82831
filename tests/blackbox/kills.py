"""A slave killed again and again while its master is sent messages."""

import random
import threading
from collections.abc import Callable
from typing import Self

from tests.blackbox.pair import Start, assert_same_log, start_slave, wait_for_copy
from tests.blackbox.programs import Caller, Program, wait_until

MESSAGES_PER_KILL = 300
"""About 3 MB. The load is bounded by the kills, or the slave would be gigabytes behind in the end."""
WAIT_S = 120.0
Tell = Callable[[str], None]
"""The fixture `tell`: says a line on the terminal."""


class Load:
    """Messages of many sizes, as many as it was asked for, one after the other."""

    def __init__(self, port: int) -> None:
        self._wanted = threading.Semaphore(0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, args=(port,))

    def _send(self, port: int) -> None:
        number = 0
        with Caller(port) as caller:
            while not self._over.is_set():
                if self._wanted.acquire(timeout=0.1):
                    number += 1
                    caller.send(bytes([number % 256]) * (number * 131 % 20_000))

    def want(self, messages: int) -> None:
        """So many more."""
        self._wanted.release(messages)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def kill_again_and_again(start: Start, kills: int, tell: Tell = lambda _: None) -> None:
    """Each time somewhere within what the slave has to copy; in the end it holds the same bytes as its master."""
    dice = random.Random(kills)
    master = start("master")
    slave = start_slave(start, master.ha_port)
    with Load(master.port) as load:
        for number in range(1, kills + 1):
            before = slave.log_end()
            load.want(MESSAGES_PER_KILL)
            wait_for_growth(slave, before + dice.randrange(1, max(2, master.log_end() - before)))
            slave.kill()
            slave.start()
            if number % 10 == 0:
                tell(f"{number} of {kills} kills, the slave holds {slave.log_end() / 1e6:.0f} MB")
    wait_for_copy(master, slave, seconds=WAIT_S)
    assert_same_log(master, slave)


def wait_for_growth(slave: Program, least: int) -> None:
    wait_until(lambda: slave.log_end() >= least, f"the slave copies up to {least}", seconds=WAIT_S)
