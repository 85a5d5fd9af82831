"""Requests about users and policies (3001 to 3010).

Changes are made at the master, and slaves copy them. Only super users create, change and delete super users, and only
they see passwords.

Source: docs/reference/access.md; RocketMQ AdminBrokerProcessor, UserConverter, AclConverter.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from tandemq.boundary import Now
from tandemq.broker.features.access.control import AccessControl
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import ProtocolError
from tandemq.model.access import (
    CUSTOM,
    DEFAULT,
    PASSWORD_CHARACTERS_MAX,
    SUBJECT_PREFIX,
    AclUser,
    Policy,
    PolicyEntry,
    PolicyType,
    merged,
    name_fault,
    size_of,
    subject_name,
    without,
)
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

T = TypeVar("T", bound=str)
BODY_BYTES_MAX = 1 << 20
LIST_SIZE_MAX = 20_000
"""Maximum number of users, entries and source addresses in a list without a limit."""
PAGE_MAX, PAGE_WORK_MAX = 1_000, 20_000
"""Maximum number of users in a page, and of users, entries and source addresses that are looked at for it."""
USER_TYPES: tuple[Literal["Super", "Normal"], ...] = ("Super", "Normal")
USER_STATES: tuple[Literal["enable", "disable"], ...] = ("enable", "disable")
POLICY_TYPES: tuple[PolicyType, ...] = (CUSTOM, DEFAULT)
DECISIONS: tuple[Literal["Allow", "Deny"], ...] = ("Allow", "Deny")


class _UserBody(msgspec.Struct, rename="camel"):
    """Body of a request that creates or changes a user; None: as it is."""

    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None


class _EntryBody(msgspec.Struct, rename="camel"):
    resource: str
    actions: list[str] = []
    source_ips: list[str] | None = None
    decision: str = "Allow"


class _PolicyBody(msgspec.Struct, rename="camel"):
    policy_type: str | None = None
    entries: list[_EntryBody] = []


class _AclBody(msgspec.Struct, rename="camel"):
    """Body of a request that changes policies."""

    policies: list[_PolicyBody] = []


class _ListFields(msgspec.Struct):
    """Header fields that ask for a page of a list."""

    limit: int = 0
    after: str = ""


class _Listed(NamedTuple):
    """A user in a list."""

    size: int
    """Work for it: number of its entries and source addresses, and 1."""
    shown: dict[str, Any] | None
    """None: the filter does not match."""


class AccessProcessor(Feature):
    """Answers the requests."""

    def __init__(self, control: AccessControl) -> None:
        """`control`: has the users."""
        self._control = control
        self._table = control.table

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.AUTH_CREATE_USER: Request(self._on_create_user, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_UPDATE_USER: Request(self._on_update_user, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_DELETE_USER: Request(self._on_delete_user, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_GET_USER: Request(self._on_get_user),
            Code.AUTH_LIST_USER: Request(self._on_list_users),
            Code.AUTH_CREATE_ACL: Request(self._on_change_acl, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_UPDATE_ACL: Request(self._on_change_acl, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_DELETE_ACL: Request(self._on_delete_acl, Right.WRITE, is_saved=True, is_copied=True),
            Code.AUTH_GET_ACL: Request(self._on_get_acl),
            Code.AUTH_LIST_ACL: Request(self._on_list_acls),
        }

    # Users.

    def _on_create_user(self, link: Link, command: Command, _now: Now) -> Command | None:
        name = command.fields.get("username", "")
        fault = name_fault(name)
        if fault is not None:
            return command.answer(ResponseCode.INVALID_PARAMETER, remark=fault)
        body = _body(command, _UserBody, "user")
        account = self._control.account(name)
        if self._control.user(name) is not None and account is None:
            return _refused(command, "The user is existed")
        return self._put(link, command, AclUser(name, "") if account is None else account.user, body)

    def _on_update_user(self, link: Link, command: Command, _now: Now) -> Command | None:
        known = self._control.user(command.fields.get("username", ""))
        if known is None:
            return _refused(command, "The user is not exist")
        return self._put(link, command, known, _body(command, _UserBody, "user"))

    def _put(self, link: Link, command: Command, known: AclUser, body: _UserBody) -> Command:
        user = AclUser(
            known.username,
            known.password if body.password is None else body.password,
            known.user_type if body.user_type is None else _one_of(USER_TYPES, body.user_type),
            known.user_status if body.user_status is None else _one_of(USER_STATES, body.user_status),
            known.white_addresses,
        )
        if not user.password.strip() or len(user.password) > PASSWORD_CHARACTERS_MAX:
            return _refused(command, f"password can not be blank, nor longer than {PASSWORD_CHARACTERS_MAX} characters")
        if (known.is_super or user.is_super) and not self._control.is_super(link, command):
            return _refused(command, "only super users may create or change super users")
        self._control.take_over(user.username)
        self._table.put(user)
        return command.answer(ResponseCode.SUCCESS)

    def _on_delete_user(self, link: Link, command: Command, _now: Now) -> Command | None:
        name = command.fields.get("username", "")
        known = self._control.user(name)
        if known is not None and known.is_super and not self._control.is_super(link, command):
            return _refused(command, "only super users may delete super users")
        place = self._control.files.place(name)
        if place is not None:
            return _refused(command, f"the account is also in {place}: delete it there first")
        self._table.remove(name)
        return command.answer(ResponseCode.SUCCESS)

    def _on_get_user(self, link: Link, command: Command, _now: Now) -> Command | None:
        user = self._control.user(command.fields.get("username", ""))
        body = b"" if user is None else dumps(_shown(user, has_password=self._control.is_super(link, command)))
        return command.answer(ResponseCode.SUCCESS, body=body)

    def _on_list_users(self, link: Link, command: Command, _now: Now) -> Command | None:
        wanted = command.fields.get("filter", "")
        has_password = self._control.is_super(link, command)

        def shown(name: str) -> _Listed:
            user = self._control.user(name) if wanted in name else None
            return _Listed(1, None if user is None else _shown(user, has_password=has_password))

        return self._list(command, shown)

    def _list(self, command: Command, shown: Callable[[str], _Listed]) -> Command:
        """Return what `shown` has of all users, or a page of it if the request has a limit.

        A page has the field `next` if there are more, for the field `after` of the next request.
        """
        fields = read_fields(_ListFields, command.fields)
        most = min(fields.limit, PAGE_MAX)
        found: list[dict[str, Any]] = []
        size = work = 0
        last = fields.after
        for name in self._control.names(fields.after):
            if most and (len(found) >= most or work >= PAGE_WORK_MAX):
                return command.answer(ResponseCode.SUCCESS, body=dumps(found), fields={"next": last})
            listed, last = shown(name), name
            work += listed.size
            if listed.shown is None:
                continue
            size += listed.size
            if size > LIST_SIZE_MAX and not most:
                return _refused(
                    command, f"more than {LIST_SIZE_MAX} users and entries match; give a filter, or a limit"
                )
            found.append(listed.shown)
        return command.answer(ResponseCode.SUCCESS, body=dumps(found) if found else b"")

    # Policies.

    def _on_change_acl(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = subject_name(command.fields.get("subject", ""))
        if self._control.user(name) is None:
            return _refused(command, f"The subject of {SUBJECT_PREFIX}{name[:100]} is not exist.")
        changes = [
            Policy(
                _policy_type(policy.policy_type),
                tuple(
                    PolicyEntry(
                        entry.resource,
                        tuple(entry.actions),
                        _one_of(DECISIONS, entry.decision),
                        tuple(entry.source_ips or ()),
                    )
                    for entry in policy.entries
                ),
            )
            for policy in _body(command, _AclBody, "policies").policies
        ]
        try:
            after = merged(self._control.policies_of(name) or (), changes)
        except ProtocolError as error:
            return _refused(command, str(error))
        self._control.take_over(name)
        self._table.put_policies(name, after)
        return command.answer(ResponseCode.SUCCESS)

    def _on_delete_acl(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = subject_name(command.fields.get("subject", ""))
        policy_type = _policy_type(command.fields.get("policyType"))
        known = self._control.policies_of(name)
        if known is None:
            return _refused(command, "The acl is not exist")
        self._control.take_over(name)
        resource = command.fields.get("resource", "")
        self._table.put_policies(name, without(known, policy_type, resource) if resource else ())
        return command.answer(ResponseCode.SUCCESS)

    def _on_get_acl(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = subject_name(command.fields.get("subject", ""))
        if self._control.user(name) is None:
            return _refused(command, "The subject is not exist.")
        policies = self._control.policies_of(name)
        body = b"" if policies is None else dumps(_shown_acl(name, policies))
        return command.answer(ResponseCode.SUCCESS, body=body)

    def _on_list_acls(self, _link: Link, command: Command, _now: Now) -> Command | None:
        subject, resource = command.fields.get("subjectFilter", ""), command.fields.get("resourceFilter", "")

        def shown(name: str) -> _Listed:
            policies = self._control.policies_of(name) if subject in SUBJECT_PREFIX + name else None
            matching = tuple(
                Policy(policy.policy_type, entries)
                for policy in policies or ()
                if (entries := tuple(entry for entry in policy.entries if resource in entry.resource))
            )
            return _Listed(1 + size_of(policies or ()), _shown_acl(name, matching) if matching else None)

        return self._list(command, shown)


def _body(command: Command, kind: type[Any], what: str) -> Any:
    if len(command.body) > BODY_BYTES_MAX:
        raise ProtocolError(f"the body has {len(command.body)} bytes, the maximum is {BODY_BYTES_MAX}")
    return decode_body(command.body, kind, what)


def _refused(command: Command, why: str) -> Command:
    return command.answer(ResponseCode.NO_PERMISSION, remark=why)


def _shown(user: AclUser, *, has_password: bool) -> dict[str, str]:
    shown = {"userStatus": user.user_status, "userType": user.user_type, "username": user.username}
    return {"password": user.password, **shown} if has_password else shown


def _shown_acl(name: str, policies: tuple[Policy, ...]) -> dict[str, Any]:
    return {
        "policies": [
            {
                "entries": [
                    {
                        "actions": list(entry.actions),
                        "decision": entry.decision,
                        "resource": entry.resource,
                        **({"sourceIps": list(entry.source_ips)} if entry.source_ips else {}),
                    }
                    for entry in policy.entries
                ],
                "policyType": policy.policy_type,
            }
            for policy in policies
        ],
        "subject": SUBJECT_PREFIX + name,
    }


def _policy_type(text: str | None) -> PolicyType:
    """Return a type of policies; the default is that of Java."""
    return _one_of(POLICY_TYPES, text) if text else CUSTOM


def _one_of(known: tuple[T, ...], text: str) -> T:
    """Return a word in the form that is stored; mqadmin sends it as the user has written it."""
    for word in known:
        if word.lower() == text.lower():
            return word
    raise ProtocolError(f"{text[:40]!r} is none of {', '.join(known)}")
