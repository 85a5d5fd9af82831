"""One broker: bytes of connections in, one commit per turn, bytes out.

Source: docs/reference/requests.md; RocketMQ BrokerController.
"""

import logging
from collections.abc import Sequence

from tandemq.boundary import Closed, Event, HandshakeFailed, JobDone, LinkKind, Now, Opened, Turn
from tandemq.broker.connections.farewell import Farewell
from tandemq.broker.kernel.connection import pack_host
from tandemq.broker.parts import BrokerParts
from tandemq.broker.roles.registry_role import RegistryRole
from tandemq.config.settings import BrokerConfig
from tandemq.errors import StoreError

log = logging.getLogger(__name__)


class Broker(BrokerParts):
    """The broker as a plain object; see `boundary.Node`."""

    faults = 0
    """Connections closed because of errors of our own."""
    _farewell: Farewell | None = None
    """Set by `stop`: from then on requests of clients are only refused, with GO_AWAY."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self.current.config

    @property
    def is_master(self) -> bool:
        """Whether this broker's log is the one that is replicated."""
        return self.current_turn.serving.is_master

    @property
    def is_elect(self) -> bool:
        """Whether masters of the group are elected, so that messages wait for every member in sync."""
        return self.current_turn.serving.is_elect

    @property
    def failover(self) -> RegistryRole | None:
        """The role, for observers, if a registry decides it."""
        return self.role if isinstance(self.role, RegistryRole) else None

    def listening(self, address: str, ha_address: str, now: Now) -> None:
        """Record the advertised addresses, "ip:port", once the ports are bound."""
        self.registration.listening(address, ha_address)
        self.role.listening(address, ha_address, now)
        self.send.set_store_host(pack_host(address))
        self.schedule.every(
            lambda: self.config.register_ms,
            lambda at: self.registration.register(self.current_turn.out, at),
            first_ms=now.mono_ms,
        )

    # A turn.

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`."""
        turn = self.current_turn.out = Turn()
        self.current_turn.commit = self._commit
        if self._farewell is not None:
            self._turn_away(self._farewell, received, events)
            return turn
        self._serve(turn, now)
        for event in events:
            if not isinstance(event, Closed):
                self._on_event(event, turn, now)
        self._decide(turn, now)
        for begin in self.features.begin_turn:
            begin(turn, now)
        self._receive(received, turn, now)
        self.housekeeping.make_room(turn, now)
        self.send.store_waiting()
        for event in events:
            if isinstance(event, Closed):
                self._on_closed(event, turn, now)
        self._run_due(turn, now)
        self._decide(turn, now)
        self._commit(now)
        self.role.before_copy(now)
        self.replication.after_commit(turn, now)
        self.role.after_commit(turn, now)
        self._serve(turn, now)
        self.acknowledgements.release(turn, now)
        self.pull.show(self.store.take_woken())
        self.pull.answer_woken(turn)
        if self.registration.is_due:
            self.registration.register_changes(turn, now)
        saving = self.saver.begin(self._tables_saved)
        if saving is not None:
            turn.jobs.append(saving)
        return turn

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        if self._farewell is not None:
            return None
        times = (
            self.schedule.next_ms(),
            self.peers.deadline_ms(),
            self.acknowledgements.waiters.deadline_ms(),
            self.role.deadline_ms(),
            *self.features.deadlines_ms(),
        )
        return min([time for time in times if time is not None], default=None)

    def turn_took(self, duration_ns: int) -> None:
        """See `telemetry.collection.MonitoredNode`."""
        self.request_metrics.turn_took(duration_ns)

    def not_ready(self, now: Now) -> list[str]:
        """See `telemetry.collection.MonitoredNode`."""
        return self.readiness.reasons(now)

    # What this broker may do.

    def _decide(self, turn: Turn, now: Now) -> None:
        """Have the role decide by the events and reports so far."""
        self.role = self.role.tick(turn, now)
        self._serve(turn, now)

    def _serve(self, turn: Turn, now: Now) -> None:
        """Take the verdict of the role as of now, and have the parts follow it."""
        before, serving = self.current_turn.serving, self.role.serving(now)
        if serving is before:
            return
        self.current_turn.serving = serving
        if not serving.is_same_service(before):
            for follow in self.features.on_serving_change:
                follow(before, serving, turn, now)

    # What arrives.

    def _receive(self, received: Sequence[tuple[int, bytes]], turn: Turn, now: Now) -> None:
        """Take what other nodes sent, then the requests of clients for as long as the turn may take."""
        links = self.links
        from_clients = [piece for piece in received if piece[0] in links]
        if len(from_clients) < len(received):
            for piece in received:
                if piece[0] not in links:
                    self._take(*piece, turn, now)
            self._serve(turn, now)
        turn.unread = self.budget.serve(from_clients, lambda number, data: self._take(number, data, turn, now))

    def _take(self, number: int, data: bytes, turn: Turn, now: Now) -> bytes:
        """Take bytes of any connection; return those that are left for the next turn."""
        link = self.links.get(number)
        try:
            if link is not None:
                return self.dispatcher.receive(link, data, turn, now, self.budget.is_over)
            self._take_from_node(number, data, turn, now)
        except Exception:  # the outermost loop of a connection: an error there ends that connection only
            log.exception("link: %d closed, an error of ours", number)
            self.faults += 1
            self.send.drop_link(number)
            turn.closes.append((number, "an error of ours"))
            if link is not None:
                link.is_closed = True
        return b""

    def _take_from_node(self, number: int, data: bytes, turn: Turn, now: Now) -> None:
        self.send.store_waiting()
        if self.replication.owns(number):
            self.replication.received(number, data, turn, now)
        elif self.peers.owns(number):
            self.peers.received(number, data, turn, now)
        elif self.role.owns(number):
            self.role.received(number, data, turn, now)

    def _run_due(self, turn: Turn, now: Now) -> None:
        self.schedule.run_due(now)
        self.peers.expire(turn, now)
        for run_due in self.features.run_due:
            run_due(turn, now)

    def _commit(self, now: Now) -> None:
        """Write the messages of this turn to the log, and begin what their responses wait for."""
        turn = self.current_turn.out
        needed = self.topics.needed_change(self.store.touched)
        for before_commit in self.features.before_commit:
            before_commit(now)
        acks = self.send.take_acks()
        try:
            written = self.store.commit()
            self._serve(turn, now)
            for committed in self.features.committed:
                committed(now)
        except StoreError as error:
            for failed in self.features.failed:
                failed()
            self.upkeep.write_failures.note(error, now)
            self.store.take_woken()
            self.acknowledgements.failed(acks, error, turn)
            return
        if written and self.upkeep.write_failures.count:
            self.upkeep.write_failures.over(now)
        if self.flush.is_sync or self.acknowledgements.waits_for_records:
            self.flush.begin(now)
        if acks:
            self.acknowledgements.committed(acks, needed, turn, now)

    # Events.

    def _on_event(self, event: Event, turn: Turn, now: Now) -> None:
        if self.role.on_event(event, turn, now):
            return
        if isinstance(event, Opened):
            if self.peers.owns(event.link):
                self.peers.opened(event.link, event.local, turn)
            elif event.kind in (LinkKind.HA_MASTER, LinkKind.HA_SLAVE):
                self.replication.opened(event, now)
            elif event.kind in (LinkKind.REMOTING, LinkKind.FAST):
                self.links[event.link] = self.housekeeping.opened(event, now)
        elif isinstance(event, JobDone):
            event.job.done(event, turn, now)
        elif isinstance(event, HandshakeFailed):
            self.replication.handshake_failed(event, now)

    def _tables_saved(self, event: JobDone, turn: Turn, now: Now) -> None:
        self.saver.job_done(event.error)
        self.role.tables_saved(self.saver.settled, event.error, now)
        self.acknowledgements.saved(event.error, turn, now)

    def _on_closed(self, event: Closed, turn: Turn, now: Now) -> None:
        if self.role.on_event(event, turn, now):
            return
        if self.peers.owns(event.link):
            self.registration.closed(self.peers.closed(event.link, now), now)
        elif self.replication.owns(event.link):
            self.replication.closed(event.link, event.reason, now)
        elif self.links.pop(event.link, None) is not None:
            self.role.drop_link(event.link)
            for link_closed in self.features.link_closed:
                link_closed(event.link, turn, now)

    # Stopping.

    def stop(self, now: Now) -> Turn:
        """Unregister at the name servers and the registry. Call `close` once the bytes have left.

        Until then turns answer clients with GO_AWAY, and do nothing else.
        """
        turn = self.current_turn.out = Turn()
        self.registration.unregister(turn)
        self.role.close(turn, now)
        self._farewell = Farewell(self.links, self.pull.held, turn)
        return turn

    @property
    def is_left(self) -> bool:
        """Whether, after `stop`, all clients that understand GO_AWAY have got it."""
        return self._farewell is not None and self._farewell.is_over

    def _turn_away(self, farewell: Farewell, received: Sequence[tuple[int, bytes]], events: Sequence[Event]) -> None:
        for number, data in received:
            farewell.receive(number, data, self.current_turn.out)
        for event in events:
            if isinstance(event, Closed):
                farewell.closed(event.link)

    def close(self) -> None:
        """Save everything and close the store cleanly.

        Raises:
            StoreError: something could not be written; the next start will check the log.
        """
        if self._farewell is not None:
            log.info("broker: clients sent away, %d requests answered GO_AWAY", self._farewell.answers)
        for save in self.features.save_tables:
            save()
        self.offsets.save()
        self.topics.save()
        self.groups.save()
        self.saver.finish()
        for close in self.features.close:
            close()
        self.store.close()
