"""Outcomes of calls: codes of the gRPC protocol, and those that errors of brokers become.

Source: docs/reference/grpc.md; RocketMQ ResponseBuilder, GrpcProxyException.
"""

from tandemq.errors import (
    InvalidMessage,
    LocalError,
    NetworkError,
    NoRoute,
    ProtocolError,
    RecordTooLarge,
    TandemError,
)
from tandemq.model.codes import ResponseCode
from tandemq.model.message import SendStatus
from tandemq.proxy.protocol.messaging_pb2 import Code, Status

TEXT_CHARACTERS_MAX = 1_000
OK = Status(code=Code.OK, message="OK")
_OF_BROKERS = {
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
OF_SENDS = {
    SendStatus.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    SendStatus.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    SendStatus.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
"""Codes of messages that are stored less safely than the broker is configured to."""


class CallRefused(TandemError):
    """The proxy refuses a call, or an entry of it."""

    def __init__(self, grpc_code: Code, message: str) -> None:
        """`grpc_code`: of the response."""
        super().__init__(message)
        self.grpc_code = grpc_code


def make_status(code: Code, text: str) -> Status:
    """Return a status with a text of bounded length; JSON of brokers may have characters that cannot be encoded."""
    return Status(code=code, message=text[:TEXT_CHARACTERS_MAX].encode(errors="replace").decode())


def code_of(error: TandemError) -> Code:
    """Return the code that tells a client of an error."""
    if isinstance(error, CallRefused):
        return error.grpc_code
    if error.code is not None and error.code in _OF_BROKERS:
        return _OF_BROKERS[ResponseCode(error.code)]
    if isinstance(error, NetworkError):
        return Code.PROXY_TIMEOUT
    if isinstance(error, NoRoute):
        # A topic that no name server knows has a code; else no broker of it can be asked now.
        return Code.PROXY_TIMEOUT
    if isinstance(error, RecordTooLarge):
        return Code.MESSAGE_BODY_TOO_LARGE
    if isinstance(error, InvalidMessage):
        return Code.MESSAGE_CORRUPTED
    if isinstance(error, LocalError | ProtocolError):
        return Code.BAD_REQUEST
    return Code.INTERNAL_SERVER_ERROR


def status_of(error: TandemError) -> Status:
    """Return the status that tells a client of an error."""
    return make_status(code_of(error), str(error))


def common_status(statuses: list[Status]) -> Status:
    """Return the status of a response whose entries have statuses of their own."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return make_status(Code.MULTIPLE_RESULTS, "the entries have different outcomes")
