"""Prepared responses to sends, changed by the outcome of the write or of the replication."""

from collections.abc import Iterable

from tandemq.boundary import Turn
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command, encode_frame
from tandemq.codec.remoting.header import with_code
from tandemq.engine import Ack
from tandemq.model.codes import ResponseCode


def unknown_outcome(answers: bytes, error: Exception) -> bytes:
    """Return responses to sends with an unknown outcome, on which the producer retries at another broker."""
    remark = f"whether the message is stored is unknown: {error}"
    return recode(answers, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)


def send_unknown_outcomes(acks: Iterable[Ack], error: Exception, turn: Turn) -> None:
    """Send the acks of a turn; those of stored messages (log offset not 0) with an unknown outcome."""
    for link, answers, end, _, _ in acks:
        if answers:
            turn.send(link, unknown_outcome(answers, error) if end else answers)


def recode(answers: bytes, code: ResponseCode, remark: str | None = None) -> bytes:
    """Return prepared responses, one or several frames, with another code."""
    recoded: list[bytes] = []
    for frame in FrameDecoder().feed(answers):
        command = decode_command(frame)
        command.code = code
        command.remark = remark
        recoded.append(encode_command(command))
    return b"".join(recoded)


def with_status(answers: bytes, code: ResponseCode) -> bytes:
    """Return prepared responses with the status of messages that are stored less safely than configured.

    A recall stays SUCCESS, as in RocketMQ: its clients take any other code for a failure.
    """
    recoded: list[bytes] = []
    for form, header, body in FrameDecoder().feed(answers):
        if b"msgId" not in header or b"queueId" in header:
            header = with_code(form, header, code)
        recoded.append(encode_frame((form, header, body)))
    return b"".join(recoded)
