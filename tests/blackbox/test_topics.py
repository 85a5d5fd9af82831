"""Topics that a killed broker has answered for are there after its start."""

import json
import random
import threading
from contextlib import suppress

from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode, ResponseCode
from tests.blackbox.pair import Start
from tests.blackbox.programs import Caller, Program

_KILLS = 3
_TOPIC = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102", "order": "false"}


def _create_until_it_dies(broker: Program, prefix: str, answered: set[str], deleted: set[str]) -> None:
    with suppress(NetworkError), Caller(broker.port) as caller:
        for number in range(100_000):
            name = f"{prefix}-{number}"
            fields = {key: str(value) for key, value in _TOPIC.items()} | {"topic": name}
            if caller.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS:
                answered.add(name)
            if number % 20 == 19:
                answered.discard(name)
                if caller.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": name}).code == ResponseCode.SUCCESS:
                    deleted.add(name)


def test_every_answered_topic_survives_kills_at_any_moment(start: Start) -> None:
    broker, answered, deleted, dice = start("broker"), set[str](), set[str](), random.Random(7)
    for kill in range(_KILLS):
        creators = [
            threading.Thread(target=_create_until_it_dies, args=(broker, f"t{kill}-{number}", answered, deleted))
            for number in range(2)
        ]
        for creator in creators:
            creator.start()
        killer = threading.Timer(dice.uniform(0.2, 1.0), broker.process.kill)
        killer.start()
        for thread in (killer, *creators):
            thread.join()
        broker.kill()
        broker.start()
        with Caller(broker.port) as caller:
            body = caller.ask(RequestCode.GET_ALL_TOPIC_CONFIG).body
            found = json.loads(body)["topicConfigTable"]
        assert answered <= found.keys()
        assert not deleted & found.keys()
    assert len(answered) > 50
    assert broker.stop() == 0
    config = broker.directory / "store" / "config"
    assert answered <= json.loads((config / "topics.json").read_text(encoding="utf-8"))["topicConfigTable"].keys()
    assert not list(config.glob("topics.changes-*"))
