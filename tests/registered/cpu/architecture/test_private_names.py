"""Tests use the public interface of what they test; private names may change at any time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.support.sources import sources, tree

# Public by their documentation, whatever their first letter says: methods of a NamedTuple, os._exit, an operation of
# torch.
PUBLIC = {"_replace", "_asdict", "_make", "_fields", "_exit", "_to_copy"}
CPU = "tests/registered/cpu"
# A test file and the names that it cannot do without.
ALLOWED: dict[str, set[str]] = {
    # Planted faults: a step inside of what is tested goes wrong.
    f"{CPU}/behaviour/engine/test_sessions.py": {"_slots_at"},
    f"{CPU}/behaviour/engine/test_ngram.py": {"_read", "_draft"},
    f"{CPU}/behaviour/matrix/test_sweep.py": {"_line"},
    f"{CPU}/unit/matrix/subjects/test_in_process.py": {"_round"},
    # An interrupt between two instructions of the engine has no public place to come from.
    f"{CPU}/behaviour/engine/test_interrupts.py": {"_set"},
    # What is counted is how often these are called or filled.
    f"{CPU}/unit/benchmarks/test_trace.py": {"_profiled"},
    # Tables that the first launch in a process fills: as if the process were new.
    f"{CPU}/behaviour/engine/test_launch_waits_for_nothing.py": {"_index", "_hidden_or_seen"},
    # Other projects' own.
    f"{CPU}/unit/engine/spec/test_corpus.py": {"_tokenizer"},
    f"{CPU}/unit/kernels/test_interpreted.py": {"_patch_lang_tensor"},
    f"{CPU}/unit/matrix/zoo/test_checkpoint.py": {"_keys_to_ignore_on_load_unexpected"},
    "tests/registered/gpu1/engine/test_graphs.py": {"_C", "_cuda_clearCublasWorkspaces", "_stream"},
}
PATCHES = {"setattr", "getattr", "hasattr", "delattr"}


def private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.endswith("__") and name not in PUBLIC


def own(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def accesses(path: str) -> Iterator[str]:
    """Private names of other objects and modules that a file reads, imports or replaces."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and private(node.attr) and not own(node.value):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if private(alias.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in PATCHES:
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from (last for text in texts if private(last := str(text).rpartition(".")[2]))


@pytest.mark.parametrize(
    "text", ["x._y", "from a import _y", "monkeypatch.setattr(x, '_y', 1)", "monkeypatch.setattr('a.b._y', 1)"]
)
def test_every_way_to_a_private_name_is_seen(text, monkeypatch):
    monkeypatch.setattr(f"{__name__}.tree", lambda path: ast.parse(text))
    assert list(accesses("any.py")) == ["_y"]


def test_no_test_touches_a_private_name():
    found = {path: set(accesses(path)) for path in sources("tests")}
    assert {path: names for path, names in found.items() if names} == ALLOWED
