"""`tandemq completion`: script with which a shell completes commands, options and names of a cluster."""

import os
from collections.abc import Sequence

import click
from click.shell_completion import BashComplete, add_completion_class, get_completion_class, split_arg_string

_BREAKS = ":="


class _Bash(BashComplete):
    """Completion for Bash, which splits host:port and --option=value into several words."""

    name = "bash"

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to be completed, and that word."""
        words, position = split_arg_string(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
        typed = words[: position + 1] + [""] * (position >= len(words))
        *before, incomplete = rejoined(typed)
        return before[1:], incomplete


def rejoined(words: Sequence[str]) -> list[str]:
    """Join words that Bash has split at a colon or an equals sign."""
    found: list[str] = []
    is_open = False
    for word in words:
        is_break = bool(word) and not word.strip(_BREAKS)
        if found and (is_break or is_open):
            found[-1] += word
        else:
            found.append(word)
        is_open = is_break
    return found


add_completion_class(_Bash)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script with which SHELL completes commands, options and names.

    Topics, groups, brokers and clusters are those of --namesrv or TANDEMQ_NAMESRV; if no name server answers within a
    second, they are not completed.

    \b
    bash: source <(tandemq completion bash)  in ~/.bashrc
    zsh:  tandemq completion zsh > "${fpath[1]}/_tandemq"
    fish: tandemq completion fish > ~/.config/fish/completions/tandemq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, f"click has no completion for {shell}"
    from tandemq.cli.main import COMPLETE_VARIABLE  # noqa: PLC0415  # main loads commands when they are used

    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "tandemq", COMPLETE_VARIABLE).source())
