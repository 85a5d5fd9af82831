"""The state of replication, as operators ask for it.

Source: docs/reference/requests.md, "runtime figures"; RocketMQ HARuntimeInfo, AdminBrokerProcessor.
"""

from tandemq.boundary import Now
from tandemq.broker.ha.service import Replication
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.fastjson import dumps
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.replication.master import MasterSessionState
from tandemq.replication.slave import SlaveSessionState

SECOND_MS = 1_000


class ReplicationStatus(Feature):
    """Handle requests for the state of replication and the history of the log."""

    def __init__(self, kernel: Kernel, replication: Replication) -> None:
        """Count transferred bytes each second."""
        self._store = kernel.store
        self._turn = kernel.turn
        self._current = kernel.current
        self._replication = replication
        self._rates: dict[int, int] = {}
        """Bytes of the last second by replication connection: sent to a slave, or received from a master."""
        self._transferred: dict[int, int] = {}
        kernel.every(SECOND_MS, self._each_second)

    def _each_second(self, _now: Now) -> None:
        before, self._transferred = self._transferred, self._replication.transferred()
        self._rates = {link: count - before.get(link, 0) for link, count in self._transferred.items()}

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.GET_BROKER_HA_STATUS: Request(self._on_replication),
            Code.GET_BROKER_EPOCH_CACHE: Request(self._on_generations),
        }

    def figures(self, _now: Now) -> dict[str, str]:
        """See `Feature`; this key is TandemQ's own."""
        return {"haRefusedTimes": str(self._refused_times())}

    def _on_generations(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Return the generations of the log under RocketMQ's names; one ends where the next begins."""
        config, end = self._current.config, self._store.log.written_end
        pairs = self._replication.generations
        bounds = [*(start for _, start in pairs), end]
        table = {
            "clusterName": config.cluster,
            "brokerName": config.broker_name,
            "brokerId": config.broker_id,
            "maxOffset": end,
            "epochList": [
                {"epoch": epoch, "startOffset": start, "endOffset": stop}
                for (epoch, start), stop in zip(pairs, bounds[1:], strict=True)
            ],
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps(table))

    def _on_replication(self, _link: Link, command: Command, now: Now) -> Command | None:
        is_master = self._turn.serving.is_master
        slaves = self._slaves(now) if is_master else []
        body = {
            "master": is_master,
            "masterCommitLogMaxOffset": self._store.log.written_end if is_master else 0,
            "inSyncSlaveNums": sum(bool(slave["inSync"]) for slave in slaves),
            "haConnectionInfo": slaves,
            "haClientRuntimeInfo": self._connection_to_master(now),
            "refusedTimes": self._refused_times(),
        }
        return command.answer(ResponseCode.SUCCESS, body=dumps(body))

    def _slaves(self, now: Now) -> list[dict[str, object]]:
        """Return the state of the slaves' connections; broker id, security and both times are TandemQ's own keys."""
        calendar = now.wall_ms - now.mono_ms
        masters, end = self._replication.masters, self._store.log.written_end
        found: list[dict[str, object]] = []
        for link, session in masters.sessions.items():
            if session.state is not MasterSessionState.TRANSFER:
                continue
            acked = max(0, session.acked_offset)
            found.append(
                {
                    "addr": masters.peers[link],
                    "diff": end - acked,
                    "inSync": end - acked < self._current.config.ha_lag_bytes_max,
                    "slaveAckOffset": acked,
                    "transferFromWhere": max(0, session.next_offset),
                    "transferredByteInSecond": self._rates.get(link, 0),
                    "brokerId": session.hello.broker_id if session.hello is not None else -1,
                    "authenticated": session.is_authenticated,
                    "tls": session.tls,
                    "lastReadTimestamp": calendar + session.last_read_ms,
                    "lastWriteTimestamp": calendar + session.last_write_ms,
                }
            )
        return found

    def _refused_times(self) -> int:
        """Return the number of replication connections refused here or by the master since the start; TandemQ's own."""
        both = self._replication
        return both.masters.refusals.count + (both.slave.refusals.count if both.slave is not None else 0)

    def _connection_to_master(self, now: Now) -> dict[str, object]:
        """Return the state of the connection to the master; all zero on a master, which has none."""
        own = self._replication.slave
        session = own.session if own is not None else None
        calendar = now.wall_ms - now.mono_ms
        return {
            "activated": session is not None and session.state is SlaveSessionState.TRANSFER,
            "authenticated": session is not None and session.is_authenticated,
            "tls": session.tls if session is not None else "",
            "lastReadTimestamp": calendar + session.last_read_ms if session is not None else 0,
            "lastWriteTimestamp": calendar + session.last_write_ms if session is not None else 0,
            "masterAddr": own.ha_address if own is not None else "",
            "masterFlushOffset": 0,
            "maxOffset": self._store.log.written_end if own is not None else 0,
            "transferredByteInSecond": self._rates.get(own.link, 0) if own is not None else 0,
        }
