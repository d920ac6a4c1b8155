"""`fleet completion`: what a shell needs to complete the command line."""

import click

VARIABLE = "_FLEET_COMPLETE"  # click's own: the script calls `fleet` with it

_PLACES = """\b
Where it goes:
  bash: fleet completion bash > ~/.local/share/bash-completion/completions/fleet
  zsh:  fleet completion zsh > DIRECTORY/_fleet, in a directory of $fpath
  fish: fleet completion fish > ~/.config/fish/completions/fleet.fish"""


@click.command(epilog=_PLACES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script that lets a shell complete nouns, verbs, options and their values."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click knows the three
    click.echo(kind(ctx.find_root().command, {}, "fleet", VARIABLE).source(), nl=False)
