"""Signatures of requests: HMAC-SHA1 with the user's password.

    remoting   base64 of the HMAC over the values of all header fields, in the order of their names, and the body
    gRPC       hexadecimal digits of the HMAC over the metadata x-mq-date-time

The order of names is that of UTF-16 code units, as Java sorts them; for ASCII names it is that of bytes.

Source: docs/reference/access.md; RocketMQ AclUtils, AclSigner, AclClientRPCHook.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from tandemq.model.access import RESERVED_PREFIX, AclUser, Credentials

ACCESS_KEY, SIGNATURE, SECURITY_TOKEN = "AccessKey", "Signature", "SecurityToken"
ON_BEHALF_OF = "onBehalfOf"
"""Field of a send by a super user: the user whose limits it uses."""
UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
"""Field that old clients add after they have signed."""
UNSIGNED_UP_TO_VERSION = 395
"""Version number of 4.9.3: up to it `UNIQUE_KEY_QUERY` is not signed."""
ALGORITHM = "MQv2-HMAC-SHA1"
_HEX_CHARACTERS = 40


_MEMBER_LABEL = b"tandemq-member-1 signs requests"


@lru_cache(maxsize=16)
def member_credentials(secret: bytes) -> Credentials:
    """Return the user as which the brokers that know a secret of replication sign requests to each other."""
    key = hmac.digest(secret, _MEMBER_LABEL, "sha256").hex()
    return Credentials(f"{RESERVED_PREFIX}{sha256(key.encode()).hexdigest()[:16]}", key)


def member_user(secrets: Iterable[bytes], name: str) -> AclUser | None:
    """Return the super user that those sign as who know one of some secrets; None if the name is another one."""
    for secret in secrets:
        credentials = member_credentials(secret)
        if credentials.access_key == name:
            return AclUser(name, credentials.secret_key, "Super")
    return None


def signed(fields: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """Return the header fields of a request with its user and signature."""
    own = {**fields, ACCESS_KEY: credentials.access_key}
    own.pop(SIGNATURE, None)
    return {**own, SIGNATURE: signature_of(own, body, credentials.secret_key)}


def signature_of(fields: Mapping[str, str], body: bytes, key: str) -> str:
    """Return the signature of header fields and a body."""
    names = sorted(fields) if "".join(fields).isascii() else sorted(fields, key=_java_order)
    content = "".join([fields[name] for name in names]).encode(errors="surrogatepass") + body
    return b64encode(hmac.digest(key.encode(), content, "sha1")).decode()


def _java_order(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def is_signed(fields: Mapping[str, str], body: bytes, version: int, key: str) -> bool:
    """Whether a request has the signature of a key; takes the same time for each wrong one."""
    own = dict(fields)
    given = own.pop(SIGNATURE, "")
    if version <= UNSIGNED_UP_TO_VERSION:
        own.pop(UNIQUE_KEY_QUERY, None)
    return hmac.compare_digest(signature_of(own, body, key).encode(), given.encode(errors="replace"))


class GrpcAuthorization(NamedTuple):
    """The metadata `authorization` of a call."""

    access_key: str
    signature: bytes


def parse_authorization(text: str) -> GrpcAuthorization | None:
    """Return user and signature of the metadata `authorization`; None if it is malformed, or has no user."""
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM or len(text) > 2_000:
        return None
    parts = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    user = parts.get("Credential", "").partition("/")[0]
    digits = parts.get("Signature", "")
    if not user or len(digits) != _HEX_CHARACTERS:
        return None
    try:
        return GrpcAuthorization(user, bytes.fromhex(digits))
    except ValueError:
        return None


def is_grpc_signed(authorization: GrpcAuthorization, date: str, key: str) -> bool:
    """Whether a call has the signature of a key; takes the same time for each wrong one."""
    return hmac.compare_digest(hmac.digest(key.encode(), date.encode(), "sha1"), authorization.signature)
