"""The recall of a timed message: a request to the master of the broker group that stored it.

Repeating it changes nothing, so it is repeated after an unknown outcome, and while no broker accepts it.

Source: docs/reference/timers.md; RocketMQ MQClientAPIImpl.recallMessage.
"""

from collections.abc import Callable

from tandemq.client.core.operations import Steps, ask_any_code, current_time, pause, refusal, request, wait
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.client.core.settings import ProducerOptions
from tandemq.codec.remoting.recall_handle import decode_handle
from tandemq.errors import LocalError, NetworkError, NoRoute, OutcomeUnknown, ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode

PAUSE_MS = 200
"""Pause before a recall is repeated."""
_AGAIN = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE})
"""Responses of a broker that recalls no messages now, after which the same or the next master may."""


def recall(text: str, options: ProducerOptions, routes: Routes, is_closed: Callable[[], bool]) -> Steps[str]:
    """Recall a message by its handle; return its unique key.

    Raises:
        LocalError: the handle is malformed.
        OutcomeUnknown: no response came; the message may be recalled.
        NotConnected, NoRoute, RemoteError: it is not recalled, for instance because its time has come.
    """
    try:
        handle = decode_handle(text)
    except ProtocolError as malformed:
        raise LocalError(
            f"this is no recall handle: {malformed.__cause__}", hint="give what the send of a timed message returned"
        ) from malformed
    now = yield from current_time()
    until_ms = now.mono_ms + options.retry_ms
    if not routes.members(handle.broker_name):
        yield from wait(routes.fetch(handle.topic, now))
    unknown: OutcomeUnknown | None = None
    while True:
        error: TandemError = NoRoute(f"no master of the broker group {handle.broker_name} is known")
        address = routes.members(handle.broker_name).get(MASTER_ID)
        if address is not None:
            command = request(
                RequestCode.RECALL_MESSAGE,
                producerGroup=options.group,
                topic=handle.topic,
                recallHandle=text,
                bname=handle.broker_name,
            )
            try:
                answer = yield from ask_any_code(address, command, options.timeout_ms)
            except NetworkError as failure:
                error = failure
                unknown = failure if isinstance(failure, OutcomeUnknown) else unknown
            else:
                if answer.code == ResponseCode.SUCCESS:
                    return answer.fields.get("msgId", handle.unique_key)
                error = refusal(answer)
                if answer.code not in _AGAIN:
                    raise unknown or error
        now = yield from current_time()
        if is_closed() or now.mono_ms >= until_ms:
            raise unknown or error
        routes.refresh(handle.topic, now)
        yield from pause(PAUSE_MS)
