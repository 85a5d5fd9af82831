"""A web service that takes orders and bills them: an ASGI application, as of Starlette or FastAPI.

    python examples/web.py [NAME_SERVER] [PORT]          default: 127.0.0.1:9876 8000
    curl -X POST http://127.0.0.1:8000/orders -d '42 paid'

The server of the application handles signals. At its shutdown the application ends requests first, then the consumer
waits for its running handlers, and the producer for the responses of brokers.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage


async def bill(message: ReceivedMessage) -> None:
    """Handle one order."""
    print(f"billed: {message.body.decode()}", flush=True)


async def take_order(request: Request) -> JSONResponse:
    """Store an order."""
    result = await request.app.state.producer.send(Message("Orders", await request.body() or b"-"))
    return JSONResponse({"status": result.status.value, "key": result.unique_key})


def application(name_servers: str) -> Starlette:
    """Return the application."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with (
            Producer(name_servers, group="shop") as app.state.producer,
            PushConsumer(
                name_servers, group="billing", topics={"Orders": "*"}, consume_from=ConsumeFrom.FIRST
            ) as consumer,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(consumer.run(bill, concurrency=8, handle_signals=False))
            yield
            consumer.stop()  # `run` returns when its handlers have
        print("closed", flush=True)

    return Starlette(routes=[Route("/orders", take_order, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9876"),
        port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000,
    )
