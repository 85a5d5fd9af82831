"""Requests to the name servers that a command was given, without a client: registered brokers, or why none is known."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tandemq.cli.support.tls import client_tls
from tandemq.errors import NetworkError, NotConnected, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

WHERE = "give its address with --namesrv or TANDEMQ_NAMESRV, usually port 9876"


def registered_brokers(name_servers: str) -> dict[str, Any]:
    """Return the broker groups by name, from the first name server that answers.

    The value is `brokerAddrTable` of GET_BROKER_CLUSTER_INFO.

    Raises:
        NotConnected: no name server answers.
        RemoteError: the process at an address is not a name server, or it refuses the request.
    """
    from tandemq.client.connection import BlockingConnection  # noqa: PLC0415
    from tandemq.codec.remoting.fastjson import loads  # noqa: PLC0415  # not for --help
    from tandemq.model.command import Command  # noqa: PLC0415

    silent: list[str] = []
    for address in filter(None, map(str.strip, name_servers.split(";"))):
        try:
            with BlockingConnection(address, tls=client_tls()) as opened:
                answer = opened.request(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        except NetworkError as error:
            silent.append(str(error.args[0]))
            continue
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RemoteError(f"{address} is not a name server; is it a broker?", hint=WHERE, code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(f"name server {address}: {answer.remark or f'refused with code {answer.code}'}")
        table: dict[str, Any] = loads(answer.body, is_trusted=True).get("brokerAddrTable") or {}
        return table
    raise NotConnected(f"no name server answers: {'; '.join(silent) or 'no address is given'}", hint=WHERE)


@contextmanager
def explained(name_servers: str) -> Iterator[None]:
    """Replace a network error of the body by that of the name servers, if they are its cause.

    Raises:
        NotConnected, RemoteError: see `registered_brokers`.
    """
    try:
        yield
    except (NetworkError, RemoteError):
        registered_brokers(name_servers)
        raise
