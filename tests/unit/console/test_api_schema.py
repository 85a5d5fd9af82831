"""The OpenAPI document against the running application: requests made from the document, valid and invalid ones.

Checked for each response: its status, content type and schema are described; valid requests are not refused as
malformed, invalid ones are; without a token nothing is answered.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.client.aio.admin import Admin
from tandemq.client.aio.producer import Producer
from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.access.rate_limit import RateLimit
from tandemq.console.api.operation import Operation
from tandemq.console.api.routes import OPERATIONS
from tandemq.console.app import build_app
from tandemq.console.operations import broker_groups
from tandemq.console.services import Console, ConsoleSettings, wall_ms
from tandemq.groupdb.audit import Actor
from tandemq.groupdb.database import GroupDatabase
from tandemq.model.message import MessageQueue
from tests.samples import slow
from tests.spec import spec
from tests.unit.console.conftest import PASSWORD
from tests.unit.console.fakes import FakeAdmin, FakeProducer, stored

EXAMPLES = (4, slow(40))
"""Requests per operation and mode."""
RATE = 1e9
"""Requests per second of the token: the limit is another test's subject."""
CONFIG = {
    "checks": {
        # 422: of the described form, and refused for what it says, for instance a confirmation that is another text.
        "positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "422"]},
        "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "415"]},
    }
}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The document, as the application serves it, with a token of an admin."""
    url = f"sqlite:///{tmp_path_factory.mktemp('schema') / 'groups.db'}"
    with GroupDatabase(url) as database, pytest.MonkeyPatch.context() as patch:
        queue = MessageQueue("Orders", "broker-a", 0)
        cluster = FakeAdmin(
            messages=[stored("Orders", n) for n in range(5)],
            groups_progress={"billing": {queue: ConsumeProgress(5, 2, 1_700_000_000_000)}},
        )
        options = ConsoleSettings(hosts=frozenset({"testserver"}), api_per_s=RATE)
        console = Console(options, database, cast(Admin, cluster), "10.0.0.1:9876")
        console.refused_tokens = RateLimit(RATE, 1_000)
        console._producer = cast(Producer, FakeProducer())
        console.accounts.add("ada", ConsoleRole.ADMIN, PASSWORD, Actor("test"), wall_ms())
        secret, _ = console.tokens.create("ada", "test", ConsoleRole.ADMIN, 1, Actor("test"), wall_ms())
        patch.setattr(broker_groups, "SERVED_S", 0.01)
        config = SchemathesisConfig.from_dict({**CONFIG, "headers": {"Authorization": f"Bearer {secret}"}})
        document = schemathesis.openapi.from_asgi("/api/v1/openapi.json", build_app(console), config=config)
        yield document


@spec("C07")
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_application_does_what_the_document_says(
    described: Any, examples: int, operation: Operation, mode: GenerationMode
) -> None:
    one = described[operation.path][operation.method]

    @given(case=one.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        assume(mode is GenerationMode.NEGATIVE or "%" not in str(case.path_parameters))  # the client decodes it twice
        case.call_and_validate()

    try:
        check()
    except Unsatisfiable:  # there is nothing that could be malformed: no parameters, no body
        assert mode is GenerationMode.NEGATIVE and not operation.types.keys() - {"return"}
