"""Text is read and written in an explicit encoding, as the locale's may be ASCII."""

import ast

from tests.support.sources import sources, tree

PACKAGES = ("engine", "kernels", "matrix", "reports", "ci", "benchmarks", "specmatrix", "examples", "tools")
RUNS = ("run", "Popen", "check_output")


def opens_text(call: ast.Call) -> bool:
    """Whether a call opens a file or a pipe as text."""
    words = {word.arg: word.value for word in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in RUNS:
        return isinstance(words.get("text"), ast.Constant) and words["text"].value is True
    if name in ("read_text", "write_text"):
        # `reports.atomic.write_text`, a plain function, always writes UTF-8.
        return isinstance(call.func, ast.Attribute)
    if name != "open":
        return False
    at = 0 if isinstance(call.func, ast.Attribute) else 1
    # A ledger opens accounts, and the operating system descriptors.
    mode = words.get("mode", call.args[at] if len(call.args) > at else ast.Constant("r"))
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value


def test_text_has_an_encoding():
    unstated = {
        f"{path}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and opens_text(node) and "encoding" not in {word.arg for word in node.keywords}
    }
    assert not unstated
