"""Files of accounts, as RocketMQ's release has them and as it writes them."""

import pytest

from tandemq.config.account_files import parse_account_file
from tandemq.errors import ConfigError

RELEASED = b"""\
# Licensed
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
SHOP = "accounts:\n- accessKey: shop-app\n  secretKey: shop-key\n"
WRITTEN = b"""\
accounts:
- accessKey: rocketmq2
  admin: true
  secretKey: '12345678'
  whiteRemoteAddress: null
  topicPerms: []
dataVersion:
- {counter: 3, timestamp: 1600000000000}
globalWhiteRemoteAddresses: ["10.0.0.7"]
"""


def test_the_file_of_a_release_is_read() -> None:
    file = parse_account_file(RELEASED)
    assert file.white_addresses == ("10.10.103.*", "192.168.0.*")
    assert {name: line for name, (line, _) in file.accounts.items()} == {"RocketMQ": 7, "rocketmq2": 21}
    _, first = file.accounts["RocketMQ"]
    assert (first.user.password, first.user.user_type) == ("12345678", "Normal")
    entries = {entry.resource: entry.decision for policy in first.policies for entry in policy.entries}
    assert entries["Topic:topicA"] == "Deny" and entries["Topic:topicB"] == "Allow" and entries["Group:*"] == "Allow"
    _, second = file.accounts["rocketmq2"]
    assert second.user.is_super and second.user.white_addresses == "192.168.1.*"
    assert file.warnings == ()


def test_a_file_that_java_has_written_is_read() -> None:
    file = parse_account_file(WRITTEN)
    assert file.accounts["rocketmq2"][1].user.is_super
    assert (file.counter, file.timestamp_ms) == (3, 1_600_000_000_000)


def test_an_empty_file_has_no_accounts() -> None:
    assert not parse_account_file(b"").accounts
    assert not parse_account_file(b"accounts:\nglobalWhiteRemoteAddresses:\n").accounts


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("account:\n- x\n", "line 2: account is unknown"),
        ("accounts:\n- accessKey: shop-app\n  secret: x\n", "line 3: secret is unknown"),
        ("accounts:\n- accessKey: shop-app\n  secretKey: short\n", "line 2: accessKey and secretKey need at least 7"),
        ("accounts:\n- accessKey: shop-app\n", "line 2: accessKey and secretKey need at least 7"),
        ("accounts:\n- shop-app\n", "line 2: an account with lines"),
        ("accounts: x\n", "line 1: a list is expected"),
        (SHOP + "  admin: perhaps\n", "line 4: true or false"),
        (SHOP + "  admin: [true]\n", "line 4: true or false"),
        (SHOP + "  topicPerms:\n  - a\n", "line 5: 'a' is no permission"),
        (SHOP + "  topicPerms:\n  - a=PUB\n  - a=SUB\n", "line 6: a is there"),
        (SHOP + "  whiteRemoteAddress: 10.0.0\n", "line 2: the white"),
        ("globalWhiteRemoteAddresses:\n- 10.0.0.1\n- host\n", "line 3: the white address 'host' is malformed"),
        ("accounts:\n" + "- accessKey: shop-app\n  secretKey: shop-key\n" * 2, "line 4: the account shop-app is there"),
        ("accounts:\n- accessKey: shop-app\n  secretKey: 01234567\n", "line 3: YAML does not"),
    ],
)
def test_a_malformed_file_is_refused_with_the_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_account_file(text.encode())
    assert str(caught.value).startswith(error), caught.value
    assert "shop-key" not in str(caught.value)


def test_what_may_not_be_meant_is_reported() -> None:
    file = parse_account_file(
        b"globalWhiteRemoteAddresses: ['*']\naccounts:\n- accessKey: shop-app\n  secretKey: shop-key\n"
        b"  whiteRemoteAddress: '*'\n  defaultTopicPerm: PUBSUB\n"
    )
    assert len(file.warnings) == 3 and "line 6: 'PUBSUB' is none of" in " ".join(file.warnings)
