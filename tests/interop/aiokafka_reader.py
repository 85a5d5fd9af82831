"""aiokafka as a reader, run by the environment that has it.

    aiokafka_reader.py BOOTSTRAP TOPIC COUNT [CA CERT KEY | USER PASSWORD]

It assigns all partitions and prints their bounds, then COUNT messages from the start, as lines of JSON.
"""

import asyncio
import json
import ssl
import sys

import aiokafka


async def main(bootstrap: str, topic: str, count: str, *proofs: str) -> None:
    """Read and print."""
    options: dict[str, object] = {}
    if len(proofs) == 2:
        user, password = proofs
        options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
        options |= {"sasl_plain_username": user, "sasl_plain_password": password}
    elif proofs:
        ca, cert, private = proofs
        context = ssl.create_default_context(cafile=ca)
        context.load_cert_chain(cert, private)
        options = {"security_protocol": "SSL", "ssl_context": context}
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", **options
    )
    async with consumer:
        parts = sorted(consumer.assignment())
        first, end = await consumer.beginning_offsets(parts), await consumer.end_offsets(parts)
        print(json.dumps([[part.partition, first[part], end[part]] for part in parts]), flush=True)
        for _ in range(int(count)):
            message = await consumer.getone()
            headers = {name: value.decode() for name, value in message.headers}
            key = None if message.key is None else message.key.decode()
            print(
                json.dumps(
                    [message.partition, message.offset, message.timestamp, key, message.value.decode(), headers]
                ),
                flush=True,
            )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
