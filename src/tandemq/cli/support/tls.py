"""TLS of a command's connections to brokers and name servers: options of the root command, or the environment.

tandemq --tls-ca ca.pem topic list        TANDEMQ_TLS_CA=ca.pem tandemq topic list
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tandemq.errors import ConfigError

if TYPE_CHECKING:
    from tandemq.config.tls import ClientTls

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "tandemq.tls"


def _file_option(name: str, text: str) -> Callable[[_F], _F]:
    variable = f"TANDEMQ_{name.removeprefix('--').replace('-', '_').upper()}"
    return click.option(
        name, envvar=variable, metavar="FILE", show_envvar=True, expose_value=False, callback=_remember, help=text
    )


def tls_options(command: _F) -> _F:
    """Add the options of TLS, which `client_tls` reads."""
    for option in (
        _file_option("--tls-config", "Use TLS as this file says, with RocketMQ's tls.client.* settings."),
        _file_option("--tls-key", "Private key of --tls-cert, PEM."),
        _file_option("--tls-cert", "Use TLS, and present this certificate, PEM."),
        _file_option("--tls-ca", "Use TLS, and trust these authorities, PEM, instead of the system's."),
        click.option(
            "--tls",
            is_flag=True,
            envvar="TANDEMQ_TLS",
            show_envvar=True,
            expose_value=False,
            callback=_remember,
            help="Use TLS on connections to brokers and name servers.",
        ),
    ):
        command = option(command)
    return command


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> None:
    context.meta.setdefault(_META, {})[parameter.name] = value


def client_tls() -> "ClientTls | None":
    """Return the TLS of the running command's connections; None: without.

    Raises:
        ConfigError: the options contradict each other, or the file of --tls-config cannot be read.
    """
    context = click.get_current_context(silent=True)
    given = {} if context is None else {name: value for name, value in context.meta.get(_META, {}).items() if value}
    if not given:
        return None
    from tandemq.config.tls import ClientTls, read_client_tls  # noqa: PLC0415  # not for --help

    path = given.pop("tls_config", None)
    if path is not None:
        if given.keys() - {"tls"}:
            raise ConfigError("--tls-config and --tls-ca, --tls-cert, --tls-key exclude each other")
        return read_client_tls(_read(str(path)))
    values = {name: str(given.get(option, "")) for option, name in _FIELDS.items()}
    if bool(values["cert_file"]) != bool(values["key_file"]):
        raise ConfigError("--tls-cert and --tls-key need each other")
    return ClientTls(**values)  # type: ignore[arg-type]


def spark_tls() -> dict[str, str]:
    """Return the TLS of the running command as options of the Spark sources.

    Raises:
        ConfigError: as `client_tls`, or the sources have no option for a setting of --tls-config.
    """
    tls = client_tls()
    if tls is None:
        return {}
    if not tls.verify or tls.key_password:
        raise ConfigError("Spark sources verify servers, and read keys without a password only")
    paths = {"tlsCaFile": tls.ca_file, "tlsCertFile": tls.cert_file, "tlsKeyFile": tls.key_file}
    found = {name: str(Path(path).expanduser().absolute()) for name, path in paths.items() if path}
    return {"tls": "true", "tlsCheckHost": str(tls.check_host).lower(), **found}


_FIELDS = {"tls_ca": "ca_file", "tls_cert": "cert_file", "tls_key": "key_file"}


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--tls-config {path}: {reason}") from error
