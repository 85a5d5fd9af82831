"""The root command. Groups of commands are loaded on first use, so that a broker starts quickly."""

import importlib
import logging
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from tandemq import __version__
from tandemq.cli.support.advice import advised
from tandemq.cli.support.exit_codes import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from tandemq.cli.support.inherited import check_inherited, remember
from tandemq.cli.support.log_format import BoundedFormatter
from tandemq.cli.support.tls import tls_options
from tandemq.errors import ConfigError, TandemError

COMMANDS = {
    "acl": ("tandemq.cli.admin.acl:acl", "Manage users, and what each may do."),
    "bench": ("tandemq.cli.bench:bench", "Put load on one broker and measure its throughput."),
    "broker": ("tandemq.cli.serve:broker", "Run one broker, or shards of one, until SIGTERM or SIGINT."),
    "cluster": (
        "tandemq.cli.admin.cluster:cluster",
        "List brokers, change their settings, spread topics over new broker groups, drain old ones.",
    ),
    "completion": (
        "tandemq.cli.completion:completion",
        "Print the script with which SHELL completes commands, options and names.",
    ),
    "console": ("tandemq.cli.console:console", "Serve web pages on which operators watch and change a cluster."),
    "demo": ("tandemq.cli.demo:demo", "Send real messages, kill a master, and verify that no message is lost."),
    "doctor": (
        "tandemq.cli.doctor.commands:doctor",
        "Check this machine and, with --namesrv, the cluster: what is wrong, where, and what to do.",
    ),
    "group": ("tandemq.cli.admin.group:group", "Create, delete, list and show consumer groups."),
    "ha": (
        "tandemq.cli.ha.commands:ha",
        "Show replication and roles, switch masters, compare replicas, configure groups.",
    ),
    "health": ("tandemq.cli.health:health", "Check that processes serve, by their ports for metrics."),
    "kafka": ("tandemq.cli.kafka:kafka", "Serve topics to Kafka consumers, read-only, until SIGTERM or SIGINT."),
    "log": ("tandemq.cli.log.commands:log", "Read, check and repair a store directory."),
    "message": ("tandemq.cli.admin.message:message", "Send, recall, follow and look up messages."),
    "namesrv": ("tandemq.cli.serve:namesrv", "Run one name server until SIGTERM or SIGINT."),
    "offset": ("tandemq.cli.admin.offset:offset", "Show and reset the offsets of a consumer group."),
    "proxy": ("tandemq.cli.serve:proxy", "Run a proxy for gRPC clients until SIGTERM or SIGINT."),
    "quota": ("tandemq.cli.admin.quota:quota", "Limit what users, topics and consumer groups may use."),
    "spark": ("tandemq.cli.spark.commands:spark", "Archive, check and measure logs with Spark."),
    "top": ("tandemq.cli.top:top", "Show brokers and consumer groups with lag and rates until Ctrl-C or q."),
    "topic": ("tandemq.cli.admin.topic:topic", "Create, delete, list and show topics."),
    "up": ("tandemq.cli.up:up", "Run a cluster on this machine until Ctrl-C; its data are kept."),
}
"""Import path and summary of each command, so that the list of commands is printed without loading them."""

COMPLETE_VARIABLE = "_TANDEMQ_COMPLETE"
"""Environment variable by which the script of `tandemq completion` asks for completions."""


class _Commands(MutableMapping[str, click.Command]):
    """Commands by name, imported on first use."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module, _, attribute = COMMANDS[name][0].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            assert isinstance(command, click.Command), f"{COMMANDS[name][0]} is not a command"
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Root(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Complete the names of commands without loading them, and options."""
        found = [
            CompletionItem(name, help=summary) for name, (_, summary) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; options before its name must be among its own."""
        check_inherited(ctx, [*ctx._protected_args, *ctx.args])  # noqa: SLF001  # click keeps the first word there
        return super().invoke(ctx)

    def main(  # type: ignore[override]  # the arguments between these two are passed on by name
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line; print an error as one line and exit with its code."""
        extra.setdefault("complete_var", COMPLETE_VARIABLE)
        if COMPLETE_VARIABLE in os.environ:
            importlib.import_module("tandemq.cli.completion")  # has the words of Bash
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
        except (click.exceptions.Abort, KeyboardInterrupt):
            sys.exit(EXIT_INTERRUPTED)
        except click.ClickException as error:
            error.show()
            sys.exit(error.exit_code)
        except ConfigError as error:
            sys.exit(_say(error, EXIT_USAGE))
        except BrokenPipeError:
            # The reader of the output has closed the pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except (TandemError, OSError) as error:
            sys.exit(_say(error, EXIT_FAILED))
        sys.exit(code if isinstance(code, int) else 0)


def _say(error: Exception, code: int) -> int:
    if isinstance(error, TandemError):
        advised(error)
    for line in str(error).splitlines() or [type(error).__name__]:
        click.echo(f"tandemq: {line}", err=True)
    return code


def _show_version(context: click.Context, _parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        from tandemq.engine import NAME  # noqa: PLC0415  # not needed otherwise

        click.echo(f"tandemq {__version__}, {NAME} engine")
        context.exit()


@click.group(cls=_Root, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show the version."
)
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
@click.option(
    "--namesrv",
    "-n",
    metavar="HOST:PORT;…",
    expose_value=False,
    callback=remember,
    help="Name servers, for commands with this option.",
)
@click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=remember,
    help="Print JSON, with commands that have this option.",
)
@tls_options
def main(verbose: bool) -> None:
    """TandemQ: a message broker compatible with Apache RocketMQ, with byte-for-byte replication.

    Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 a check found faults.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(BoundedFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler])
