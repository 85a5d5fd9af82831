"""Types of struct fields for Java's integers and RocketMQ's enums.

The value of an enum is the name of its constant. Its annotation lists all names in the order of Java's declaration,
because some peers send the ordinal instead of the name (see `codec.remoting.bodies`).

Source: docs/internals/remoting.md, "JSON bodies"; RocketMQ ConsumeType, MessageModel, ConsumeFromWhere,
TopicFilterType.
"""

from typing import Annotated

import msgspec

INT32_MAX = (1 << 31) - 1
Int32 = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=INT32_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Ranges of Java's int and long."""
ENUM = "enum"
"""Key of the names in an enum's annotation."""

ConsumeType = Annotated[
    str | None, msgspec.Meta(extra={ENUM: ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")})
]
MessageModel = Annotated[str | None, msgspec.Meta(extra={ENUM: ("BROADCASTING", "CLUSTERING")})]
ConsumeFromWhere = Annotated[
    str | None,
    msgspec.Meta(
        extra={
            ENUM: (
                "CONSUME_FROM_LAST_OFFSET",
                "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
                "CONSUME_FROM_MIN_OFFSET",
                "CONSUME_FROM_MAX_OFFSET",
                "CONSUME_FROM_FIRST_OFFSET",
                "CONSUME_FROM_TIMESTAMP",
            )
        }
    ),
]
TopicFilterType = Annotated[str, msgspec.Meta(extra={ENUM: ("SINGLE_TAG", "MULTI_TAG")})]
