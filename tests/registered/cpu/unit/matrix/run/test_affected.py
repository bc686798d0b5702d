"""The cells that a change touches: from the functions that cells execute, and the commits of a checkout."""

import subprocess

import pytest

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cover.lockfile import stage_cells
from specmatrix.matrix.cover.selection import of_gpus
from specmatrix.matrix.run import functions
from specmatrix.matrix.run.affected import SourceChange, affected_ranks, read_change, sentence
from specmatrix.matrix.run.functions import (
    MODULE,
    ExecutedFunctions,
    functions_of,
    stored_functions,
)

SOURCE = """\
WIDTH = 4


class Tree:
    depth = 1

    @property
    def nodes(self):
        def count(level):
            return level + 1

        return sum(map(count, range(self.depth)))


async def wait(
    seconds=1,
):
    '''Wait.'''
"""


def test_a_line_belongs_to_the_innermost_function_whose_body_holds_it():
    named = functions_of(SOURCE)
    assert named == {
        9: "Tree.nodes",
        10: "Tree.nodes.count",
        11: "Tree.nodes",
        12: "Tree.nodes",
        18: "wait",
    }


def git(folder, words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Three commits: a file, a change in each of two functions and outside of the engine, and a deletion."""
    (tmp_path / "engine").mkdir()
    file = tmp_path / "engine" / "tree.py"
    git(tmp_path, "init -q -b main")
    file.write_text("\n\n" + SOURCE)
    git(tmp_path, "add .")
    git(tmp_path, "commit -qm one")
    file.write_text("\n\n" + SOURCE.replace("level + 1", "level + 2").replace("depth = 1", "depth = 2"))
    (tmp_path / "notes.md").write_text("notes")
    git(tmp_path, "add .")
    git(tmp_path, "commit -qm two")
    file.write_text(file.read_text().split("async")[0])
    git(tmp_path, "commit -qam three")
    return tmp_path


def test_a_change_is_the_functions_of_its_old_and_its_new_lines(checkout):
    path = "engine/tree.py"
    whole = read_change("HEAD~2..HEAD", checkout)
    assert whole.functions == {(path, "Tree.nodes.count"), (path, MODULE), (path, "wait")}
    assert whole.lines == {path: {7, 12, 16}} and whole.elsewhere == 1
    git(checkout, "mv engine part")
    git(checkout, "commit -qm four")
    (checkout / "deeper").mkdir()
    git(checkout, "mv part deeper/engine")
    git(checkout, "commit -qm five")
    inner = checkout / "deeper"
    (inner / "engine" / "tree.py").write_text((inner / path).read_text().replace("level + 2", "level"))
    assert read_change("HEAD", inner).functions == {(path, "Tree.nodes.count")}
    git(checkout, "reset -q --hard HEAD~2")
    assert read_change("HEAD~1", checkout).functions == {(path, MODULE), (path, "wait")}
    assert read_change("HEAD~1...HEAD", checkout) == read_change("HEAD~1..", checkout)
    (checkout / path).write_text("\n\n" + SOURCE)
    assert ("engine/tree.py", "Tree.nodes.count") in read_change("HEAD", checkout).functions
    assert read_change("HEAD..HEAD", checkout) == SourceChange({}, frozenset(), 0)


@pytest.mark.parametrize(
    ("revisions", "text"),
    [
        ("nowhere..HEAD", "'nowhere' is not a commit of"),
        ("HEAD~1..HEAD~1", "'HEAD~1' is not checked out, so the cells would run other sources"),
        ("--help", "'--help' is not a commit of"),
    ],
)
def test_commits_that_cannot_be_compared_are_refused(checkout, revisions, text):
    with pytest.raises(ConfigError) as caught:
        read_change(revisions, checkout)
    assert text in str(caught.value)


def test_a_file_that_is_not_python_is_refused(checkout):
    (checkout / "engine" / "tree.py").write_text("def (:\n")
    with pytest.raises(ConfigError, match=r"engine/tree\.py line 1 is not Python: "):
        read_change("HEAD", checkout)


def test_cells_that_execute_rare_changed_functions_run_first():
    common, rare, other = ("engine/x.py", "common"), ("engine/x.py", "rare"), ("engine/y.py", "f")
    executed = ExecutedFunctions("abcd", {common: 15, rare: 8, other: 2})
    change = SourceChange({}, frozenset({common, rare, ("engine/new.py", "f")}), 2)
    ranks, touched = affected_ranks(change, executed, "abcde", {"c": 0, "e": 1, "b": 2})
    assert list(ranks) == ["d", "c", "b", "a", "e"] and touched == 4
    outside = SourceChange({}, frozenset({("engine/y.py", MODULE)}), 0)
    assert affected_ranks(outside, executed, "abcde", {"c": 0, "e": 1}) == ({"b": 0, "c": 1, "e": 2}, 1)


FUNCTIONS = frozenset({("engine/x.py", name) for name in "fgh"})


@pytest.mark.parametrize(
    ("functions", "elsewhere", "touched", "text"),
    [
        (
            FUNCTIONS,
            2,
            4,
            "3 changed functions in engine and kernels: 4 of 20 cells execute them and run first; 2 other changed files"
            " were ignored",
        ),
        (FUNCTIONS, 0, 18, "3 changed functions in engine and kernels: nearly all cells (18 of 20) execute them"),
        (FUNCTIONS, 0, 20, "3 changed functions in engine and kernels: all 20 cells execute them"),
        (
            FUNCTIONS,
            0,
            0,
            "3 changed functions in engine and kernels: none of 20 cells is known to execute them, so the default order"
            " is kept",
        ),
        (
            frozenset(),
            1,
            0,
            "the change touches no function in engine and kernels, so the default order is kept; 1 changed file was"
            " ignored",
        ),
        (frozenset(), 0, 0, "the change touches no function in engine and kernels, so the default order is kept"),
    ],
)
def test_a_sentence_tells_how_a_change_orders_the_cells(functions, elsewhere, touched, text):
    assert sentence(SourceChange({}, functions, elsewhere), touched, 20) == text


def test_a_change_under_a_single_cell_is_said_so():
    told = sentence(SourceChange({}, FUNCTIONS, 0), 1, 1)
    assert told == "3 changed functions in engine and kernels: the only cell executes them"


def test_the_stored_functions_are_those_of_todays_sources_and_cells():
    """They may lag behind a little: nothing is wrong if a renamed function is not found."""
    stored = stored_functions()
    pr = {cell.id for cell in of_gpus(stage_cells("pr"), 0)}
    assert len(pr & set(stored.cells)) >= 0.9 * len(pr)
    files = {path for path, _ in stored.functions if (HOME / path).exists()}
    names = {path: set(functions_of((HOME / path).read_text()).values()) for path in files}
    known = [name in names.get(path, ()) for path, name in stored.functions]
    assert len(known) > 500 and sum(known) >= 0.9 * len(known)
    trees = stored.executing(("engine/device_step.py", "_branched"))
    assert trees and all(".k1." not in cell for cell in trees)


def test_an_invalid_file_of_functions_is_refused(tmp_path):
    file = tmp_path / "cells.functions"
    file.write_text("a b\nevery engine/x.py f g\n1 engine/y.py f\n")
    stored = stored_functions(file)
    assert stored.executing(("engine/x.py", "g")) == {"a", "b"} and stored.executing(("engine/y.py", "f")) == {"a"}
    assert stored.executing(("engine/y.py", "g")) == set()
    file.write_text("")
    assert stored_functions(file).cells == ()
    with pytest.raises(
        ConfigError, match=r"^cannot read absent: .*; restore it, or run `specmatrix lock --functions`$"
    ):
        stored_functions(tmp_path / "absent")
    file.write_text("a b\nxyz engine/x.py f\n")
    with pytest.raises(ConfigError) as caught:
        stored_functions(file)
    assert str(caught.value) == (
        "cells.functions line 2 is invalid: 'xyz engine/x.py f'; restore it, or run `specmatrix lock --functions`"
    )


def test_coverage_that_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^coverage is not installed.*specmatrix\[mutants\]"):
        functions.record([Cell.from_id("none.pair")], 1, path=tmp_path / "cells.functions")
