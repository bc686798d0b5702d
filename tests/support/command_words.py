"""The CLI's own parser, for commands that a page or a workflow names."""

from __future__ import annotations

from typing import Any

from specmatrix.cli import command_line


def parsed(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The names of a command and its options; an unknown one raises."""
    node, names, rest = command_line(), [], [*words]
    while hasattr(node, "commands") and (rest or not node.invoke_without_command):
        names.append(rest.pop(0))
        node = node.commands[names[-1]]
    return names, node.make_context(names[-1], rest).params
