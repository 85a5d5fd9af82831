"""Half messages and their ends."""

from random import Random

from tandemq.codec.record.record import encode_host, encode_record
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.topic import HALF_TOPIC
from tests.fuzz.frames import GROUP, Frames
from tests.fuzz.values import BORN_MS


def end_frame(random: Random, frames: Frames, queue_offset: int, log_offset: int, key: str) -> bytes:
    """Return the end of a transaction."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(log_offset),
        "commitOrRollback": random.choice(("8", "8", "12")),
        "fromTransactionCheck": random.choice(("true", "false")),
        "msgId": key,
        "transactionId": key,
    }
    flag = FLAG_ONEWAY if random.random() < 0.3 else 0
    is_binary = random.random() < 0.3
    return encode_command(Command(RequestCode.END_TRANSACTION, frames.opaque(), flag, fields=fields, binary=is_binary))


def half_message(random: Random, frames: Frames, log_offset: int, queue_offset: int, key: str) -> bytes:
    """Return the record of a half message, now and then with odd properties."""
    properties = {
        "UNIQ_KEY": key,
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "TAGS": random.choice(("a", "é")),
        "KEYS": "a b",
        "REAL_TOPIC": random.choice(("T", "Other", "Long" + 123 * "g", "No")),
        "REAL_QID": str(random.choice((0, 1, 2, 3, 99))),
    }
    if frames.odd(10.0):
        name = random.choice((*properties, "DELAY", "CHECK_IMMUNITY_TIME_IN_SECONDS", "__CRC32#"))
        properties[name] = random.choice(("", "x", "007", "\x01", "T" * 200))
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    return encode_record(
        topic=HALF_TOPIC.encode(),
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=frames.body(),
        properties=(text if not frames.odd(5.0) else text[:-1]).encode(),
        flag=random.randrange(3),
        sys_flag=random.choice((0, 0, 1)),
        born_ms=BORN_MS,
        born_host=encode_host(bytes(random.choice((4, 4, 16))), 9),
        store_ms=BORN_MS,
        store_host=encode_host(bytes(random.choice((4, 4, 16))), 8),
        reconsume_times=random.randrange(3),
    )
