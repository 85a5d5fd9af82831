"""`tandemq health`: whether processes serve, by their ports for metrics; for health checks of containers."""

import json
import ssl
import urllib.error
import urllib.request
from typing import NamedTuple
from urllib.parse import urlsplit

import click

from tandemq.cli.support.output import json_option, plain, show_rows
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, LocalError

USUAL = tuple(f"http://127.0.0.1:{port}" for port in (5557, 5558, 5559, 5560, 8377))
"""Where the configuration files of the packages have brokers, name servers, proxies, servers of Kafka consumers and
the console."""
ANSWER_BYTES_MAX = 64 * 1024
REASONS_CHARACTERS_MAX = 400


class ProcessHealth(NamedTuple):
    """What one process said of itself."""

    url: str
    healthy: bool | None
    """None: nothing listens there."""
    reason: str


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A console without /readyz redirects to its login page."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect."""


@click.command()
@click.argument("urls", metavar="[URL]...", nargs=-1)
@click.option(
    "--live", is_flag=True, help="Ask whether the event loop turns (/healthz) instead of readiness (/readyz)."
)
@click.option(
    "--timeout", "timeout_s", default=5.0, show_default=True, type=click.FloatRange(0.1, 60), help="Seconds to wait."
)
@json_option
def health(urls: tuple[str, ...], live: bool, timeout_s: float, as_json: bool) -> None:
    """Check that processes serve, by their ports for metrics.

    Without URL it asks what listens on this machine at the ports of the packages' configuration files: brokers (5557),
    name servers (5558), proxies (5559), servers of Kafka consumers (5560), the console (8377). Exit code 1 if a process
    is not ready, a named one does not answer, or there is none. The certificate of an https:// URL is verified with
    `tandemq --tls-ca`.
    """
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"{url}: a URL with http:// or https:// is expected", hint=f"for instance {USUAL[0]}")
    asked = [ask(url.rstrip("/"), is_live=live, timeout_s=timeout_s) for url in urls or USUAL]
    found = [health for health in asked if urls or health.healthy is not None]
    rows = [{"url": each.url, "healthy": bool(each.healthy), "reason": each.reason} for each in found]
    show_rows(rows, as_json=as_json, empty=f"nothing listens at {', '.join(USUAL)}")
    if not found or not all(each.healthy for each in found):
        raise LocalError("not healthy" if found else "no process was found", hint="set metricsPort, or name a URL")


def ask(url: str, *, is_live: bool, timeout_s: float) -> ProcessHealth:
    """Ask one process; a console, which has no /readyz, whether it lives."""
    tls = client_tls()
    context = ssl.create_default_context(cafile=tls.ca_file or None) if tls is not None else None
    opener = urllib.request.build_opener(
        _NoRedirects, urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    for path in ("/healthz",) if is_live else ("/readyz", "/healthz"):
        try:
            with opener.open(url + path, timeout=timeout_s) as response:
                response.read(ANSWER_BYTES_MAX)
                return ProcessHealth(url, True, "")
        except urllib.error.HTTPError as error:
            with error:
                answer = error.read(ANSWER_BYTES_MAX)
            if error.code != 503 and path == "/readyz":
                continue
            return ProcessHealth(url, False, _reason(error.code, answer))
        except urllib.error.URLError as error:
            is_absent = isinstance(error.reason, ConnectionRefusedError)
            return ProcessHealth(url, None if is_absent else False, str(error.reason))
        except (OSError, ValueError) as error:
            return ProcessHealth(url, False, str(error) or type(error).__name__)
    raise AssertionError("unreachable")


def _reason(code: int, answer: bytes) -> str:
    try:
        reasons = json.loads(answer)["reasons"]
        text = "; ".join(map(str, reasons))
    except (ValueError, TypeError, KeyError):
        text = ""
    return plain(f"HTTP status {code}" + (f": {text}" if text else ""), REASONS_CHARACTERS_MAX)
