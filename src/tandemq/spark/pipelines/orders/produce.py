"""Send a data set of orders and payments, which is the same at each run.

    python produce.py --namesrv 127.0.0.1:9876 --hour 0
    python produce.py --namesrv 127.0.0.1:9876 --hour 1

It has what real topics have: events out of order, messages sent twice by a retry, messages sent again an hour later,
bodies that cannot be read, events of a phone that was offline for hours, orders never paid, and orders paid too late.

    topic Orders      {"order": "o-0-0017", "customer": "c-03", "cents": 1250, "at": "2026-01-05T10:00:03.000Z"}
    topic Payments    {"payment": "p-0-0017", "order": "o-0-0017", "cents": 1250, "at": "2026-01-05T10:04:20.500Z"}
"""

import argparse
import asyncio
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tandemq.client.aio.producer import Producer
from tandemq.model.message import Message

START = datetime(2026, 1, 5, 10, tzinfo=UTC)
ORDERS = 120
"""Orders of an hour by default."""
OFFLINE = timedelta(hours=5)
"""Delay of the events of a phone that was offline."""


@dataclass(frozen=True)
class Event:
    """A message, and its unique key. A message that is sent again has the same one."""

    topic: str
    body: bytes
    key: str
    unique_key: str


def make_hour(hour: int, orders: int = ORDERS) -> list[Event]:
    """Return the messages of one hour, in the order in which they are sent."""
    dice = random.Random(hour)
    events = [timed for number in range(orders) for timed in _order(hour, number, orders, dice)]
    events.sort(key=lambda timed: timed[0])
    sent = []
    for _, event in events:
        sent.append(event)
        if dice.random() < 0.1:  # a retry, although the first attempt had succeeded
            sent.append(event)
    if hour:  # a part of the last hour is sent again
        sent += [event for event in make_hour(hour - 1, orders) if event.key.endswith("7")]
    return sent


def _order(hour: int, number: int, orders: int, dice: random.Random) -> Iterator[tuple[datetime, Event]]:
    """Yield the messages of an order, each with the time when it is sent."""
    name, customer, cents = f"{hour}-{number:04}", f"c-{dice.randrange(20):02}", 100 + 10 * dice.randrange(200)
    placed = START + timedelta(hours=hour, seconds=number * 3600 // orders, milliseconds=number % 500)
    # A few minutes on the way: events overtake each other.
    sent = placed + timedelta(seconds=dice.randrange(240))
    if hour and number % 40 == 5:
        placed -= OFFLINE
    body = {"order": f"o-{name}", "customer": customer, "cents": cents, "at": _text(placed)}
    if number % 30 == 11:
        body["cents"] = -cents
    yield sent, _event("Orders", name, b"\xff{" if number % 30 == 21 else json.dumps(body).encode())
    if number % 9 == 4:
        return  # never paid
    minutes = dice.uniform(16, 25) if number % 9 == 8 else dice.uniform(1, 14)
    paid = placed + timedelta(seconds=int(60 * minutes), milliseconds=500)
    payment = {"payment": f"p-{name}", "order": f"o-{name}", "cents": cents, "at": _text(paid)}
    yield sent + (paid - placed), _event("Payments", name, json.dumps(payment).encode())


def _event(topic: str, name: str, body: bytes) -> Event:
    return Event(topic, body, name, f"{topic}-{name}".upper())


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def send(name_servers: str, events: list[Event]) -> None:
    """Send messages; those of one order keep their order, in one queue. Raises TandemError if one is not stored."""
    async with Producer(name_servers, group="shop") as producer:
        tickets = [
            producer.begin(
                Message(event.topic, event.body, keys=[event.key]), unique_key=event.unique_key, by_key=event.key
            )
            for event in events
        ]
    for ticket in tickets:
        ticket.result()


def main() -> None:
    """Send one hour."""
    parser = argparse.ArgumentParser(description="Send orders and payments of one hour.")
    parser.add_argument("--namesrv", default=os.environ.get("TANDEMQ_NAMESRV", "127.0.0.1:9876"))
    parser.add_argument("--hour", type=int, default=0, help="the first one is 0")
    parser.add_argument("--orders", type=int, default=ORDERS, help="orders of an hour")
    given = parser.parse_args()
    events = make_hour(given.hour, given.orders)
    asyncio.run(send(given.namesrv, events))
    print(f"sent {len(events)} messages of hour {given.hour}")


if __name__ == "__main__":
    main()
