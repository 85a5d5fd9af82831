"""A queue of tasks, as Celery has it: functions that are called later, in the threads of a worker.

    python examples/worker.py [NAME_SERVER]                          a worker, until Ctrl-C or SIGTERM
    python examples/worker.py [NAME_SERVER] add 1 2                  send a task

A task that raises is tried again after 10 s, later after up to two hours, and is a dead letter after 16 attempts.
"""

import json
import sys
from collections.abc import Callable

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingMessage, BlockingProducer

TASKS: dict[str, Callable[..., object]] = {}


def task(function: Callable[..., object]) -> Callable[..., object]:
    """Let a function be called by workers."""
    TASKS[function.__name__] = function
    return function


@task
def add(one: str, other: str) -> None:
    """Add two numbers."""
    print(f"{one} + {other} = {int(one) + int(other)}", flush=True)


def send(name_servers: str, name: str, *arguments: str) -> None:
    """Have a worker call a task."""
    with BlockingProducer(name_servers, group="tasks") as producer:
        print(producer.send(Message("Tasks", json.dumps(arguments).encode(), tags=name)).unique_key)


def work(name_servers: str) -> None:
    """Call tasks, four at a time; at the end those that run are waited for."""

    def call(message: BlockingMessage) -> None:
        TASKS[message.tags](*json.loads(message.body))

    with BlockingConsumer(
        name_servers, group="workers", topics={"Tasks": " || ".join(TASKS)}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        consumer.run(call, concurrency=4)
    print("closed", flush=True)


if __name__ == "__main__":
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"
    if len(sys.argv) > 2:
        send(address, *sys.argv[2:])
    else:
        work(address)
