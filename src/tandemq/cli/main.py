"""The root command; every group of commands is loaded when it is used, so that starting a broker stays quick."""

import importlib
import logging
import sys

import click

from tandemq import __version__
from tandemq.errors import ConfigError, TandemError

COMMANDS = {
    "broker": "tandemq.cli.serve:broker",
    "demo": "tandemq.cli.demo:demo",
    "namesrv": "tandemq.cli.serve:namesrv",
}
EXIT_FAILED = 1
EXIT_USAGE = 2


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        place = COMMANDS.get(name)
        if place is None:
            return None
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{place} is no command"
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tandemq")
@click.option("--verbose", "-v", is_flag=True, help="Log more.")
def root(verbose: bool) -> None:
    """TandemQ: a message broker whose replica is a byte-for-byte twin of its master."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )


def main() -> None:
    """Entry point: errors become one line and an exit code."""
    try:
        root(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except ConfigError as error:
        click.echo(f"tandemq: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except TandemError as error:
        click.echo(f"tandemq: {error}", err=True)
        sys.exit(EXIT_FAILED)
