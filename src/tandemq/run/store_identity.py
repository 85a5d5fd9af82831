"""Identity file of a store: the broker that owns it, written at the first start and checked at every later one.

A broker that opened another broker's store by mistake would register its topics and deliver its messages; a slave's
store used as a master's may lack acknowledged messages. RocketMQ neither writes nor reads this file; a store without it
(RocketMQ's, or one from a backup) is accepted and gets one.
"""

import json

from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.real.disk import RealDisk

FILE = "tandemq.identity"


def claim(disk: RealDisk, config: BrokerConfig) -> None:
    """Check that a store belongs to this broker; write the identity file if there is none.

    Raises:
        ConfigError: the store belongs to another broker, or the file is malformed.
        DiskFull, DiskFailed: the file cannot be read or written.
    """
    own = {
        "brokerClusterName": config.cluster,
        "brokerName": config.broker_name,
        "brokerId": config.broker_id,
    }
    data = disk.read(FILE)
    if data:
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ConfigError(
                f"{disk.root / FILE} is malformed, so the owner of this store is unknown",
                hint=f"if the store belongs to {config.broker_name}/{config.broker_id}, delete the file",
            )
        if found == own:
            return
        owner = f"{found.get('brokerClusterName')}/{found.get('brokerName')}/{found.get('brokerId')}"
        raise ConfigError(
            f"{disk.root} is the store of {owner}, this broker is "
            f"{config.cluster}/{config.broker_name}/{config.broker_id}",
            hint=f"set storePathRootDir to its own directory; to assign this store to it, delete {FILE} there",
        )
    disk.replace(FILE, json.dumps(own).encode() + b"\n")
