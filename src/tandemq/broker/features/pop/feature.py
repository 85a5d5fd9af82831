"""POP consumption as a feature."""

from tandemq.broker.features.pop.acks import Acks
from tandemq.broker.features.pop.assignment import Assignment
from tandemq.broker.features.pop.families import PopFamilies
from tandemq.broker.features.pop.in_flight import InFlight
from tandemq.broker.features.pop.orders import Orders
from tandemq.broker.features.pop.processor import PopProcessor
from tandemq.broker.features.pop.request_modes import RequestModes
from tandemq.broker.features.pop.revive import Revival
from tandemq.broker.features.pop.revive_queue import ReviveQueues
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.quotas import Quotas


def build(kernel: Kernel) -> tuple[Feature, ...]:
    """Build what takes pops and acknowledgements, and what brings messages back."""
    queues = ReviveQueues(kernel)
    revival = Revival(kernel, queues)
    modes = RequestModes(kernel)
    orders = Orders(kernel)
    in_flight = InFlight(kernel.features.find(Quotas))
    pops = PopProcessor(kernel, queues, revival, orders, in_flight)
    acks = Acks(kernel, queues, orders, in_flight, pops.wake)
    families = PopFamilies(pops, acks, revival)
    return acks, pops, revival, orders, modes, Assignment(kernel, modes), families
