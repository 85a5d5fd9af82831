"""Credentials of a client: given by the program, else from the environment.

    TANDEMQ_ACCESS_KEY, TANDEMQ_SECRET_KEY      name and key of a user
    TANDEMQ_CREDENTIALS                         a file with lines accessKey: … and secretKey: …, as RocketMQ's tools.yml

Source: docs/reference/access.md.
"""

import os
from pathlib import Path
from typing import NamedTuple

from tandemq.errors import ConfigError
from tandemq.model.access import Credentials

ACCESS_KEY, SECRET_KEY, FILE = "TANDEMQ_ACCESS_KEY", "TANDEMQ_SECRET_KEY", "TANDEMQ_CREDENTIALS"


class Signer(NamedTuple):
    """Who signs the requests of a client: a user, or the one in a file; with neither, that of the environment."""

    user: Credentials | None = None
    path: str = ""

    def credentials(self) -> Credentials | None:
        """Return the user, read from the file if there is one. Raises as `read_credentials`."""
        return read_credentials(self.path) if self.path else self.user


ENVIRONMENT = Signer()


def environment_credentials() -> Credentials | None:
    """Return the credentials of the environment; None if there are none.

    Raises:
        ConfigError: one of the two is missing, or the file cannot be read.
    """
    access_key, secret_key = os.environ.get(ACCESS_KEY, ""), os.environ.get(SECRET_KEY, "")
    if bool(access_key) != bool(secret_key):
        raise ConfigError(f"{ACCESS_KEY} and {SECRET_KEY} need each other")
    if access_key:
        return Credentials(access_key, secret_key)
    path = os.environ.get(FILE, "")
    return read_credentials(path) if path else None


def read_credentials(path: str) -> Credentials:
    """Return the credentials in a file.

    Raises:
        ConfigError: it cannot be read, or lacks one of the two.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"credentials {path}: {reason}") from error
    values = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            values[name.strip()] = value.strip().strip("\"'")
    if not values.get("accessKey") or not values.get("secretKey"):
        raise ConfigError(f"credentials {path}: lines `accessKey: …` and `secretKey: …` are expected")
    return Credentials(values["accessKey"], values["secretKey"])
