"""Requests to the name servers that a command was given, without a client: registered brokers, or why none is known."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from typing import Any, NamedTuple

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
    for address in _addresses(name_servers):
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


class Openings(NamedTuple):
    """What clients of other machines may do at a name server without credentials."""

    is_open: bool
    """Register brokers, and all else."""
    has_open_metrics: bool


def openings(name_servers: str) -> dict[str, Openings]:
    """Return what is open at the name servers that answer with their settings, by address; Java's have no such ones."""
    from tandemq.client.connection import BlockingConnection  # noqa: PLC0415
    from tandemq.model.command import Command  # noqa: PLC0415  # not for --help

    found = {}
    for address in _addresses(name_servers):
        with suppress(NetworkError), BlockingConnection(address, tls=client_tls()) as opened:
            answer = opened.request(Command(RequestCode.GET_NAMESRV_CONFIG))
            lines = answer.body.decode("utf-8", "replace").splitlines() if answer.code == ResponseCode.SUCCESS else []
            settings = {key: value for key, _, value in (line.partition("=") for line in lines)}
            if "authenticationEnabled" in settings:
                found[address] = _openings(settings)
    return found


def _openings(settings: dict[str, str]) -> Openings:
    is_checked = settings["authenticationEnabled"] == "true"
    has_port = settings.get("metricsPort", "-1") != "-1" or settings.get("metricsExporterType") == "PROM"
    is_free = has_port and not settings.get("metricsCredentialsFile")
    return Openings(
        not is_checked and _is_reachable(settings.get("bindAddress", "")),
        is_free and _is_reachable(settings.get("metricsBindAddress", "")),
    )


def _is_reachable(address: str) -> bool:
    """Whether other machines reach what listens on an address."""
    try:
        return not ip_address(address).is_loopback
    except ValueError:
        return True


def _addresses(name_servers: str) -> list[str]:
    return [address.strip() for address in name_servers.split(";") if address.strip()]


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
