"""Operators' requests.

Source: docs/requests.md, "administration".
"""

from typing import TYPE_CHECKING

from tandemq.model.codes import RequestCode as Code

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    return {}
