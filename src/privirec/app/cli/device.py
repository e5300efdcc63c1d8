"""`privirec device`: the page and the policy of a person's own device."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from privirec.errors import UsageError
from privirec.privacy.policy import Policy
from privirec.rows import say

app = typer.Typer(
    help="Manage your own device: its page and its policy.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def page(
    client: Annotated[
        Path | None, typer.Argument(help="The client's folder.", metavar="[CLIENT]")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="Store to use instead; without CLIENT, a page without a federation."
        ),
    ] = None,
    artifact: Annotated[
        Path | None,
        typer.Option("--artifact", help="Model to use instead of the one in the client's folder."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            "--user", help="User whose history to show, if there are several.", show_default=False
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any free one.")
    ] = 0,
) -> None:
    """Serve your own page on this machine until interrupted.

    The page shows your recommendations with their reasons, your history, the data that left the
    device, the privacy budget and the policy. Open the printed address: it contains a token that
    gives access to you alone. The page needs no server and makes no requests to the network.

    Examples:

      privirec device page client

      privirec device page --store me.db --artifact my-model
    """
    from privirec.app.own_device import OwnDevice  # noqa: PLC0415
    from privirec.app.pages.person import PersonSite  # noqa: PLC0415 - not needed for --help
    from privirec.app.pages.web import serve  # noqa: PLC0415

    serve(PersonSite(OwnDevice.at(client, store, artifact, user)), port)


@app.command()
def policy(
    client: Annotated[Path, typer.Argument(help="The client's folder.", metavar="CLIENT")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change NAME=VALUE in policy.toml; may be given several times."),
    ] = None,
) -> None:
    """Explain in plain words what a client agrees to, after applying any changes.

    Examples:

      privirec device policy client --set takes_part=false

      privirec device policy client --set most_epsilon=4 --set 'computations=["item-degrees"]'
    """
    from privirec.app import own_policy  # noqa: PLC0415
    from privirec.runtime.enrolment.folders import ClientFolder  # noqa: PLC0415

    _ = ClientFolder(client).identity  # raises an error if this is not a client's folder
    changes = {}
    for each in settings or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"{each!r} is not NAME=VALUE")
        changes[name.strip()] = own_policy.from_text(value.strip())
    if changes:
        for line in own_policy.change(client, changes) or ["Nothing was changed."]:
            say(line)
    for sentence in own_policy.in_words(Policy.load(client / own_policy.FILE)):
        say(sentence)
