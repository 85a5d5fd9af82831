"""What the tests of the engine share."""

from collections.abc import Iterator

import pytest

from tandemq.broker.features.sends.processor import SendPath
from tests.unit.broker.features.sends.messages import Count
from tests.unit.engine.modules import compiled_engine


@pytest.fixture
def by_engine() -> Iterator[Count]:
    """Count the messages that the engine takes; the test fails if the compiled one should be there and is not."""
    compiled_engine()
    count = Count()
    with pytest.MonkeyPatch.context() as patch:
        store = SendPath.store_waiting

        def counting(self: SendPath) -> None:
            count.messages += self._engine.count
            store(self)

        patch.setattr(SendPath, "store_waiting", counting)
        yield count
