"""Types of fields, and base classes of all JSON objects. The OpenAPI document is made from these types.

Requests are checked against them: unknown fields and values out of range are refused. Times are milliseconds since
1970. Names of fields are in camelCase.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LIMIT_MAX = 500
OFFSET_MAX = (1 << 63) - 1
ID_MAX = (1 << 31) - 1
_NAME = r"^[%|a-zA-Z0-9_-]+$"

TopicName = Annotated[str, Meta(min_length=1, max_length=127, pattern=_NAME)]
AnyTopicName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME)]
GroupName = Annotated[str, Meta(min_length=1, max_length=255, pattern=_NAME)]
BrokerName = Annotated[str, Meta(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-][%|a-zA-Z0-9_.-]*$")]
BrokerId = Annotated[int, Meta(ge=0, le=ID_MAX)]
QueueId = Annotated[int, Meta(ge=0, le=ID_MAX)]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
TimeMs = Annotated[int, Meta(ge=0, le=1 << 47, description="Milliseconds since 1970.")]
Base64 = Annotated[
    str, Meta(max_length=6 << 20, pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")
]
Text = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*$")]
Confirm = Annotated[str, Meta(max_length=255, description="The name of what is changed, as a confirmation.")]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="Maximum number of items.")]
Cursor = Annotated[str, Meta(max_length=400, description="`next` of the part before; empty: from the start.")]
Level = Literal["ok", "warning", "bad"]
Next = Annotated[str | None, Meta(description="Cursor of the next part; null: there is none.")]


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What a request contains."""


class Output(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a response contains."""
