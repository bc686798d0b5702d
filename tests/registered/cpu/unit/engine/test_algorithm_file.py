"""A user's file: its algorithms are registered; one that cannot be loaded registers nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from specmatrix.engine.core.draft.algorithms import known_algorithms
from specmatrix.engine.plugin import forget_algorithm, load_algorithms
from specmatrix.errors import ConfigError

GOOD = """
from dataclasses import dataclass
from specmatrix.engine.plugin import Topology, Traits, register_algorithm

@dataclass
class Whole:
    context: object
    def prime(self): ...
    def propose(self): ...
    def absorb(self): ...

for name in ("first", "second"):
    register_algorithm(Traits(name, "a test's own", Topology.CHAIN), Whole)
"""


def test_what_a_file_registers_is_known_in_its_order(tmp_path: Path):
    file = tmp_path / "torch.py"  # a name that others need
    file.write_text(GOOD)
    before = known_algorithms()
    found = load_algorithms(file)
    try:
        assert [traits.name for traits in found] == ["FIRST", "SECOND"]
        assert known_algorithms() == before + found
        with pytest.raises(ConfigError, match="algorithm FIRST is already registered; forget it first"):
            load_algorithms(file)
        assert known_algorithms() == before + found
    finally:
        for traits in found:
            forget_algorithm(traits.name)


def test_a_file_may_import_its_neighbours(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "name_of_the_neighbour.py").write_text("NAME = 'neighbour'")
    (tmp_path / "json.py").write_text("1 / 0")  # no neighbour takes the place of another module
    text = GOOD.replace('("first", "second")', "(name_of_the_neighbour.NAME,)")
    (tmp_path / "mine.py").write_text(f"import json\nimport name_of_the_neighbour\n{text}")
    found = load_algorithms(tmp_path / "mine.py")
    assert [traits.name for traits in found] == ["NEIGHBOUR"]
    forget_algorithm("NEIGHBOUR")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def f(:", "{file}, line 1 cannot be loaded: SyntaxError: invalid syntax"),
        (GOOD + "\n1 / 0\n", "{file}, line 15 cannot be loaded: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", "{file}, line 2 cannot be loaded: SystemExit: 3"),
        ("raise GeneratorExit", "{file}, line 1 cannot be loaded: GeneratorExit"),
        ("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E", "{file}, line 3 cannot be loaded: E"),
        (GOOD + "\nimport torch\ntorch.set_default_dtype(torch.float64)", "{file} cannot be loaded: it changed the"),
        (GOOD.replace("def absorb", "def absord"), "{file}, line 13 cannot be loaded: algorithm FIRST: Whole has no"),
        ("x = 1", "{file} registers no algorithm; it must call register_algorithm(traits, drafter) at its top level"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_one_sentence_and_leaves_nothing(tmp_path: Path, text: str, sentence: str):
    file, before = tmp_path / "mine.py", known_algorithms()
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_algorithms(file)
    assert str(caught.value).startswith(f"algorithm file {sentence.format(file=file)}")
    assert known_algorithms() == before and torch.get_default_dtype() is torch.float32


def test_an_interrupt_while_a_file_is_loaded_stays_one(tmp_path: Path):
    file, before = tmp_path / "mine.py", known_algorithms()
    file.write_text(GOOD + "\nraise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_algorithms(file)
    assert known_algorithms() == before


def test_a_folder_and_a_missing_file_are_no_algorithm_files(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.py"):
        with pytest.raises(ConfigError, match=f"^algorithm file {path} does not exist; pass a Python file that must"):
            load_algorithms(path)
    with pytest.raises(ConfigError, match=r"^algorithm file a{100}.*\.\.\. does not exist"):
        load_algorithms(Path("a" * 5000))
