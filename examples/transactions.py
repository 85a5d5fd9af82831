"""Send orders that consumers get if, and only if, the payment is in the program's own database.

    python examples/transactions.py [NAME_SERVER]          default: 127.0.0.1:9876

The third payment fails, so its order is dropped. Kill the program (`kill -9`) while it pays, and start it again: half a
minute later the broker asks the new process for the outcome of the open order, and it looks into the database.
"""

import asyncio
import sqlite3
import sys
from contextlib import closing

from tandemq import Message, StoredMessage, TransactionProducer, TransactionState

PAYING_S = 2.0


class Payments:
    """The program's own database."""

    def __init__(self, path: str) -> None:
        """Open the file, created if it does not exist."""
        self._path = path
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS payments (number TEXT PRIMARY KEY)")

    async def pay(self, number: str) -> None:
        """Record a payment; the third one fails."""
        await asyncio.sleep(PAYING_S)
        if number == "3":
            raise ValueError("the card was refused")
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("INSERT OR IGNORE INTO payments VALUES (?)", (number,))

    async def outcome(self, message: StoredMessage) -> TransactionState:
        """Return the outcome of an order whose transaction is open at a broker."""
        with closing(sqlite3.connect(self._path)) as database:
            found = database.execute("SELECT 1 FROM payments WHERE number = ?", (message.keys[0],)).fetchone()
        state = TransactionState.COMMIT if found else TransactionState.ROLLBACK
        print(f"the broker asks for order {message.keys[0]}: {state.name}")
        return state


async def main(name_servers: str) -> None:
    """Pay five orders."""
    payments = Payments("payments.sqlite")
    async with TransactionProducer(name_servers, group="shop", check=payments.outcome, topics=["Orders"]) as producer:
        for number in ("1", "2", "3", "4", "5"):
            order = Message("Orders", f"order {number}".encode(), tags="paid", keys=[number])
            transaction = producer.transaction(order)
            try:
                async with transaction:
                    await payments.pay(number)
            except ValueError as error:
                print(f"order {number}: {transaction.state.name}, {error}")
            else:
                print(f"order {number}: {transaction.state.name}, confirmed: {transaction.is_confirmed}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"))
