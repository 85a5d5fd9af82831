"""How long a run takes: for `--list`, and so that the default cells stay within 50 minutes.

Durations of loads are known; those of starts, fills and ends are rounded up from runs on two cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.cells import JAVA, OURS, RATES, SESSIONS, Cell, Session
from bench.matrix import PULL_LOADS
from bench.setting import Pace

_OUR_START_S, _JAVA_START_S = 1.5, 4.0  # Of a broker and its name server, and their end.
_LOAD_START_S = 1.2  # A generator's process, the frames that it renders, its connections.
_CEILINGS_S = 15.0  # Of the generator alone.
_FILL_MB_PER_S = {OURS: 120.0, **dict.fromkeys(JAVA, 60.0)}  # 1 KiB, or varied messages in batches.
_COPY_MB_PER_S = 150.0
_VERIFY_MB_PER_S = 300.0
_CLIENT_MESSAGES_PER_S = 30_000.0
_JAVA_FILL_MESSAGES_PER_S = {OURS: 150_000.0, **dict.fromkeys(JAVA, 45_000.0)}
_IDLE_CONNECTIONS_PER_S = 1_500.0
_TOPICS_PER_S = 250.0
_SEEDS_PER_S = 5.0
_FAILOVER_S = 15.0
_FILL_SERIES_S = 3.0
_PAIRS_OF_WINDOWS_S = 50.0
_START_AND_SEND_S = 3.0
_REST_S = 12.0
_DELIVER_S = 9.0  # The lead of a cell, and what is delivered after it.


def seconds(cells: Iterable[Cell], servers: Sequence[str], pace: Pace) -> float:
    """Return the estimated duration of one round."""
    return _CEILINGS_S + sum(by_session(cells, servers, pace).values())


def by_session(cells: Iterable[Cell], servers: Sequence[str], pace: Pace) -> dict[Session, float]:
    """Return the estimated duration of each session that has cells, on all servers."""
    found: dict[Session, float] = {}
    cells = list(cells)
    for session in SESSIONS:
        for server in servers:
            chosen = [cell for cell in cells if cell.session == session and cell.is_measured_on(server)]
            if chosen:
                found[session] = found.get(session, 0.0) + _session(session, server, chosen, pace)
    return found


def _session(session: Session, server: str, cells: list[Cell], pace: Pace) -> float:
    start = _JAVA_START_S if server in JAVA else _OUR_START_S
    warm_up = pace.warmup_java_s if server in JAVA else pace.warmup_ours_s
    names = [cell.name for cell in cells]
    match session:
        case "send" | "flush" | "pair":
            starts = start * 2 if session == "pair" else start
            return starts + warm_up + len(cells) * (pace.load_s + _LOAD_START_S)
        case "deliver":
            return start + len(cells) * (warm_up / 2 + 2 * pace.measure_s + pace.settle_s + _DELIVER_S)
        case "read":
            return start + warm_up + _reads(server, names, pace)
        case "live":
            rates = [rate for rate in RATES if any(name.startswith(f"e2e/{rate}/") for name in names)]
            groups = {name.split("/")[1] for name in names if name.startswith("live/")}
            one = pace.latency_s + 2 * pace.settle_s + 2 * _LOAD_START_S + 5.0
            return start + warm_up + len(groups) * one + len(rates) * (one + pace.settle_s)
        case "java":
            filled = pace.java_messages / _JAVA_FILL_MESSAGES_PER_S[server] if "java/consumer" in names else 0.0
            return start + len(cells) * (pace.java_s + 2.0) + filled
        case "rest":
            idle = pace.idle_connections / _IDLE_CONNECTIONS_PER_S if "rest/rss-10k" in names else 0.0
            return pace.replays * _START_AND_SEND_S + _REST_S + pace.idle_s + idle
        case "store":
            return start + _store(server, names, pace)
        case "beside":
            works = len({name.split("/")[1] for name in names})
            load = pace.latency_s + 3 * pace.settle_s + _LOAD_START_S + 2.0
            return works * (start + _megabytes(pace.store_bytes) / 4 / _FILL_MB_PER_S[server] + load)
        case "failover":
            return 2 * start + _FAILOVER_S
        case "client":
            filled = _megabytes(pace.client_messages * 1224) / _FILL_MB_PER_S[server]
            return start + filled + 2 * pace.client_messages / _CLIENT_MESSAGES_PER_S
        case "topics":
            return start + 2 * pace.topics / _TOPICS_PER_S
        case "metrics":
            return start + warm_up + _FILL_SERIES_S + _PAIRS_OF_WINDOWS_S + 12.0
        case "sim":
            return pace.seeds / _SEEDS_PER_S


def _reads(server: str, names: list[str], pace: Pace) -> float:
    loads = [PULL_LOADS[name] for name in names if name in PULL_LOADS]
    stores = max(1, len({(load.lengths, load.layout) for load in loads}))
    filled = stores * (_megabytes(pace.read_bytes) / _FILL_MB_PER_S[server] + _LOAD_START_S + 2.0)
    copies = pace.replays * 2.0 if "ha" in names else 0.0
    return filled + copies + len(loads) * (pace.load_s + _LOAD_START_S)


def _store(server: str, names: list[str], pace: Pace) -> float:
    largest = pace.store_bytes if {"store/recovery", "store/verify"} & {*names} else pace.copy_bytes
    total = _megabytes(largest) / _FILL_MB_PER_S[server]
    if "store/slave" in names:
        copied = _megabytes(pace.copy_bytes)
        total += 2 * (copied / _COPY_MB_PER_S + _JAVA_START_S) + copied / _VERIFY_MB_PER_S
    if "store/recovery" in names:
        total += 5.0
    if "store/verify" in names:
        total += _megabytes(pace.store_bytes) / _VERIFY_MB_PER_S
    return total


def _megabytes(size: int) -> float:
    return size / 1e6


def minutes_text(total: float) -> str:
    """Return whole minutes for people, rounded up."""
    minutes = math.ceil(total / 60)
    return f"about {minutes} minute{'' if minutes == 1 else 's'}"
