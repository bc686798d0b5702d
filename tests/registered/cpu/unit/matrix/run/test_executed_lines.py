"""Changed lines that only failing cells execute."""

import subprocess
import sys
import threading

import pytest

from specmatrix import HOME
from specmatrix.matrix.run.executed_lines import changed_lines, executed, only_red, own_change
from specmatrix.reports.wording import ranges

DIFF = """\
diff --git a/engine/loop.py b/engine/loop.py
--- a/engine/loop.py
+++ b/engine/loop.py
@@ -10 +10 @@ class Loop:
-old
+new
@@ -20,0 +21,3 @@ def step():
+a
+b
+c
@@ -40,2 +43,0 @@
-gone
-gone
diff --git a/README.md b/README.md
--- a/README.md
+++ b/README.md
@@ -1 +1 @@
-a
+b
diff --git a/engine/gone.py b/engine/gone.py
--- a/engine/gone.py
+++ /dev/null
@@ -1,2 +0,0 @@
-a
-b
"""
INDEX, LOOP = "engine/core/draft/ngram_index.py", "engine/loop.py"


def test_changed_lines_are_those_of_the_new_files_and_in_front_of_deletions():
    assert changed_lines(DIFF) == {"engine/loop.py": {10, 21, 22, 23, 43}}
    assert changed_lines(DIFF.replace("+43,0", "+0,0")) == {"engine/loop.py": {10, 21, 22, 23}}
    assert changed_lines("") == {} and changed_lines("no diff at all") == {}


def git(folder, words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *words.split()], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path):
    """Three commits: a file, a change of two of its lines and of notes, and a deletion."""
    (tmp_path / "engine").mkdir()
    git(tmp_path, "init -q -b main")
    for text, message in (("1\n2\n3\n4\n5\n", "one"), ("1\nb\n3\nd\n5\n", "two"), ("1\nb\n3\nd\n", "three")):
        (tmp_path / "engine" / "tree.py").write_text(text)
        (tmp_path / "notes.md").write_text(message)
        git(tmp_path, "add .")
        git(tmp_path, f"commit -qm {message}")
    return tmp_path


def test_a_checkouts_own_change_is_since_its_branch_left_the_main_one(checkout, tmp_path_factory):
    path = "engine/tree.py"
    assert own_change(checkout) == {}
    (checkout / path).write_text("1\nb\n3\nd\nnew\n")
    assert own_change(checkout) == {path: {5}}
    for words in ("checkout -qb topic", "commit -qam four", "checkout -q main"):
        git(checkout, words)
    (checkout / path).write_text("one\nb\n3\nd\n")
    for words in ("commit -qam five", "checkout -q topic"):
        git(checkout, words)
    assert own_change(checkout) == {path: {5}}
    git(checkout, "branch -m main trunk")
    assert own_change(checkout) == {}
    assert own_change(tmp_path_factory.mktemp("nowhere")) == {}


def test_ranges_join_neighbours():
    assert ranges([3, 4, 5, 9, 11, 12]) == [(3, 5), (9, 9), (11, 12)] and ranges(()) == []


def test_lines_of_a_drafter_are_executed_by_its_cells_only_and_those_of_the_loop_by_all():
    whole = {path: set(range(1, len((HOME / path).read_text().splitlines()) + 1)) for path in (INDEX, LOOP)}
    found = only_red(["ngram.pair"], ["none.pair"], whole, "cpu", 0)
    assert len(found[INDEX]) > 20 and len(found.get(LOOP, ())) < 20
    assert sys.gettrace() is None or "coverage" in sys.modules
    assert threading.gettrace() is None


def test_a_file_that_no_cell_imports_has_no_line():
    assert executed(["none.pair"], ["benchmarks/gpu.py", "engine/none.py"], "cpu", 0) == {
        "benchmarks/gpu.py": set(), "engine/none.py": set(),
    }  # fmt: skip
