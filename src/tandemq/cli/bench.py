"""`tandemq bench`: load one broker with the project's load generator, which runs in a process of its own."""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Self

import click

from tandemq.cli.support.output import json_option, show_json
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, LocalError

BAR_WIDTH = 40
address_argument = click.argument("address", default="127.0.0.1:10911")
seconds_option = click.option(
    "--seconds",
    default=5.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Duration of the measurement.",
)
warmup_option = click.option(
    "--warmup",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds of the same load before the measurement.",
)
topic_option = click.option("--topic", default="TandemQBench", show_default=True, help="Topic; created if needed.")
queues_option = click.option(
    "--queues", default=8, show_default=True, type=click.IntRange(1), help="Number of queues used, of each topic."
)
topics_option = click.option(
    "--topics",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Number of topics; with more than one their names are --topic with -0, -1 and so on.",
)
group_option = click.option("--group", default="", help="Producer or consumer group, instead of the generator's own.")
FORMS = ("json", "v5", "binary", "v1")


@click.group()
def bench() -> None:
    """Put load on one broker and measure its throughput.

    ADDRESS is the host:port of a broker; for replicate, of its replication port.
    """


@bench.command()
@address_argument
@topic_option
@queues_option
@topics_option
@click.option(
    "--form",
    default="json",
    show_default=True,
    type=click.Choice(FORMS),
    help="Form of a request: SEND_MESSAGE_V2 as a 4.9 client or as a 5.x client writes it, the same with a binary "
    "header, or SEND_MESSAGE (10).",
)
@click.option(
    "--lengths",
    default="one",
    show_default=True,
    type=click.Choice(("one", "varied")),
    help="varied: bodies of 128 to 896 bytes, keys, tags and a property that differ from message to message, random "
    "queues; --body and --tag are ignored.",
)
@click.option(
    "--body", default=1024, show_default=True, type=click.IntRange(1), help="Body size of a message in bytes."
)
@click.option("--tag", default="", help="Tag of all messages.")
@click.option(
    "--delay", default=0, show_default=True, type=click.IntRange(0, 18), help="Delay level of the messages; 0: none."
)
@click.option(
    "--delay-s",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Seconds until the delivery of the messages, as timed ones; 0: none.",
)
@click.option(
    "--half",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1),
    help="1: transactions, a half message and its commit each.",
)
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1), help="Messages per request.")
@click.option("--connections", default=16, show_default=True, type=click.IntRange(1), help="Number of connections.")
@click.option(
    "--window", default=32, show_default=True, type=click.IntRange(1), help="Requests in flight per connection."
)
@click.option(
    "--count", default=0, type=click.IntRange(0), help="Stop after this number of messages instead of after --seconds."
)
@click.option(
    "--rate", default=0.0, type=click.FloatRange(0), help="Messages per second at most; 0: as fast as acknowledged."
)
@click.option("--broker", "broker_name", default="broker-a", show_default=True, help="Name of the broker group.")
@group_option
@seconds_option
@warmup_option
@json_option
def produce(address: str, as_json: bool, **options: Any) -> None:
    """Send messages as fast as the broker acknowledges them, or at a rate."""
    if options["batch"] > 1 and (options["delay"] or options["delay_s"]):
        raise click.UsageError("a batch cannot be delayed: --delay and --delay-s need --batch 1")
    if options["half"] and (options["batch"] > 1 or options["delay"] or options["delay_s"]):
        raise click.UsageError(
            "a transaction is one message without a delay: --half needs no --batch, --delay or --delay-s"
        )
    result = _run("produce", address, _with_tls(options), as_json=as_json)
    if as_json:
        show_json(result)
        return
    click.echo(
        f"{result['messages']:,} messages in {result['seconds']:.2f} s: "
        f"{result['messages_per_s']:,.0f} per second, "
        f"{result['mb_per_s']:,.1f} MB/s of bodies"
    )
    _show_latency(result["latency"])
    if result["refused"]:
        click.echo(f"refused, by response code: {result['refused']}; the first: {result['first_refusal']}")
    click.echo(f"the generator used {result['cpu_share']:.0%} of one core")


@bench.command()
@address_argument
@topic_option
@queues_option
@topics_option
@click.option(
    "--expression", default="*", show_default=True, help='Tags of the messages to be delivered, as in "paid || audit".'
)
@click.option(
    "--expression-type",
    default="TAG",
    show_default=True,
    type=click.Choice(("TAG", "SQL92")),
    help="SQL92: --expression is a filter over properties.",
)
@click.option("--connections", default=4, show_default=True, type=click.IntRange(1), help="Number of connections.")
@click.option("--max-messages", default=32, show_default=True, type=click.IntRange(1), help="Messages per pull.")
@click.option("--window", default=32, show_default=True, type=click.IntRange(1), help="Pulls in flight per connection.")
@group_option
@seconds_option
@warmup_option
@json_option
def consume(address: str, as_json: bool, **options: Any) -> None:
    """Pull all messages of a topic, repeatedly."""
    result = _run("consume", address, _with_tls(options), as_json=as_json)
    if as_json:
        show_json(result)
        return
    click.echo(
        f"{result['messages']:,} messages in {result['seconds']:.2f} s: "
        f"{result['messages_per_s']:,.0f} per second, "
        f"{result['mb_per_s']:,.1f} MB/s of records"
    )
    click.echo(f"{result['pulls']:,} pulls, {result['passes']} passes over all queues")
    click.echo(f"the generator used {result['cpu_share']:.0%} of one core")


@bench.command()
@click.argument("address", default="127.0.0.1:10912")
@click.option(
    "--start", default=0, type=click.IntRange(0), help="Log offset of the first record; 0: start of the last file."
)
@click.option("--end", default=0, type=click.IntRange(0), help="Stop at this log offset; 0: only after --seconds.")
@click.option(
    "--seconds", default=10.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Maximum duration."
)
@json_option
def replicate(address: str, as_json: bool, **options: Any) -> None:
    """Copy the log as a slave of the classic protocol, which the master must accept (haClassicPeers)."""
    result = _run("replicate", address, options, as_json=as_json)
    if as_json:
        show_json(result)
        return
    click.echo(
        f"{result['bytes'] / 1e6:,.1f} MB in {result['seconds']:.2f} s: {result['mb_per_s']:,.1f} MB/s, "
        f"log offsets {result['start_offset']} to {result['end_offset']}"
    )
    click.echo(f"the generator used {result['cpu_share']:.0%} of one core")


def _with_tls(options: dict[str, Any]) -> dict[str, Any]:
    tls = client_tls()
    if tls is None:
        return options
    if tls.key_password:
        raise ConfigError("the load generator reads keys without a password only")
    return options | {"tls": json.dumps(asdict(tls))}


def _run(kind: str, address: str, options: dict[str, Any], *, as_json: bool) -> dict[str, Any]:
    """Run the generator, show its progress and return its result.

    Raises:
        LocalError: the generator failed.
    """
    words = [sys.executable, "-m", "tandemq.load", "--progress", kind, address]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    last_line = ""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None and process.stdout is not None
        with _Progress(silent=as_json) as progress:
            for line in process.stderr:
                if not progress.show(line):
                    last_line = line.strip()
        output = process.stdout.read()
    if process.returncode:
        raise LocalError(last_line or f"the generator exited with code {process.returncode}")
    result = json.loads(output)
    assert isinstance(result, dict)
    return result


class _Progress:
    """Progress of the generator: one updated line on a terminal, a line per report elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._status: Any = None

    def __enter__(self) -> Self:
        if not self._silent and sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415  # only for a terminal

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, line: str) -> bool:
        """Show a line of the generator if it is a progress report; return whether it is one."""
        if not line.startswith("{"):
            return False
        report = json.loads(line)
        text = (
            f"{report['phase']}: {report['elapsed_s']:.1f} s, {report['done']:,} done, {report['rate']:,.0f} per second"
        )
        if self._status is not None:
            self._status.update(text)
        elif not self._silent:
            click.echo(text, err=True)
        return True


def _show_latency(latency: dict[str, Any]) -> None:
    click.echo("latency, milliseconds:")
    points = {name: value for name, value in latency.items() if name.endswith("_ms") and isinstance(value, int | float)}
    most = max(points.values(), default=0) or 1
    for name, value in points.items():
        click.echo(f"  {name.removesuffix('_ms'):>6} {value:>10.3f} {'█' * max(1, round(BAR_WIDTH * value / most))}")
