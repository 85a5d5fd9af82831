"""Validity of a certificate, read from its file.

    PEM ─► DER ─► Certificate ─► tbsCertificate ─► validity ─► notBefore, notAfter

The standard library verifies certificates of peers, and does not say when one's own expires. Only the path to the two
times is parsed.

Source: RFC 5280, 4.1.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tandemq.errors import ConfigError

SEQUENCE, UTC_TIME, GENERALIZED_TIME, VERSION = 0x30, 0x17, 0x18, 0xA0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class Validity:
    """Time from which and until which a certificate is valid, seconds since 1970."""

    begin_s: float
    end_s: float

    def problem(self, now_s: float) -> str:
        """Return why the certificate is not valid now, "" if it is."""
        if now_s > self.end_s:
            return f"the certificate has expired on {_date(self.end_s)}"
        if now_s < self.begin_s:
            return f"the certificate is not valid before {_date(self.begin_s)}"
        return ""

    def warning(self, now_s: float, days: int) -> str:
        """Return a warning if the certificate is not valid or will expire within some days, else ""."""
        if self.begin_s <= now_s <= self.end_s < now_s + days * 86_400:
            return f"the certificate expires on {_date(self.end_s)}"
        return self.problem(now_s)


def read_validity(path: str) -> Validity:
    """Read the validity of the first certificate of a PEM file.

    Raises:
        ConfigError: there is none, or it is malformed.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="latin-1")
        begin = text.index(_BEGIN)
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
        return _validity(der)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: it has no certificate in PEM form") from error


def _validity(der: bytes) -> Validity:
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == VERSION:
        at = end
    for _ in range(3):  # serial number, signature algorithm, issuer
        _, _, at = _element(der, at)
    tag, at, _ = _element(der, at)
    if tag != SEQUENCE:
        raise ValueError("no validity")
    first_tag, begin, at = _element(der, at)
    second_tag, second, end = _element(der, at)
    return Validity(_time(first_tag, der[begin:at]), _time(second_tag, der[second:end]))


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return tag, begin and end of the content of the element at a position."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[begin : begin + size])
        begin += size
    if begin + length > len(der):
        raise ValueError("truncated")
    return der[at], begin, begin + length


def _time(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != GENERALIZED_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _date(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
