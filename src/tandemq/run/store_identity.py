"""Whose store a directory is: written at the first start, checked at every other one.

A broker that opened another one's store by mistake would register that one's topics as its own and hand out its
messages; a slave's store under a master's name may lack what was acknowledged. RocketMQ does not write this file and
does not mind it; a directory without it (RocketMQ's, or one from a backup) is taken over.
"""

import json

from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.real.disk import RealDisk

FILE = "tandemq.identity"


def claim(disk: RealDisk, config: BrokerConfig) -> None:
    """Check that a store is this broker's, or make it so if it is nobody's.

    Raises:
        ConfigError: it is another broker's.
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
                f"{disk.root / FILE} cannot be read, so it is unknown whose store this is",
                hint=f"if it is {config.broker_name}/{config.broker_id}'s, delete the file",
            )
        if found == own:
            return
        whose = f"{found.get('brokerClusterName')}/{found.get('brokerName')}/{found.get('brokerId')}"
        raise ConfigError(
            f"{disk.root} is the store of {whose}, this broker is "
            f"{config.cluster}/{config.broker_name}/{config.broker_id}",
            hint=f"set storePathRootDir to its own directory; to give it this store for good, delete {FILE} there",
        )
    disk.replace(FILE, json.dumps(own).encode() + b"\n")
