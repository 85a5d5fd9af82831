"""Errors of object stores and HDFS, on one line: the cause, and a hint.

The libraries below report a chain of causes over several lines, with terminal colors and XML of the server.
Source: docs/guides/pipeline-lakes.md, "Errors".
"""

import re

from tandemq.errors import ConfigError, LocalError, TandemError

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_CODE = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]+)</Message>")
_MARKUP = re.compile(r"<[^>]*>")
_QUERY = re.compile(r"\?[^ ]*")
CHARACTERS_MAX = 300
CREDENTIALS = "check --storage-option and the variables AWS_*, AZURE_* or GOOGLE_* of the environment"

_CAUSES: tuple[tuple[str, type[TandemError], str, str], ...] = (
    (
        r"ExpiredToken|TokenRefreshRequired|token (?:has|is) expired|AuthenticationFailed.*expired",
        LocalError,
        "the credentials have expired",
        "renew them and repeat the command: nothing is lost",
    ),
    (r"NoSuchBucket|ContainerNotFound|specified bucket does not exist", ConfigError, "there is no such bucket", ""),
    (
        r"NoSuchKey|BlobNotFound|FileNotFound|No such file|[Nn]ot found",
        LocalError,
        " is missing",
        "another tool has deleted it, or has written half of the table",
    ),
    (r"scheme is not allowed", ConfigError, "the endpoint has no TLS", "--storage-option allow_http=true permits that"),
    (
        (
            r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|AuthenticationFailed|AuthorizationFailure"
            r"|40[13] (?:Forbidden|Unauthorized)|Permission ?denied|AccessControlException"
        ),
        LocalError,
        "access is denied",
        CREDENTIALS,
    ),
    (r"loading credentials|token request|IMDS|No credentials", ConfigError, "there are no credentials", CREDENTIALS),
    (
        (
            r"tcp connect error|dns error|failed to lookup address|Connection refused|timed out|error sending request"
            r"|unreachable"
        ),
        LocalError,
        "the store does not respond",
        "check the endpoint and the network, and repeat the command: nothing is lost",
    ),
    (r"(?i)safe ?mode", LocalError, "the name node is in safe mode", "repeat the command when it has left it"),
)


def storage_error(where: str, error: Exception) -> TandemError:
    """Return the error to raise for an error of a storage library. `where`: the URL that was used."""
    text = _COLORS.sub("", str(error)).replace("↳", " ")
    code, message = _CODE.search(text), _MESSAGE.search(text)
    for pattern, kind, what, hint in _CAUSES:
        if re.search(pattern, text):
            detail = f" ({code[1]})" if code else ""
            return kind(f"{where}{what}{detail}" if what.startswith(" ") else f"{where}: {what}{detail}", hint=hint)
    if code:
        return LocalError(f"{where}: {code[1]}{f': {message[1]}' if message else ''}")
    lines = [" ".join(_QUERY.sub("", _MARKUP.sub(" ", line)).split()) for line in text.splitlines()]
    return LocalError(f"{where}: {'; '.join(line for line in lines if line)[:CHARACTERS_MAX] or 'no reason given'}")
