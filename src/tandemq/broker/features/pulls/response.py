"""Heads of responses to pulls: the frame up to the messages."""

from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.kernel.pulls import PullAnswer
from tandemq.codec.remoting.header import encode_header
from tandemq.model.command import FLAG_RESPONSE, VERSION_SPOKEN, Command

_HEADER = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}'
    b',"flag":1,"language":"PYTHON","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
)


def response_head(pull: PullRequest, answer: PullAnswer, suggested: int, status: str, size: int) -> bytes:
    """Return the bytes of a response before its messages.

    Args:
        pull: the request.
        answer: code and offsets.
        suggested: id of the member that the client should read from.
        status: the remark.
        size: bytes of the messages.
    """
    if pull.view is not None:
        answer, suggested = pull.view.shown(answer, pull.queue.max_offset), 0
    if pull.view is not None or pull.binary:
        fields = answer.fields(suggested)
        header = encode_header(Command(answer.code, pull.opaque, FLAG_RESPONSE, status, fields, binary=pull.binary))
        form = 1 << 24 if pull.binary else 0
    else:
        code, next_offset, min_offset, end, _ = answer
        header = _HEADER % (code, suggested, next_offset, min_offset, end, pull.opaque, status.encode(), VERSION_SPOKEN)
        form = 0
    return (4 + len(header) + size).to_bytes(4) + (form | len(header)).to_bytes(4) + header
