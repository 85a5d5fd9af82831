"""What our client gives to the engine: messages of an application, and frames of brokers."""

from random import Random
from typing import Any

from tandemq.codec.remoting.frame import encode_command
from tandemq.model.command import FLAG_RESPONSE, Command
from tandemq.model.message import Message
from tests.fuzz.values import BORN_MS, ODD_NUMBERS, ODD_TOPICS, TOPICS, WORDS

HEAD = b'{"code":310,"extFields":{"a":"group"'
_ODD: tuple[Any, ...] = (
    None,
    0,
    1 << 70,
    -1,
    b"b",
    "x\x01",
    "a\x02",
    " a",
    "a|b",
    "\ud800",
    ["k"],
    {"": "v"},
    {1: "v"},
    True,
)
_FIELDS = ("topic", "body", "tags", "keys", "properties", "delay_level", "flag", "wait_store_ok", "delay", "priority")
_NUMBERS = (*("0", "3", "12") * 20, *ODD_NUMBERS)


def message(random: Random) -> Message:
    """Return a message, perhaps with a field that its constructor would refuse."""
    words = [random.choice(WORDS) for _ in range(4)]
    made = Message("T", random.randbytes(random.randrange(60)))
    made.topic = random.choice((*TOPICS, random.choice(ODD_TOPICS)))
    made.tags, made.keys = random.choice(("", words[0])), random.choice(((), tuple(words[1:3])))
    made.properties = dict.fromkeys(words[: random.randrange(4)], words[3])
    made.flag, made.wait_store_ok = random.choice((0, 0, -1, 1 << 31)), random.random() < 0.9
    if random.random() < 0.3:
        setattr(made, random.choice(_FIELDS), random.choice(_ODD))
    return made


def calls(random: Random) -> list[tuple[str, tuple[Any, ...]]]:
    """Return calls of the functions for new messages, by name and arguments."""
    made, key = message(random), random.choice(("7F00" * 8, random.choice(WORDS), random.choice(_ODD)))
    limit, opaque = random.choice((0, 40, 4096)), random.getrandbits(31)
    number = random.getrandbits(63) - (1 << 62)
    text = random.choice(WORDS) + random.choice(WORDS) + "\x01\x02"
    return [
        ("plain_properties", (made, key, limit)),
        ("batch_part", (made, key, limit)),
        ("plain_frame", (made, key, limit, HEAD, BORN_MS, opaque)),
        ("send_fields", (HEAD, number, BORN_MS, number, text, number)),
        ("json_frame", (HEAD, opaque, random.randbytes(random.randrange(60)))),
        ("unique_key", ("7F", number, opaque)),
    ]


def response(random: Random) -> bytes:
    """Return the frame of a response to a send."""
    fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": random.choice(_NUMBERS)}
    fields["queueOffset"] = random.choice(_NUMBERS)
    for name in random.sample(("MSG_REGION", "TRACE_ON", "transactionId", "recallHandle"), random.randrange(3)):
        fields[name] = random.choice((*("DefaultRegion",) * 20, *WORDS))
    code, flag = random.choice((*(0,) * 20, 10, 1)), random.choice((*(FLAG_RESPONSE,) * 20, 0, 3))
    body = random.choice((*(b"",) * 20, b"body"))
    return encode_command(
        Command(code, random.getrandbits(31), flag, None, fields, body, binary=random.random() < 0.05)
    )
