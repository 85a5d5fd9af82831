"""Answers that were prepared when a message was taken, changed because of what became of it."""

from collections.abc import Iterable

from tandemq.boundary import Turn
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.model.codes import ResponseCode


def doubtful(answers: bytes, error: Exception) -> bytes:
    """Answers to messages of which nobody knows whether they are stored: the sender is to try elsewhere."""
    remark = f"whether the message is stored is unknown: {error}"
    return recode(answers, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)


def doubt_acks(acks: Iterable[tuple[int, bytes | None, int, bool, int]], error: Exception, turn: Turn) -> None:
    """Send answers of a turn (link, answers, log offset they need or 0, …) as `doubtful` where they are of messages."""
    for link, answers, end, _, _ in acks:
        if answers:
            turn.send(link, doubtful(answers, error) if end else answers)


def recode(answers: bytes, code: ResponseCode, remark: str | None = None) -> bytes:
    """Prepared answers, one or several in a row, with another code."""
    recoded: list[bytes] = []
    for frame in FrameDecoder().feed(answers):
        command = decode_command(frame)
        command.code = code
        command.remark = remark
        recoded.append(encode_command(command))
    return b"".join(recoded)
