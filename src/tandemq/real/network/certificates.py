"""Names and validity of a certificate, read from its file or from a handshake.

    PEM ─► DER ─► Certificate ─► tbsCertificate ─► issuer, validity, subject, subjectAltName

The standard library verifies certificates of peers, and says neither when one's own expires nor which one was refused.
Only the path to these fields is parsed. The bytes of a refused certificate come from an unauthenticated peer: nothing
of them is trusted, and texts are bounded and printable.

Source: RFC 5280, 4.1 and 4.2.1.6.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from itertools import islice
from pathlib import Path

from tandemq.errors import ConfigError

SEQUENCE, UTC_TIME, GENERALIZED_TIME, VERSION, EXTENSIONS = 0x30, 0x17, 0x18, 0xA0, 0xA3
DNS_NAME, IP_ADDRESS = 0x82, 0x87
_ALTERNATIVE_NAMES = bytes((0x55, 29, 17))
_ATTRIBUTES = {3: "CN", 6: "C", 7: "L", 8: "ST", 10: "O", 11: "OU"}
"""Last part of the object identifiers 2.5.4.n."""
TEXT_MAX, NAMES_MAX = 100, 4
"""Maximum length of a name in a text, and number of alternative names in it."""
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


@dataclass(frozen=True, slots=True)
class Certificate:
    """The fields of a certificate that log lines show."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    """Host names and addresses that it is for, at most `NAMES_MAX`."""
    validity: Validity

    def __str__(self) -> str:
        """Return for example "CN=server for 10.0.0.1, issued by CN=queues, valid from … to …"."""
        names = f" for {', '.join(self.names)}" if self.names else ""
        begin, end = _date(self.validity.begin_s), _date(self.validity.end_s)
        return f"{self.subject or 'without a subject'}{names}, issued by {self.issuer}, valid from {begin} to {end}"


def describe(der: bytes) -> str:
    """Return a text of a certificate that a peer has presented; of a malformed one it says only that."""
    try:
        return str(_certificate(der))
    except (ValueError, IndexError, OverflowError):
        return "a certificate that cannot be read"


def read_certificate(path: str) -> Certificate:
    """Read the first certificate of a PEM file.

    Raises:
        ConfigError: there is none, or it is malformed.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="latin-1")
        begin = text.index(_BEGIN)
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index(_END, begin) + len(_END)])
        return _certificate(der)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, IndexError) as error:
        raise ConfigError(f"{path}: it has no certificate in PEM form") from error


def _certificate(der: bytes) -> Certificate:
    _, at, _ = _element(der, 0)
    _, at, end_of_fields = _element(der, at)
    tag, _, end = _element(der, at)
    if tag == VERSION:
        at = end
    for _ in range(2):  # serial number, signature algorithm
        _, _, at = _element(der, at)
    _, issuer, end = _element(der, at)
    issuer_text = _name(der, issuer, end)
    tag, at, validity_end = _element(der, end)
    if tag != SEQUENCE:
        raise ValueError("no validity")
    first_tag, begin, at = _element(der, at)
    second_tag, second, end = _element(der, at)
    validity = Validity(_time(first_tag, der[begin:at]), _time(second_tag, der[second:end]))
    _, subject, end = _element(der, validity_end)
    names = tuple(islice(_alternative_names(der, end, end_of_fields), NAMES_MAX))
    return Certificate(_name(der, subject, end), issuer_text, names, validity)


def _elements(der: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the elements between two positions."""
    while at < end:
        found = _element(der, at)
        yield found
        at = found[2]


def _name(der: bytes, at: int, end: int) -> str:
    """Return a distinguished name, as "CN=server,O=queues"."""
    parts = []
    for _, relative, relative_end in _elements(der, at, end):
        for _, attribute, attribute_end in _elements(der, relative, relative_end):
            (_, begin, kind_end), (_, value, value_end) = islice(_elements(der, attribute, attribute_end), 2)
            kind = der[begin:kind_end]
            if len(kind) == 3 and kind[:2] == b"\x55\x04" and kind[2] in _ATTRIBUTES:  # 2.5.4.n
                parts.append(f"{_ATTRIBUTES[kind[2]]}={der[value:value_end].decode('utf-8', 'replace')}")
    return _printable(",".join(reversed(parts)))


def _alternative_names(der: bytes, at: int, end: int) -> Iterator[str]:
    """Yield the host names and addresses of a certificate; `at`: the end of its subject."""
    extensions = (found for found in _elements(der, at, end) if found[0] == EXTENSIONS)
    for _, begin, _ in extensions:
        _, at, end = _element(der, begin)
        for _, extension, extension_end in _elements(der, at, end):
            fields = list(_elements(der, extension, extension_end))
            if der[fields[0][1] : fields[0][2]] != _ALTERNATIVE_NAMES:
                continue
            _, names, names_end = _element(der, fields[-1][1])
            for tag, name, name_end in _elements(der, names, names_end):
                if tag == DNS_NAME:
                    yield _printable(der[name:name_end].decode("ascii", "replace"))
                elif tag == IP_ADDRESS:
                    yield str(ip_address(der[name:name_end]))


def _printable(text: str) -> str:
    safe = "".join(character if character.isprintable() else "?" for character in text[:TEXT_MAX])
    return safe + "…" if len(text) > TEXT_MAX else safe


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
