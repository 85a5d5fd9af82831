"""`tandemq doctor`: checks this machine, a broker's settings, and a running cluster."""

import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tandemq.cli.doctor.findings import DoctorFinding, Level, counted, counts, ok, problem, warning
from tandemq.cli.support import registries
from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.exit_codes import EXIT_FAULTS
from tandemq.cli.support.inherited import InheritedOption
from tandemq.cli.support.members import GroupSearch
from tandemq.cli.support.output import echo_wrapped, json_option, plain, show_json
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, LocalError

if TYPE_CHECKING:
    from tandemq.config.settings import BrokerConfig

_WIDTH = len(Level.WARNING)


@click.command()
@click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Also check these settings of a broker, TOML or broker.conf, with their files, ports and store.",
)
@click.option(
    "--address",
    "addresses",
    multiple=True,
    metavar="HOST:PORT",
    help="Also check the group of this broker; repeatable.",
)
@registries.registry_option(f"Also check this registry, and find members there: {registries.ADDRESSES}.")
@click.option(
    "--namesrv",
    "-n",
    "name_servers",
    cls=InheritedOption,
    envvar="TANDEMQ_NAMESRV",
    show_envvar=True,
    help="Also check the cluster of these name servers, host:port;host:port.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print warnings and problems only.")
@json_option
def doctor(
    path: Path | None,
    addresses: tuple[str, ...],
    registry: str | None,
    name_servers: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Check this machine and, with --namesrv, the cluster: what is wrong, where, and what to do.

    Of the machine: limits, memory, clock, Python, engine, and the directory of the store. With --config: settings,
    ports, secrets and advertised addresses of that broker, and its registry. With --namesrv, TANDEMQ_NAMESRV, or the
    name servers of --config: name servers, health of all groups, addresses, clocks, versions and secrets of their
    brokers.

    Exit code 3 if there is a problem; warnings do not count.
    """
    config, findings = _settings(path)
    findings += list(_of_machine(config))
    servers = name_servers or (";".join(config.name_servers) if config is not None else "")
    secret = "" if config is None else config.ha_secret_file
    if of_config := registry or (config.registry_address if config is not None else ""):
        findings += list(_of_registry(of_config, registries.secret_file() or secret))
    if servers or addresses or registry:
        findings += list(_of_cluster(GroupSearch(addresses, registry, servers), secret))
    if as_json:
        numbers = {f"{level.value}s" if level is not Level.OK else "ok": n for level, n in counts(findings).items()}
        show_json(numbers | {"findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings, is_quiet=quiet)
    return EXIT_FAULTS if counts(findings)[Level.PROBLEM] else 0


def _settings(path: Path | None) -> "tuple[BrokerConfig | None, list[DoctorFinding]]":
    """Return the settings of a file, None if they cannot be used, and what is wrong with them."""
    from tandemq.config.files import load_broker_config  # noqa: PLC0415  # not for --help

    if path is None:
        return None, []
    texts: list[str] = []
    try:
        config = load_broker_config(path.read_text(encoding="utf-8"), path=str(path), warn=texts.append)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        text = str(error.args[0]) if isinstance(error, ConfigError) else f"{path} cannot be read: {error}"
        hint = error.hint if isinstance(error, ConfigError) else ""
        return None, [problem("settings", str(path), text, hint or "correct the file")]
    findings = [warning("settings", str(path), text, "correct or remove the setting") for text in texts]
    return config, findings or [ok("settings", str(path), f"valid, broker {config.broker_name}/{config.broker_id}")]


def _of_machine(config: "BrokerConfig | None") -> Iterator[DoctorFinding]:
    from tandemq.cli.doctor.machine_checks import machine_findings  # noqa: PLC0415  # not for --help
    from tandemq.cli.doctor.machine_facts import read_machine  # noqa: PLC0415
    from tandemq.cli.doctor.settings_checks import settings_findings  # noqa: PLC0415
    from tandemq.cli.doctor.store_checks import read_store, store_findings  # noqa: PLC0415
    from tandemq.config.settings import BrokerConfig  # noqa: PLC0415
    from tandemq.config.shards import shard_name, shard_store  # noqa: PLC0415

    used = config or BrokerConfig()
    yield from machine_findings(read_machine(), brokers=used.shards)
    running = set()
    for number in range(used.shards):
        path = shard_store(used.store_path, number)
        try:
            facts = read_store(Path(path))
        except OSError as error:
            yield problem("store", path, str(error.strerror), "correct storePathRootDir or its permissions")
            continue
        if facts.is_in_use:
            running.add(shard_name(used.broker_name, number))
        yield from store_findings(facts, used_max=used.disk_used_ratio_max / 100, full=used.disk_full_ratio)
    if config is not None:
        yield from settings_findings(config, running=running)


def _of_registry(text: str, secret_file: str) -> Iterator[DoctorFinding]:
    from tandemq.cli.doctor.registry_checks import registry_findings  # noqa: PLC0415  # not for --help
    from tandemq.registry import parse_address  # noqa: PLC0415

    try:
        address = parse_address(text)
    except LocalError as error:
        yield problem("registry", text, str(error.args[0]), error.hint)
        return
    with quiet():
        yield from registry_findings(address, secret_file=secret_file, tls=client_tls())


def _of_cluster(search: GroupSearch, secret_file: str) -> Iterator[DoctorFinding]:
    from tandemq.cli.doctor.cluster_checks import cluster_findings, read_cluster  # noqa: PLC0415  # not for --help

    logger = logging.getLogger("tandemq")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield from cluster_findings(read_cluster(search, secret_file))
    finally:
        logger.setLevel(before)


def _print(findings: list[DoctorFinding], *, is_quiet: bool) -> None:
    for finding in findings:
        if is_quiet and finding.level is Level.OK:
            continue
        indent = " " * (_WIDTH + 2)
        text = plain(f"{finding.level.value:<{_WIDTH}}  {finding.check}, {finding.where}: {finding.text}")
        echo_wrapped(text, indent=indent)
        if finding.todo:
            echo_wrapped(f"{indent}→ {plain(finding.todo)}", indent=f"{indent}  ")
    found = counts(findings)
    click.echo(
        f"{counted(found[Level.PROBLEM], 'problem')}, {counted(found[Level.WARNING], 'warning')}, {found[Level.OK]} ok"
    )
