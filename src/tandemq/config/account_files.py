"""Files of accounts (ACL 1.0): `plain_acl.yml`, and all `.yml` and `.yaml` files below `acl/` beside it.

    globalWhiteRemoteAddresses: ["10.0.0.7"]
    accounts:
      - accessKey: shop-app
        secretKey: …
        whiteRemoteAddress:
        admin: false
        defaultTopicPerm: DENY
        topicPerms:
          - Orders=PUB|SUB

Source: docs/reference/access.md; RocketMQ PlainPermissionManager, AclUtils.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tandemq.config.yaml_subset import Mapping as YamlMapping
from tandemq.config.yaml_subset import Node, Scalar, Sequence, parse_yaml, wrong
from tandemq.errors import ConfigError
from tandemq.model.accounts import DENY, PERMISSIONS, Account, Translated, parse_permissions, translated
from tandemq.model.white_addresses import white_addresses

DEFAULT_FILE, DIRECTORY, ENDINGS = "plain_acl.yml", "acl", (".yml", ".yaml")
_LISTS = ("topicPerms", "groupPerms")
_DEFAULTS = ("defaultTopicPerm", "defaultGroupPerm")
_ACCOUNT_KEYS = ("accessKey", "secretKey", "whiteRemoteAddress", "admin", *_DEFAULTS, *_LISTS)
_FILE_KEYS = ("globalWhiteRemoteAddresses", "accounts", "dataVersion")


class AccountFiles(Protocol):
    """The files, as the core sees them."""

    def read(self) -> Mapping[str, bytes | ConfigError] | None:
        """Return the content of each file, or why it cannot be read, by path; None if nothing has changed since.

        An account that is in several files counts in the first one. Blocking, for jobs and the start only.

        Raises:
            ConfigError: the files cannot be listed.
        """


@dataclass(frozen=True, slots=True)
class AccountFile:
    """The content of one file."""

    accounts: Mapping[str, tuple[int, Translated]]
    """Line and translation by name."""
    white_addresses: tuple[str, ...]
    counter: int
    """Number of its version that Java has written into it, and the time of that."""
    timestamp_ms: int
    warnings: tuple[str, ...]
    """What is allowed and perhaps not meant."""


def parse_account_file(data: bytes) -> AccountFile:
    """Read a file.

    Raises:
        ConfigError: it is malformed, has an unknown key or an invalid account; nothing of it counts. The text has the
            line, and no keys.
    """
    file = _known(parse_yaml(data), _FILE_KEYS)
    warnings: list[str] = []
    white = _texts(file.get("globalWhiteRemoteAddresses"))
    texts = tuple(text for _, text in white)
    for line, text in white:
        with _at(line):
            white_addresses((text,))
    if white_addresses(texts).is_any:
        warnings.append("globalWhiteRemoteAddresses has *: every client may do everything")
    accounts: dict[str, tuple[int, Translated]] = {}
    for item in _items(file.get("accounts")):
        if not isinstance(item, YamlMapping):
            raise wrong(item.line, "an account with lines `key: value` is expected")
        account = _account(item, warnings)
        if account.access_key in accounts:
            raise wrong(item.line, f"the account {account.access_key[:64]} is there twice")
        with _at(item.line):
            accounts[account.access_key] = item.line, translated(account)
    counter, timestamp_ms = _version(file.get("dataVersion"))
    return AccountFile(accounts, texts, counter, timestamp_ms, tuple(warnings))


@contextmanager
def _at(line: int) -> Iterator[None]:
    """Add a line to the ConfigError that is raised within."""
    try:
        yield
    except ConfigError as error:
        raise wrong(line, str(error.args[0]), error.hint) from error


def _known(mapping: YamlMapping, keys: tuple[str, ...]) -> dict[str, Node]:
    for key, node in mapping.entries.items():
        if key not in keys:
            raise wrong(node.line, f"{key[:64]} is unknown; {', '.join(keys)} are expected")
    return mapping.entries


def _account(item: YamlMapping, warnings: list[str]) -> Account:
    entries = _known(item, _ACCOUNT_KEYS)
    admin = entries.get("admin")
    if admin is not None and not isinstance(admin, Scalar):
        raise wrong(admin.line, "true or false is expected")
    white = _text(entries.get("whiteRemoteAddress")) or ""
    with _at(item.line):
        if white_addresses((white,)).is_any:
            warnings.append(f"line {item.line}: whiteRemoteAddress is *: the account needs no signature from anywhere")
    return Account(
        access_key=_text(entries.get("accessKey")) or "",
        secret_key=_text(entries.get("secretKey")) or "",
        white_addresses=white,
        is_admin=admin is not None and not admin.is_null and admin.boolean(),
        default_topic=_permission(entries.get("defaultTopicPerm"), warnings),
        default_group=_permission(entries.get("defaultGroupPerm"), warnings),
        topics=_permissions(entries.get("topicPerms"), warnings),
        groups=_permissions(entries.get("groupPerms"), warnings),
    )


def _permission(node: Node | None, warnings: list[str]) -> str | None:
    permission = _text(node)
    if node is not None and permission is not None:
        _warn_of_deny(node.line, permission, warnings)
    return permission


def _permissions(node: Node | None, warnings: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for line, text in _texts(node):
        with _at(line):
            ((name, permission),) = parse_permissions((text,)).items()
        if name in found:
            raise wrong(line, f"{name[:100]} is there twice")
        found[name] = permission
        _warn_of_deny(line, permission, warnings)
    return found or None


def _warn_of_deny(line: int, permission: str, warnings: list[str]) -> None:
    if permission not in PERMISSIONS and permission != DENY:
        warnings.append(f"line {line}: {permission[:40]!r} is none of {', '.join(PERMISSIONS)} and counts as {DENY}")


def _version(node: Node | None) -> tuple[int, int]:
    """Return counter and time of `dataVersion`; zeros without."""
    first = next(iter(_items(node)), None)
    entries = first.entries if isinstance(first, YamlMapping) else {}
    found = []
    for key in ("counter", "timestamp"):
        value = entries.get(key)
        text = value.raw if isinstance(value, Scalar) else ""
        found.append(int(text) if text.isdecimal() and len(text) < 19 else 0)
    return found[0], found[1]


def _items(node: Node | None) -> list[Node]:
    """Return the items of a list, which may be absent."""
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return []
    if not isinstance(node, Sequence):
        raise wrong(node.line, "a list is expected")
    return node.items


def _texts(node: Node | None) -> list[tuple[int, str]]:
    """Return the texts of a list with their lines."""
    return [(item.line, text) for item in _items(node) if (text := _text(item)) is not None]


def _text(node: Node | None) -> str | None:
    if node is None:
        return None
    if not isinstance(node, Scalar):
        raise wrong(node.line, "a text is expected")
    return None if node.is_null else node.text()
