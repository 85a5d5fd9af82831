"""What to do about errors of brokers and of the client, which know no commands."""

from tandemq.errors import TandemError

_SIGNING = (
    "commands sign with the user in the file TANDEMQ_CREDENTIALS, or in TANDEMQ_ACCESS_KEY and TANDEMQ_SECRET_KEY; "
    "docs/reference/access.md"
)
_ADVICE = (
    ("no name server knows the topic", "tandemq topic list shows the topics, tandemq topic create creates one"),
    ("no master is registered for", "tandemq cluster list shows the brokers and their clusters"),
    ("authentication failed", _SIGNING),
    ("has no permission to access", "a super user permits it with tandemq acl allow; tandemq acl list shows what is"),
    ("The user is not exist", "tandemq acl user list shows the users"),
    ("The subject of User:", "tandemq acl user list shows the users"),
    ("The acl is not exist", "tandemq acl list shows what users may do"),
    ("does not answer within", "start it, or give the address of another one with --registry"),
)
"""Parts of error texts, RocketMQ's own among them, and what to do."""


def advised(error: TandemError) -> TandemError:
    """Return an error, with advice if it has none and there is some."""
    text = str(error.args[0]) if error.args else ""
    if not error.hint:
        error.hint = next((advice for part, advice in _ADVICE if part in text), "")
    return error
