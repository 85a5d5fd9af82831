"""White addresses of ACL 1.0 in all their forms."""

import pytest

from tandemq.errors import ConfigError
from tandemq.model.white_addresses import WhiteAddresses


@pytest.mark.parametrize(
    ("text", "has", "has_not"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("  ", [], ["127.0.0.1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["127.0.0.1", "::1"], []),
        ("*:*:*:*:*:*:*:*", ["127.0.0.1", "::1"], []),
        ("10.0.0.7", ["10.0.0.7", "::ffff:10.0.0.7"], ["10.0.0.70", "10.0.0.8", "::1"]),
        ("10.0.0.7, 10.0.0.8", ["10.0.0.7", "10.0.0.8"], ["10.0.0.9"]),
        ("10.0.0.{7,9}", ["10.0.0.7", "10.0.0.9"], ["10.0.0.8"]),
        ("10.0.1.*", ["10.0.1.0", "10.0.1.255"], ["10.0.2.1"]),
        ("10.0.0-9.*", ["10.0.0.1", "10.0.9.255"], ["10.0.10.1", "10.1.0.1"]),
        ("10.*.*.*", ["10.1.2.3"], ["11.1.2.3"]),
        ("10.0.0.5-6", ["10.0.0.5", "10.0.0.6"], ["10.0.0.4", "10.0.0.7"]),
        ("10.0.*.7", ["10.0.3.7"], ["10.0.3.8"]),
        ("1050:0:0:0:5:600:300c:1", ["1050::5:600:300C:1"], ["1050::5:600:300c:2", "10.5.0.0"]),
        ("fe80::1", ["fe80::1"], ["fe80::2"]),
        ("fe80::*", ["fe80::ffff"], ["fe80::1:1", "fe80:0:0:0:1::"]),
        ("1050::0005:0600:300c:1-20", ["1050::5:600:300c:20", "1050::5:600:300c:1"], ["1050::5:600:300c:21"]),
        ("1050::5:{1,b}", ["1050::5:b"], ["1050::5:2"]),
    ],
)
def test_each_form_has_its_addresses_only(text: str, has: list[str], has_not: list[str]) -> None:
    addresses = WhiteAddresses([text])
    assert [address for address in has if not addresses.have(address)] == []
    assert [address for address in has_not if addresses.have(address)] == []
    assert addresses.is_any or not (addresses.have("") or addresses.have("nonsense"))


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0",
        "10.0.0.0.1",
        "10.0.0.256",
        "10.0.0.x",
        "10.0.0.-5",
        "10.0.0.9-5",
        "*.0.0.1",
        "1-2.0.0.1",
        "10.0.0.{1,",
        "{10,11}.0.0.1",
        "10.0.0.1}",
        "10.0.0.7,",
        "10.0.0.0/8",
        "host",
        "1:2:3",
        "fe80::1::2",
        "1:2:3:4:5:6:7:8:9",
        "12345::1",
        "10.0.0.1-2-3",
        "١٠.0.0.1",
        "10.0.0.+1",
    ],
)
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="malformed"):
        WhiteAddresses([text])


def test_the_number_of_addresses_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="maximum"):
        WhiteAddresses(["10.0.0.1," * 10_001 + "10.0.0.1"])
