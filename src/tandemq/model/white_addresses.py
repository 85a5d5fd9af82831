"""White addresses of ACL 1.0: addresses of clients from which requests need no signature.

    10.0.0.7                     one address, IPv4 or IPv6
    10.0.0.7,10.0.0.8            each of a list
    10.0.0.{7,8}                 the same
    10.0.0.*, 10.0.3-9.*         any number, or those of a range; not for the first one
    *                            every address, as do *.*.*.* and *:*:*:*:*:*:*:*

Java looks only at the first `*` or range, and so matches more than is written: 10.0.*.7 matches 10.0.1.8 there.

Source: docs/reference/access.md; RocketMQ RemoteAddressStrategyFactory.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from tandemq.errors import ConfigError

ADDRESSES_MAX = 10_000
"""Maximum number of addresses of one account, and of one list for all."""
ANY = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_HINT = "10.0.0.7, a list 10.0.0.{7,8} or a range 10.0.3-9.* is expected"
_Range = tuple[int, int]


class _Family(NamedTuple):
    """How addresses are written."""

    separator: str
    parts: int
    number: re.Pattern[str]
    base: int
    highest: int


_IPV4 = _Family(".", 4, re.compile(r"[0-9]{1,3}"), 10, 255)
_IPV6 = _Family(":", 8, re.compile(r"[0-9A-Fa-f]{1,4}"), 16, 0xFFFF)


class WhiteAddresses:
    """Addresses of clients that need no signature."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Read them; a blank text stands for none.

        Raises:
            ConfigError: one of them is malformed.
        """
        self.is_any = False
        """Whether each address is one."""
        self._patterns: list[tuple[_Range, ...]] = []
        for text in (text.strip() for text in texts):
            if text in ANY:
                self.is_any = True
            elif text:
                self._patterns += (_pattern(one) for one in _listed(text))
        if len(self._patterns) > ADDRESSES_MAX:
            raise ConfigError(f"there are {len(self._patterns)} white addresses, the maximum is {ADDRESSES_MAX}")
        self._decide = lru_cache(maxsize=4_096)(self._decided)

    def have(self, address: str) -> bool:
        """Whether an IP address is one of them."""
        return self.is_any or (bool(self._patterns) and self._decide(address))

    def _decided(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        own = _numbers((mapped or found).exploded)
        return any(
            len(own) == len(pattern)
            and all(low <= number <= high for number, (low, high) in zip(own, pattern, strict=True))
            for pattern in self._patterns
        )


def _numbers(exploded: str) -> list[int]:
    return [int(part, 16) for part in exploded.split(":")] if ":" in exploded else [int(n) for n in exploded.split(".")]


def _listed(text: str) -> list[str]:
    """Return the members of a list of addresses."""
    if not text.endswith("}"):
        return [part.strip() for part in text.split(",")]
    before, brace, members = text[:-1].partition("{")
    if not brace or not before.endswith((".", ":")):
        raise _malformed(text)
    return [before + member.strip() for member in members.split(",")]


def _pattern(text: str) -> tuple[_Range, ...]:
    """Return the range of each part of an address."""
    family = _IPV6 if ":" in text else _IPV4
    parts = _expanded(text) if family is _IPV6 else text.split(".")
    if len(parts) != family.parts:
        raise _malformed(text)
    first, *others = parts
    return (_range(first, family, text, may_vary=False), *(_range(part, family, text) for part in others))


def _expanded(text: str) -> list[str]:
    """Return the parts of an IPv6 address, with the zeros that `::` stands for."""
    before, double, after = text.partition("::")
    if not double:
        return text.split(":")
    left, right = (side.split(":") if side else [] for side in (before, after))
    return [*left, *["0"] * (_IPV6.parts - len(left) - len(right)), *right]


def _range(part: str, family: _Family, text: str, *, may_vary: bool = True) -> _Range:
    if part == "*" and may_vary:
        return 0, family.highest
    low, minus, high = part.partition("-")
    ends = (low, high if minus else low)
    if (minus and not may_vary) or not all(family.number.fullmatch(end) for end in ends):
        raise _malformed(text)
    first, last = (int(end, family.base) for end in ends)
    if not first <= last <= family.highest:
        raise _malformed(text)
    return first, last


def _malformed(text: str) -> ConfigError:
    return ConfigError(f"the white address {text[:64]!r} is malformed", hint=_HINT)


@lru_cache(maxsize=1_024)
def white_addresses(texts: tuple[str, ...]) -> WhiteAddresses:
    """Return addresses, prepared once. Raises ConfigError."""
    return WhiteAddresses(texts)
