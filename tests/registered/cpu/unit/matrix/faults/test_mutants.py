"""Mutants: what is mutated, what is drawn, and what counts as equivalent."""

import json

import msgspec
import pytest

from specmatrix.ci import mutants as command
from specmatrix.ci.mutants import mutants as main_mutants
from specmatrix.errors import ConfigError
from specmatrix.matrix.faults.mutants import Equivalent, Mutations, equivalents, is_equivalent, named_mutants, sample_of

SOURCE = '''\
"""A module."""

WIDTH = 4


def wide(size: int = 2, *, strict=True) -> bool:
    """Whether it is wide."""
    return size > WIDTH and strict
'''


def test_expressions_within_functions_are_mutated_one_at_a_time():
    own = Mutations("engine/wide.py", SOURCE)
    found = [own[number] for number in range(len(own))]
    assert [one.after.strip() for one in found] == ["return size > WIDTH or strict", "return size >= WIDTH and strict"]
    for one in found:
        assert (one.line, one.within) == (8, "wide") and one.text.count("\n") == SOURCE.count("\n")
        assert sum(a != b for a, b in zip(one.text.splitlines(), SOURCE.splitlines(), strict=True)) == 1
        compile(one.text, one.path, "exec")


def test_a_sample_is_drawn_by_its_seed_and_its_files_stay(tmp_path):
    (tmp_path / "engine").mkdir()
    file = tmp_path / "engine" / "wide.py"
    file.write_text(SOURCE)
    (tmp_path / "engine" / "plain.py").write_text("WIDTH = 4\n")
    drawn, known = sample_of(["engine"], 1, 0, tmp_path)
    assert known == 2 and len(drawn) == 1 and drawn == sample_of(["engine", "engine/wide.py"], 1, 0, tmp_path)[0]
    assert {sample_of(["engine"], 1, seed, tmp_path)[0][0].id for seed in range(9)} == {
        "engine/wide.py:8#0",
        "engine/wide.py:8#1",
    }
    assert drawn[0].apply(tmp_path) == [file] and file.read_text() == drawn[0].text


@pytest.mark.parametrize(
    ("paths", "text"),
    [
        (["engine/absent"], "--paths: 'engine/absent' is no Python file, or folder of some, below"),
        (["../outside"], "--paths: '../outside' is no Python file, or folder of some, below"),
        (["engine/plain.py"], "--paths: 'engine/plain.py': no function there can be mutated"),
    ],
)
def test_paths_without_mutants_are_refused(tmp_path, paths, text):
    (tmp_path / "root" / "engine").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "wide.py").write_text(SOURCE)
    (tmp_path / "root" / "engine" / "plain.py").write_text("WIDTH = 4\n")
    with pytest.raises(ConfigError) as caught:
        sample_of(paths, 1, 0, tmp_path / "root")
    assert text in str(caught.value)


def test_mutants_are_found_again_by_their_ids(tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "wide.py").write_text(SOURCE)
    [one] = named_mutants(["engine/wide.py:8#1"], tmp_path)
    assert one == Mutations("engine/wide.py", SOURCE)[1]
    for name in ("engine/wide.py:8#2", "engine/wide.py:7#1", "engine/narrow.py:8#1", "engine/wide.py", "", "8#one"):
        with pytest.raises(ConfigError, match=r"there is no mutant '.*'; `specmatrix mutants --list` names those of a"):
            named_mutants([name], tmp_path)


def test_equivalent_mutants_are_known_by_function_and_lines_whatever_their_indent():
    own = Mutations("engine/wide.py", SOURCE)
    wider = own[1]
    marked = Equivalent(
        "engine/wide.py", "wide", "return size > WIDTH and strict", wider.after.strip(), "the width is never equal"
    )
    assert is_equivalent(wider, [marked])
    assert not is_equivalent(wider, [msgspec.structs.replace(marked, within="narrow")])
    assert not is_equivalent(wider, [])


MARK = """\
- path: engine/wide.py
  within: wide
  before: return size > WIDTH and strict
  after: return size >= WIDTH and strict
  reason: the width is never equal
"""


def test_a_mark_matches_a_mutant_of_todays_sources(tmp_path):
    equivalents()
    (tmp_path / "engine").mkdir()
    source, file = tmp_path / "engine" / "wide.py", tmp_path / "equivalent.yaml"
    source.write_text(SOURCE)
    file.write_text(MARK)
    [mark] = equivalents(file, tmp_path)
    assert is_equivalent(Mutations(mark.path, SOURCE)[1], [mark])
    for text, told in (
        (MARK.replace("size >= ", "size < "), "engine/wide.py has no such mutant of 'wide'; update its mark"),
        (MARK.replace("wide.py", "absent.py"), "absent.py': No such file or directory"),
        (MARK.replace("reason", "because"), "equivalent.yaml is invalid: "),
        ("- [", "equivalent.yaml is invalid: "),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError) as caught:
            equivalents(file, tmp_path)
        assert told in str(caught.value) and "\n\n" not in str(caught.value)


def test_the_command_lists_its_sample_and_refuses_bad_options(capsys, tmp_path):
    def call(size=3, seed=0, workers=1, shard="1/1", list_=True, ids=()):
        return main_mutants(
            ids, ["engine/core/draft/depth.py"], size, seed, workers, True, shard, list_, tmp_path, True
        )

    assert call() == 0
    whole = json.loads(capsys.readouterr().out)
    parts = []
    for shard in ("1/2", "2/2"):
        call(shard=shard)
        parts += json.loads(capsys.readouterr().out)["mutants"]
    assert len(whole["mutants"]) == 3 and whole["of"] > 3 and whole["equivalent"] == 0
    assert sorted(one["id"] for one in parts) == sorted(one["id"] for one in whole["mutants"])
    call(ids=[whole["mutants"][0]["id"]])
    assert json.loads(capsys.readouterr().out)["mutants"] == whole["mutants"][:1]
    for given, text in (({"size": 0}, "--sample must be at least 1, got 0"), ({"shard": "3/2"}, "shard must be")):
        with pytest.raises(ConfigError, match=text):
            call(**given)


def test_an_installation_without_tests_must_go_without(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "HOME", tmp_path)
    with pytest.raises(ConfigError, match=r"is no checkout and has no unit tests; add --no-tests$"):
        main_mutants([], ["engine"], 1, 0, 1, True, "1/1", True, None, False)


def test_mutmut_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr("specmatrix.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^mutmut is not installed.*specmatrix\[mutants\]"):
        Mutations("engine/wide.py", SOURCE)
