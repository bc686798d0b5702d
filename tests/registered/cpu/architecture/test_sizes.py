"""A file holds one idea, and a function fits on a screen."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest

from tests.support.sources import PACKAGES, source, sources, tree

CODE_LINES = 400
FUNCTION_LINES = 60
FOLDERS = (*PACKAGES, "specmatrix", "examples", "tools", "tests")


def code_lines(text: str) -> int:
    """Lines that hold code: no blank lines, comments or docstrings."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    lines: set[int] = set()
    fresh = True  # at the start of a statement
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in skipped:
            fresh = fresh or token.type == tokenize.NEWLINE
        elif token.type == tokenize.STRING and fresh:
            continue  # a statement that starts with a string is a docstring
        else:
            fresh = False
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def test_code_lines_are_counted_without_comments_and_docstrings():
    text = '"""Doc.\n\nMore."""\n\nimport re\n\n# why\ndef f(x):\n    """Doc."""\n'
    text += '    return """a\nb""", [\n        x,\n    ]\n'
    assert code_lines(text) == 6


@pytest.mark.parametrize("package", FOLDERS)
def test_a_file_holds_one_idea(package):
    sizes = {p: code_lines(source(p)) for p in sources(package)}
    assert not {p: n for p, n in sizes.items() if n > CODE_LINES}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_function_fits_on_a_screen(package):
    long = []
    for path in sources(package):
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES:
                    long.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    assert not long
