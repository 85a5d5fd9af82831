"""What every machine of one client shares: its links, routes, timers, who said no, and who it is."""

from dataclasses import dataclass
from random import Random

from tandemq.client.calls import Timers
from tandemq.client.ids import UniqueKeys
from tandemq.client.links import Links
from tandemq.client.routes import Routes
from tandemq.client.settings import ClientConfig
from tandemq.client.standing import Standing
from tandemq.client.steps import Runner


@dataclass(frozen=True, slots=True)
class Kit:
    """One per node; machines get it whole."""

    config: ClientConfig
    links: Links
    timers: Timers
    runner: Runner
    routes: Routes
    standing: Standing
    keys: UniqueKeys
    random: Random
