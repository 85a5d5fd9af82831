"""Users and policies: requests to the masters of all broker groups.

Source: docs/reference/access.md.
"""

from collections.abc import Iterable
from typing import Any

from tandemq.client.admin.cluster import cluster_info
from tandemq.client.core.operations import Steps, ask, request
from tandemq.client.core.routes import Routes
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError, RemoteError
from tandemq.model.access import SUBJECT_PREFIX, AclUser, Policy
from tandemq.model.codes import RequestCode

PAGE_USERS = 1_000
EXISTS = "The user is existed"
"""How brokers, Java's too, answer to the creation of a user that they have."""


def each_master(routes: Routes, code: RequestCode, body: bytes = b"", **fields: object) -> Steps[list[bytes]]:
    """Send a request to the masters of all groups, and return the bodies of their responses.

    Raises:
        LocalError: there is no master.
        NetworkError, RemoteError: of the first that failed; others may have been changed.
    """
    info = yield from cluster_info(routes)
    bodies = []
    for address in info.masters(None):
        answer = yield from ask(address, request(code, body, **fields))
        bodies.append(answer.body)
    return bodies


def put_user(routes: Routes, name: str, *, is_new: bool, **changes: str) -> Steps[None]:
    """Create or change a user; `changes`: password, userType, userStatus. Raises as `each_master`."""
    code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
    yield from each_master(routes, code, dumps(changes), username=name)


def delete_user(routes: Routes, name: str) -> Steps[None]:
    """Delete a user and its policies. Raises as `each_master`."""
    yield from each_master(routes, RequestCode.AUTH_DELETE_USER, username=name)


def users(routes: Routes) -> Steps[dict[str, dict[str, str]]]:
    """Return the users by name, without their keys, as the first master has them. Raises as `each_master`."""
    listed = yield from _all_pages(routes, RequestCode.AUTH_LIST_USER, filter="")
    return {
        str(user.get("username")): {"type": str(user.get("userType")), "status": str(user.get("userStatus"))}
        for user in listed
    }


def _all_pages(routes: Routes, code: RequestCode, **fields: object) -> Steps[list[dict[str, Any]]]:
    """Return a list of the first master, which TandemQ's gives in pages, and Java's as a whole."""
    info = yield from cluster_info(routes)
    address = next(iter(info.masters(None)))
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = yield from ask(address, request(code, b"", limit=PAGE_USERS, after=after, **fields))
        found += _listed(answer.body)
        following = answer.fields.get("next")
        after = following if following != after else None
    return found


def put_entry(
    routes: Routes, name: str, resource: str, actions: Iterable[str], decision: str, sources: Iterable[str]
) -> Steps[None]:
    """Add an entry to the policies of a user, or replace that of the same resource. Raises as `each_master`."""
    entry = {"resource": resource, "actions": list(actions), "decision": decision, "sourceIps": list(sources)}
    body = dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]})
    yield from each_master(routes, RequestCode.AUTH_CREATE_ACL, body, subject=SUBJECT_PREFIX + name)


def adopt_user(routes: Routes, user: AclUser, policies: Iterable[Policy]) -> Steps[int]:
    """Create a user with its policies at each master that does not have it, and return their number.

    Raises as `each_master`.
    """
    info = yield from cluster_info(routes)
    about = dumps({"password": user.password, "userType": user.user_type})
    body = dumps({"policies": list(policies)})
    made = 0
    for address in info.masters(None):
        try:
            yield from ask(address, request(RequestCode.AUTH_CREATE_USER, about, username=user.username))
        except RemoteError as error:
            if EXISTS not in str(error):
                raise
            continue
        if policies:
            fields = {"subject": SUBJECT_PREFIX + user.username}
            yield from ask(address, request(RequestCode.AUTH_CREATE_ACL, body, **fields))
        made += 1
    return made


def delete_entry(routes: Routes, name: str, resource: str) -> Steps[None]:
    """Delete the entry of a resource; "": all of the user. Raises as `each_master`."""
    fields = {"subject": SUBJECT_PREFIX + name, "policyType": "Custom"} | ({"resource": resource} if resource else {})
    yield from each_master(routes, RequestCode.AUTH_DELETE_ACL, b"", **fields)


def policies(routes: Routes) -> Steps[list[dict[str, Any]]]:
    """Return the entries of all users, as the first master has them. Raises as `each_master`."""
    listed = yield from _all_pages(routes, RequestCode.AUTH_LIST_ACL, subjectFilter="", resourceFilter="")
    return [
        {"user": str(acl["subject"]).removeprefix(SUBJECT_PREFIX), "policy": policy.get("policyType"), **entry}
        for acl in listed
        for policy in acl.get("policies") or ()
        for entry in policy.get("entries") or ()
    ]


def _listed(body: bytes) -> list[dict[str, Any]]:
    found = loads(body, is_trusted=True) if body else []
    if not isinstance(found, list):
        raise ProtocolError("the response is not a list")
    return found
