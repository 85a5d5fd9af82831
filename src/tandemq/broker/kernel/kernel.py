"""What features are built from."""

from dataclasses import dataclass

from tandemq.boundary import Disk, Now, Outbox
from tandemq.broker.kernel.context import CurrentConfig, CurrentTurn
from tandemq.broker.kernel.puts import Puts
from tandemq.broker.kernel.verification import Verification
from tandemq.broker.state.clients import Clients
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.damage_table import Damages
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.schedule import Schedule
from tandemq.broker.state.topics import Topics
from tandemq.storage.store import Store


@dataclass(frozen=True, slots=True)
class Kernel:
    """The services of a broker that its features share."""

    disk: Disk
    """The store directory."""
    store: Store
    """The log, and the queues and the index over it."""
    saver: Saver
    """Tables below `config/`."""
    topics: Topics
    offsets: ConsumerOffsets
    clients: Clients
    """Producers and consumers that are connected."""
    damages: Damages
    """Damaged ranges of the log."""
    verification: Verification
    puts: Puts
    """What stores messages, and refuses them."""
    schedule: Schedule
    current: CurrentConfig
    turn: CurrentTurn
    outbox: Outbox
    """Bytes that wait to leave on a connection."""
    began: Now
    """When the broker was started."""
