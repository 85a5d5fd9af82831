"""`python -m tests.versions.planted …`: this tree with an incompatible table, which tests of versions have to notice.

The file of consumer offsets has `topic|group` in place of RocketMQ's `topic@group`. Every version opens it, and finds
the offsets of no group that it knows.
"""

from __future__ import annotations

from typing import Any

from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.cli.main import main as tandemq
from tests.versions.world import TREE

_content = ConsumerOffsets._content


def _other_content(self: ConsumerOffsets) -> dict[str, Any]:
    found = _content(self)
    return found | {"offsetTable": {key.replace("@", "|"): queues for key, queues in found["offsetTable"].items()}}


PLANTED = TREE._replace(name="this tree, planted", program=("-m", "tests.versions.planted"))

if __name__ == "__main__":
    ConsumerOffsets._content = _other_content  # type: ignore[method-assign]
    tandemq(prog_name="tandemq")
