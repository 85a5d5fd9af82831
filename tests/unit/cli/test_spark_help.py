"""Help texts of `tandemq spark`: options that take a URL say so, and the others name what they take."""

import click
import pytest

from tandemq.cli.spark.commands import spark
from tandemq.cli.support.paths import LakePath


@pytest.mark.parametrize("name", sorted(spark.commands))
def test_help_names_a_directory_a_file_or_a_url(name: str) -> None:
    command = spark.commands[name]
    context = click.Context(command, info_name=name)
    for one in command.params:
        shown = one.make_metavar(context)
        if isinstance(one, click.Argument):
            assert shown.strip(".[]").isalpha(), f"{one.name}: {shown}"
        elif isinstance(one.type, LakePath):
            assert shown == "DIRECTORY|URL", one.name
        elif isinstance(one.type, click.Path):
            assert shown in ("DIRECTORY", "FILE"), f"{one.name}: {shown}"


def test_help_of_remove_shows_that_a_lake_may_be_at_a_url() -> None:
    shown = spark.commands["remove"].get_help(click.Context(spark.commands["remove"], info_name="remove"))
    assert "--lake DIRECTORY|URL" in shown
    assert "--log DIRECTORY|URL" in shown
