"""What every machine of one client shares: its links, routes, timers, who said no, and who it is."""

from dataclasses import dataclass
from random import Random

from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import OperationRunner
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ClientConfig
from tandemq.client.producer.unique_keys import UniqueKeys


@dataclass(frozen=True, slots=True)
class Kit:
    """One per node; machines get it whole."""

    config: ClientConfig
    links: RemotingClient
    timers: Timers
    runner: OperationRunner
    routes: Routes
    standing: BrokerAvailability
    keys: UniqueKeys
    random: Random
