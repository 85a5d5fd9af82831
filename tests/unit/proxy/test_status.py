"""Codes and texts of outcomes."""

from tandemq.errors import (
    InvalidMessage,
    NoRoute,
    NotConnected,
    OutcomeUnknown,
    ProtocolError,
    RemoteError,
    TandemError,
)
from tandemq.model.codes import ResponseCode
from tandemq.proxy.protocol import messaging_pb2 as pb
from tandemq.proxy.status import OK, TEXT_CHARACTERS_MAX, CallRefused, code_of, common_status, make_status, status_of


def test_errors_have_the_codes_that_tell_clients_what_to_do() -> None:
    cases: dict[str, list[TandemError]] = {
        "TOO_MANY_REQUESTS": [remote(ResponseCode.SYSTEM_BUSY), remote(ResponseCode.POLLING_FULL)],
        "TOPIC_NOT_FOUND": [remote(ResponseCode.TOPIC_NOT_EXIST)],
        "CONSUMER_GROUP_NOT_FOUND": [remote(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)],
        "FORBIDDEN": [remote(ResponseCode.NO_PERMISSION)],
        "NOT_IMPLEMENTED": [remote(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)],
        "ILLEGAL_FILTER_EXPRESSION": [remote(ResponseCode.SUBSCRIPTION_PARSE_FAILED)],
        "INTERNAL_SERVER_ERROR": [remote(ResponseCode.SYSTEM_ERROR), remote(99_999)],
        "PROXY_TIMEOUT": [OutcomeUnknown("x"), NotConnected("x"), NoRoute("x")],
        "MESSAGE_CORRUPTED": [InvalidMessage("x")],
        "BAD_REQUEST": [ProtocolError("x"), CallRefused(pb.Code.BAD_REQUEST, "x")],
    }
    for expected, errors in cases.items():
        for error in errors:
            assert pb.Code.Name(code_of(error)) == expected, repr(error)


def remote(code: int) -> RemoteError:
    return RemoteError("x", code=code)


def test_any_text_of_a_broker_fits_into_a_status() -> None:
    status = status_of(RemoteError("\ud800" + "x" * 2_000, code=1))
    assert len(status.message) == TEXT_CHARACTERS_MAX and status.message.startswith("?x")
    assert pb.Status.FromString(status.SerializeToString()) == status


def test_entries_with_one_code_have_it_in_common() -> None:
    refused = make_status(pb.Code.BAD_REQUEST, "x")
    assert common_status([OK, OK]) == OK and common_status([refused]) == refused
    assert common_status([OK, refused]).code == pb.Code.MULTIPLE_RESULTS
