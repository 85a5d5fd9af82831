"""Requests about the accounts of ACL 1.0 (50 to 53), as mqadmin 4.9 sends them; only with `aclEnable`.

They change the table of users and policies, which slaves copy, and no file: an account of a file that one changes is
moved to the table, and counts there. What a file has is not deleted by a request.

Source: docs/reference/access.md; RocketMQ AdminBrokerProcessor, PlainPermissionManager.
"""

import re

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.access.control import AccessControl
from tandemq.broker.features.access.table import Acl1
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import ConfigError
from tandemq.model.accounts import DENY, PERMISSIONS, Account, Translated, parse_permissions, translated
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.white_addresses import white_addresses

TABLE_PATH = "config/accessControl.json"
OFF = "aclEnable is false at this broker; `tandemq acl` manages users and policies"


class AccountFields(msgspec.Struct, rename="camel"):
    """Header fields of UPDATE_AND_CREATE_ACL_CONFIG; None: as it is."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccountProcessor(Feature):
    """Answers the requests."""

    def __init__(self, control: AccessControl, kernel: Kernel) -> None:
        """`control`: has the users."""
        self._control = control
        self._table = control.table
        self._config = kernel.current
        self._own = kernel.own

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.UPDATE_AND_CREATE_ACL_CONFIG: Request(self._on_update, Right.WRITE, is_saved=True, is_copied=True),
            Code.DELETE_ACL_CONFIG: Request(self._on_delete, Right.WRITE, is_saved=True, is_copied=True),
            Code.GET_BROKER_CLUSTER_ACL_INFO: Request(self._on_info),
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Request(self._on_white, Right.WRITE, is_saved=True, is_copied=True),
        }

    def _on_update(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(AccountFields, command.fields)
        try:
            self._update(link, command, fields)
        except ConfigError as error:
            return command.answer(ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED, remark=str(error))
        self._count(now)
        return command.answer(ResponseCode.SUCCESS)

    def _update(self, link: Link, command: Command, fields: AccountFields) -> None:
        self._check_on()
        name = fields.access_key
        user = self._control.user(name)
        before = None if user is None else Translated(user, self._control.policies_of(name) or ())
        after = translated(_account(fields), before)
        white_addresses((after.user.white_addresses,))
        concerns_super = after.user.is_super or (user is not None and user.is_super) or bool(after.user.white_addresses)
        if concerns_super and not self._control.is_super(link, command):
            raise ConfigError("only admins without lists may change such accounts, or give white addresses")
        self._control.take_over(name)
        self._table.put(after.user)
        self._table.put_policies(name, after.policies)

    def _on_delete(self, link: Link, command: Command, now: Now) -> Command | None:
        name = command.fields.get("accessKey", "")
        known = self._table.users.get(name)
        place = self._control.files.place(name)
        fault = None
        if not self._control.has_accounts:
            fault = OFF
        elif place is not None:
            fault = f"the account is in {place}: delete it there"
        elif known is None:
            fault = "there is no such account"
        elif known.is_super and not self._control.is_super(link, command):
            fault = "only admins without lists may delete such accounts"
        if fault is not None:
            return command.answer(ResponseCode.DELETE_ACL_CONFIG_FAILED, remark=fault)
        self._table.remove(name)
        self._count(now)
        return command.answer(ResponseCode.SUCCESS)

    def _on_white(self, link: Link, command: Command, now: Now) -> Command | None:
        try:
            self._check_on()
            if not self._control.is_super(link, command):
                raise ConfigError("only admins without lists may give white addresses")
            given = tuple(filter(None, (text.strip() for text in _split(command.fields.get("globalWhiteAddrs", "")))))
            if command.fields.get("aclFileFullPath"):
                raise ConfigError("files are only read", hint="leave the path out: the list of the table is changed")
            white_addresses(given)
            of_files = self._control.files.white_addresses
            if not set(of_files) <= set(given):
                raise ConfigError(
                    f"files have {', '.join(dict.fromkeys(of_files))[:200]}", hint="name them too, or remove them there"
                )
        except ConfigError as error:
            return command.answer(ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, remark=str(error))
        self._table.put_acl1(self._table.acl1._replace(white_addresses=tuple(t for t in given if t not in of_files)))
        self._count(now)
        return command.answer(ResponseCode.SUCCESS)

    def _on_info(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Return the version of the table, and those that Java has written into the files."""
        config = self._config.config
        own = self._table.acl1
        versions = {path: _version(f.counter, f.timestamp_ms) for path, f in self._control.files.files.items()}
        version = _version(own.counter, own.timestamp_ms)
        fields = {
            "version": dumps(version).decode(),
            "allAclFileVersion": dumps({TABLE_PATH: version} | versions).decode(),
            "brokerName": config.broker_name,
            "brokerAddr": self._own.address,
            "clusterName": config.cluster,
        }
        return command.answer(ResponseCode.SUCCESS, fields=fields)

    def _check_on(self) -> None:
        if not self._control.has_accounts:
            raise ConfigError(OFF)

    def _count(self, now: Now) -> None:
        acl1 = self._table.acl1
        self._table.put_acl1(Acl1(acl1.white_addresses, acl1.counter + 1, now.wall_ms))


def _account(fields: AccountFields) -> Account:
    """Return the changes in a request. Raises ConfigError."""
    for permission in (fields.default_topic_perm, fields.default_group_perm):
        _check_permission(permission or DENY)
    return Account(
        access_key=fields.access_key,
        secret_key=fields.secret_key,
        white_addresses=fields.white_remote_address,
        is_admin=fields.admin,
        default_topic=fields.default_topic_perm,
        default_group=fields.default_group_perm,
        topics=_permissions(fields.topic_perms),
        groups=_permissions(fields.group_perms),
    )


def _permissions(text: str | None) -> dict[str, str] | None:
    if not text:
        return None
    found = parse_permissions(_split(text))
    for permission in found.values():
        _check_permission(permission)
    return found


def _check_permission(permission: str) -> None:
    if permission != DENY and permission not in PERMISSIONS:
        raise ConfigError(f"the permission {permission[:40]!r} is none of {DENY}, {', '.join(PERMISSIONS)}")


def _split(text: str) -> list[str]:
    """Return the members of a list with commas; those in braces belong to one member."""
    return re.split(r",(?![^{}]*\})", text)


def _version(counter: int, timestamp_ms: int) -> dict[str, int]:
    return {"counter": counter, "timestamp": timestamp_ms}
