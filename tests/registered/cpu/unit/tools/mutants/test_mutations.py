"""Mutants: what is mutated, what is drawn, and what counts as equivalent."""

import pytest

from specmatrix.errors import ConfigError
from tools.mutants.__main__ import main
from tools.mutants.mutations import Mutations, equivalents, named_mutant, sample_of

SOURCE = '''\
"""A module."""

WIDTH = 4


def wide(size: int = 2, *, strict=True) -> bool:
    """Whether it is wide."""
    return size > WIDTH and strict
'''


@pytest.fixture
def root(tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "wide.py").write_text(SOURCE)
    (tmp_path / "engine" / "plain.py").write_text("WIDTH = 4\n")
    return tmp_path


def test_expressions_within_functions_are_mutated_one_at_a_time():
    own = Mutations("engine/wide.py", SOURCE)
    found = [own[number] for number in range(len(own))]
    assert [one.after.strip() for one in found] == ["return size > WIDTH or strict", "return size >= WIDTH and strict"]
    for one in found:
        assert (one.line, one.within) == (8, "wide") and one.text.count("\n") == SOURCE.count("\n")
        assert sum(a != b for a, b in zip(one.text.splitlines(), SOURCE.splitlines(), strict=True)) == 1
        compile(one.text, one.path, "exec")


def test_a_sample_is_drawn_by_its_seed_from_files_and_folders(root):
    drawn, known = sample_of(["engine"], 1, 0, root)
    assert known == 2 and drawn == sample_of(["engine/wide.py"], 1, 0, root)[0]
    ids = {sample_of(["engine"], 1, seed, root)[0][0].id for seed in range(9)}
    assert ids == {"engine/wide.py:8#0", "engine/wide.py:8#1"}
    assert drawn[0].apply(root) == [root / "engine/wide.py"] and (root / "engine/wide.py").read_text() == drawn[0].text
    for path in ("engine/absent", "engine/plain.py"):
        with pytest.raises(ConfigError, match=f"'{path}' has no function"):
            sample_of([path], 1, 0, root)


def test_mutants_are_found_again_by_their_ids(root):
    assert named_mutant("engine/wide.py:8#1", root) == Mutations("engine/wide.py", SOURCE)[1]
    for name in ("engine/wide.py:8#2", "engine/wide.py:7#1", "engine/narrow.py:8#1", "engine/wide.py", "", "8#one"):
        with pytest.raises(ConfigError, match="there is no mutant"):
            named_mutant(name, root)


MARK = """\
- path: engine/wide.py
  within: wide
  before: return size > WIDTH and strict
  after: return size >= WIDTH and strict
  reason: the width is never equal
"""


def test_a_mark_is_of_one_mutant_of_todays_sources_whatever_its_indent(root):
    file = root / "equivalent.yaml"
    file.write_text(MARK)
    [mark] = equivalents(file, root)
    assert [mark.marks(one) for one in Mutations("engine/wide.py", SOURCE)] == [False, True]
    for wrong in (MARK.replace("size >= ", "size < "), MARK.replace("within: wide", "within: narrow")):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=r"engine/wide\.py has no such mutant"):
            equivalents(file, root)


def test_the_command_lists_its_sample_without_what_is_marked(capsys):
    equivalents()  # each mark is one of today's mutants
    assert main(["--paths", "engine/core/draft/depth.py", "--sample", "3", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.startswith("engine/core/draft/depth.py:") for line in lines)
    assert main([lines[0].split()[0], "--list"]) == 0
    assert capsys.readouterr().out.splitlines() == lines[:1]
