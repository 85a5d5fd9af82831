"""Answers that were prepared when a message was taken, changed because of what became of it."""

from tandemq.codec.frame import FrameDecoder, decode_command, encode_command
from tandemq.model.codes import ResponseCode


def doubtful(answers: bytes, error: Exception) -> bytes:
    """Answers to messages of which nobody knows whether they are stored: the sender is to try elsewhere."""
    remark = f"whether the message is stored is unknown: {error}"
    return recode(answers, ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark)


def recode(answers: bytes, code: ResponseCode, remark: str | None = None) -> bytes:
    """Prepared answers, one or several in a row, with another code."""
    recoded: list[bytes] = []
    for frame in FrameDecoder().feed(answers):
        command = decode_command(frame)
        command.code = code
        command.remark = remark
        recoded.append(encode_command(command))
    return b"".join(recoded)
