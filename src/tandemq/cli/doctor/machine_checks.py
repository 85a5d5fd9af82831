"""Checks of this machine: limits, memory, clock, Python, engine. Source: docs/guides/operations.md, "System limits"."""

from collections.abc import Iterator

from tandemq.cli.doctor.findings import DoctorFinding, ok, problem, warning
from tandemq.cli.doctor.machine_facts import UNLIMITED, MachineFacts

NOFILE_MIN = 4_096
"""Open files of a busy broker; docs/guides/operations.md, "System limits"."""
NOFILE_LEAST = 1_024
FILES_USED_MAX = 0.8
MAP_COUNT_MIN = 65_530
BACKLOG_MIN = 1_024
"""As many connections may wait to be accepted."""
SWAP_USED_MAX = 0.1
"""Part of the memory."""
MEMORY_FREE_MIN = 0.05


def machine_findings(facts: MachineFacts, *, brokers: int = 1) -> Iterator[DoctorFinding]:
    """Check a machine; `brokers`: how many run on it, the shards of one."""
    yield _open_files(facts)
    yield from _kernel(facts, brokers)
    if brokers > 1:
        text = f"{brokers} shards on {facts.cores} cores"
        todo = "set shards to the number of cores or less: each shard uses one"
        is_over = brokers > facts.cores
        yield warning("cores", "shards", text, todo) if is_over else ok("cores", "shards", text)
    yield from _memory(facts)
    if facts.is_clock_synchronised is False:
        yield warning(
            "clock",
            "this machine",
            "the clock is not synchronised: times of messages and timers deviate from those of other machines",
            "run a time service such as chrony or systemd-timesyncd",
        )
    elif facts.is_clock_synchronised:
        yield ok("clock", "this machine", "the clock is synchronised")
    yield ok("python", "this machine", facts.python)
    yield _engine(facts)


def _open_files(facts: MachineFacts) -> DoctorFinding:
    soft, hard = (("unlimited" if n >= UNLIMITED else f"{n:,}") for n in (facts.nofile_soft, facts.nofile_hard))
    text = f"soft limit {soft}, hard limit {hard}; brokers raise theirs to the hard limit"
    todo = "set LimitNOFILE=1048576 in the unit of systemd, or raise nofile in /etc/security/limits.conf"
    if facts.nofile_hard < NOFILE_LEAST:
        return problem("open-files", "ulimit -Hn", text, todo)
    if facts.nofile_hard < NOFILE_MIN:
        return warning("open-files", "ulimit -Hn", f"{text}; a busy broker needs at least {NOFILE_MIN:,}", todo)
    return ok("open-files", "ulimit -Hn", text)


def _kernel(facts: MachineFacts, brokers: int) -> Iterator[DoctorFinding]:
    if facts.files_open is not None and facts.files_max:
        text = f"{facts.files_open:,} files are open of at most {facts.files_max:,}"
        is_scarce = facts.files_open > FILES_USED_MAX * facts.files_max or facts.files_max < brokers * NOFILE_MIN
        todo = "sysctl -w fs.file-max=NUMBER, and write it to /etc/sysctl.d"
        yield warning("file-max", "fs.file-max", text, todo) if is_scarce else ok("file-max", "fs.file-max", text)
    for check, name, value, least, why in (
        ("max-map-count", "vm.max_map_count", facts.map_count_max, MAP_COUNT_MIN, "log files are mapped for reading"),
        ("somaxconn", "net.core.somaxconn", facts.backlog_max, BACKLOG_MIN, "so many connections wait to be accepted"),
    ):
        if value is not None and value < least:
            todo = f"sysctl -w {name}={least}, and write it to /etc/sysctl.d"
            yield warning(check, name, f"{value:,}, less than {least:,}: {why}", todo)
        elif value is not None:
            yield ok(check, name, f"{value:,}")
    if facts.overcommit == 2:  # see MachineFacts
        yield warning(
            "overcommit",
            "vm.overcommit_memory",
            "2: the system refuses memory that is not reserved, and a broker that gets none stops",
            "sysctl -w vm.overcommit_memory=0, unless enough memory and swap are reserved",
        )


def _memory(facts: MachineFacts) -> Iterator[DoctorFinding]:
    if facts.memory_kib and facts.memory_free_kib is not None:
        text = f"{facts.memory_free_kib / (1 << 20):.1f} of {facts.memory_kib / (1 << 20):.1f} GiB are available"
        is_scarce = facts.memory_free_kib < MEMORY_FREE_MIN * facts.memory_kib
        todo = "stop other programs, or add memory: a broker needs the file cache"
        yield warning("memory", "this machine", text, todo) if is_scarce else ok("memory", "this machine", text)
    if facts.memory_kib and facts.swap_used_kib > SWAP_USED_MAX * facts.memory_kib:
        yield warning(
            "swap",
            "vm.swappiness",
            f"{facts.swap_used_kib / (1 << 20):.1f} GiB are swapped out: a swapped broker misses its lease",
            "add memory, or sysctl -w vm.swappiness=1",
        )
    elif facts.swap_kib:
        yield ok("swap", "this machine", f"{facts.swap_used_kib / (1 << 20):.1f} GiB are swapped out")
    if facts.huge_pages:
        yield ok("huge-pages", "transparent_hugepage", f"{facts.huge_pages}; brokers work with any choice")


def _engine(facts: MachineFacts) -> DoctorFinding:
    if facts.engine == "compiled":
        return ok("engine", "this installation", "the compiled engine is used")
    if facts.engine_choice == "python":
        text, todo = "TANDEMQ_ENGINE=python selects the engine in Python", "unset TANDEMQ_ENGINE"
    else:
        text = "the compiled engine is missing"
        todo = "install the wheel of this platform; in a checkout run make setup with a C compiler"
    return warning("engine", "this installation", f"{text}: a send costs about 15 times as much CPU time", todo)
