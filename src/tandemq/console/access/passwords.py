"""Hashes of passwords: scrypt, with its parameters in the hash, so that they can be raised later."""

import base64
import hashlib
import hmac
import secrets

CHARACTERS_MIN = 10
CHARACTERS_MAX = 256
_COST, _BLOCK, _LANES, _SALT, _SIZE = 1 << 15, 8, 1, 16, 32
_MEMORY_MAX = 256 << 20


def password_hash(password: str) -> str:
    """Return the hash of a password, about 0.1 s of CPU time and 32 MiB of memory."""
    salt = secrets.token_bytes(_SALT)
    digest = _digest(password, salt, _COST, _BLOCK, _LANES)
    return f"scrypt${_COST}${_BLOCK}${_LANES}${_text(salt)}${_text(digest)}"


def is_password(password: str, stored: str) -> bool:
    """Return whether a password belongs to a hash."""
    try:
        kind, cost, block, lanes, salt, digest = stored.split("$")
        found = _digest(password, base64.b64decode(salt), int(cost), int(block), int(lanes))
    except ValueError:
        return False
    return kind == "scrypt" and hmac.compare_digest(found, base64.b64decode(digest))


def password_fault(password: str) -> str:
    """Return why a password cannot be used; "" if it can."""
    if not CHARACTERS_MIN <= len(password) <= CHARACTERS_MAX:
        return f"a password has {CHARACTERS_MIN} to {CHARACTERS_MAX} characters"
    return ""


def _digest(password: str, salt: bytes, cost: int, block: int, lanes: int) -> bytes:
    return hashlib.scrypt(
        password.encode("utf-8", "surrogatepass"),
        salt=salt,
        n=cost,
        r=block,
        p=lanes,
        maxmem=_MEMORY_MAX,
        dklen=_SIZE,
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
