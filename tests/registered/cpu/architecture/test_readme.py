"""What the README tells to type exists: every command, and every option behind it."""

from __future__ import annotations

import re

import pytest
import typer.main

from specmatrix import HOME
from specmatrix.cli import app
from specmatrix.matrix.cli.commands.flags import FLAGS

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")

TEXT = (HOME / "README.md").read_text(encoding="utf-8")
# The rest of a line of code, of a word in backticks or of a cell of a table.
CALL = re.compile(r"(?:`|\$ |^)specmatrix ((?:\\\||[^`|\n])+)", re.MULTILINE)
CALLS = [match[1].replace("\\|", "|") for match in CALL.finditer(TEXT)]


def found(call: str) -> tuple[list[str], set[str]]:
    """The names of the command in a call, and the options that it takes."""
    node, names, words = typer.main.get_command(app), [], re.findall(r"[\w-]+", call)
    while words and words[0] in getattr(node, "commands", {}):
        names.append(words[0])
        node = node.commands[words.pop(0)]
    return names, {option for parameter in node.params for option in parameter.opts}


def test_the_readme_has_every_command():
    shown = {found(call)[0][0] for call in CALLS if found(call)[0]}
    assert shown == set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("call", dict.fromkeys(CALLS))
def test_commands_and_options_of_the_readme_exist(call):
    names, options = found(call)
    assert names, f"specmatrix {call}"
    assert set(re.findall(r"--[a-z][\w-]*", call)) <= options | set(FLAGS)
