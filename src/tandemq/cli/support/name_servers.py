"""The name servers a command was given, asked without a client: what brokers they know, or why they do not tell."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tandemq.errors import NetworkError, NotConnected, RemoteError
from tandemq.model.codes import RequestCode, ResponseCode

WHERE = "--namesrv, or TANDEMQ_NAMESRV, says where one runs, usually at port 9876"


def registered_brokers(name_servers: str) -> dict[str, Any]:
    """Broker groups by name, as the first name server tells that answers: `brokerAddrTable` of GET_BROKER_CLUSTER_INFO.

    Raises:
        NotConnected: none answers.
        RemoteError: whoever answers is no name server, or refuses.
    """
    from tandemq.codec.remoting.fastjson import loads  # noqa: PLC0415  # not for --help
    from tandemq.model.command import Command  # noqa: PLC0415
    from tandemq.run.request import line  # noqa: PLC0415

    silent: list[str] = []
    for address in filter(None, map(str.strip, name_servers.split(";"))):
        try:
            with line(address) as opened:
                answer = opened.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        except NetworkError as error:
            silent.append(str(error.args[0]))
            continue
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RemoteError(f"{address} is no name server; is it a broker?", hint=WHERE, code=answer.code)
        if answer.code != ResponseCode.SUCCESS:
            raise RemoteError(f"name server {address}: {answer.remark or f'refused with code {answer.code}'}")
        table: dict[str, Any] = loads(answer.body, is_trusted=True).get("brokerAddrTable") or {}
        return table
    raise NotConnected(f"no name server: {'; '.join(silent) or 'none is given'}", hint=WHERE)


@contextmanager
def explained(name_servers: str) -> Iterator[None]:
    """If something was not answered because no name server answers, say that instead.

    Raises:
        NotConnected, RemoteError: as `registered_brokers`.
    """
    try:
        yield
    except (NetworkError, RemoteError):
        registered_brokers(name_servers)
        raise
