"""A custom drafter runs the conformance suite, and drafts for an answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, known_algorithms
from specmatrix.engine.plugin import forget_algorithm
from specmatrix.engine.spec.ngram import NgramDrafter
from specmatrix.errors import ConfigError
from specmatrix.matrix.conformance.child import results
from specmatrix.matrix.conformance.forced_counts import Drafted, first_difference, forced, longest_path
from specmatrix.matrix.conformance.suite import FORCED, STARTS
from tests.support.tables import table

EXAMPLE = HOME / "examples" / "copy_the_prompt.py"
DRAFTS = "return chain(torch.cat((batch.root, drafts), 1))"
# What is changed in the example, and what is then reported for each engine start.
BROKEN = {
    "token": (DRAFTS, DRAFTS.replace("drafts", "drafts + 9999"), "proposed a token outside the vocabulary; "),
    "write": (DRAFTS, f"batch.start.add_(1); {DRAFTS}", "the drafter of COPY wrote into batch.start in propose"),
    "process": (DRAFTS, f"torch.rand(1); {DRAFTS}", "the drafter of COPY changed torch's random number generator"),
    "exit": (DRAFTS, "raise SystemExit('my own')", "raised SystemExit in propose (my own)"),
    "traits": ("max_lag=1,", "max_lag=1, own_kv=True,", "the drafter has 0 KV pools, but own_kv is True"),
    "width": ("resolved.num_draft_tokens\n", "resolved.num_draft_tokens + 1\n", "the drafter's nodes must be 4, the"),
}


@pytest.fixture(autouse=True)
def forgotten():
    """Everything that a file registers is removed after its test."""
    yield
    for traits in known_algorithms()[len(ALGORITHMS) :]:
        forget_algorithm(traits.name)


def changed(folder: Path, old: str, new: str) -> str:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    (folder / "mine.py").write_text(text.replace(old, new))
    return str(folder / "mine.py")


def test_the_example_keeps_the_contract():
    found = [*results(str(EXAMPLE), {})]
    assert [each["start"] for each in found] == [f"chain, {start}" for start in (*STARTS, *FORCED)]
    assert all(each["tokens_per_round"] > 1.1 and each["violations"] == () for each in found)


@pytest.mark.parametrize(("old", "new", "violation"), BROKEN.values(), ids=BROKEN)
def test_a_violation_is_reported(tmp_path, old, new, violation):
    found = next(results(changed(tmp_path, old, new), {"speculative_num_steps": "3"}))
    assert (found["algorithm"], found["start"]) == ("COPY", "as requested, v2")
    assert any(violation in each for each in found["violations"]), found


def test_a_violation_is_reported_for_every_start(tmp_path):
    old, new, violation = BROKEN["traits"]
    found = [*results(changed(tmp_path, old, new), {})]
    assert [each["start"] for each in found] == [f"chain, {start}" for start in (*STARTS, *FORCED)]
    assert all(violation in each["violations"] for each in found)


TEXT_OF = 'return {"text": self._write(batch.carried["text"], batch.start + 1, verdict.tokens)}'
ON_THE_HOST = ("max_lag=1,", "max_lag=0, reads_host=True,")
# Drafters that keep the contract unless a round accepts certain numbers of drafts.
RARE = {
    "raises-if-all-rows-accept-all": (
        (ON_THE_HOST, (TEXT_OF, f"assert len(verdict.count) == 1 or verdict.count.min() < batch.width; {TEXT_OF}")),
        "raised AssertionError in absorb",
    ),
    "misplaces-text-if-rows-differ": (
        ((TEXT_OF, TEXT_OF.replace("+ 1,", "+ 1 + (verdict.count.max() != verdict.count.min()).long(),")),),
        "beside requests that accepted other numbers of drafts, alone [",
    ),
}


@pytest.mark.parametrize(("changes", "violation"), RARE.values(), ids=RARE)
def test_every_number_of_accepted_drafts_is_forced_in_batches_whose_rows_differ(tmp_path, changes, violation):
    file = str(EXAMPLE)
    for number, (old, new) in enumerate(changes):
        text = Path(file).read_text()
        assert text.count(old) == 1
        file = str(tmp_path / f"mine{number}.py")
        Path(file).write_text(text.replace(old, new))
    found = {each["start"].removeprefix("chain, "): each["violations"] for each in results(file, {})}
    assert {name for name, violations in found.items() if violations} == {*FORCED}
    assert all(len(found[name]) == 1 and violation in found[name][0] for name in FORCED)


def test_every_number_of_accepted_drafts_is_forced_of_n_grams_too(monkeypatch):
    absorb = NgramDrafter.absorb

    def raises(drafter, batch, verdict, aux):
        assert len(verdict.count) == 1 or verdict.count.min() < verdict.tokens.shape[1]
        return absorb(drafter, batch, verdict, aux)

    def misplaces(drafter, batch, verdict, aux):
        if verdict.count.max() != verdict.count.min():
            drafter.readers = dict(zip(drafter.readers, reversed(drafter.readers.values()), strict=True))
        return absorb(drafter, batch, verdict, aux)

    for planted, violation in (
        (raises, "raised AssertionError in absorb"),
        (misplaces, "not an independent n-gram index's"),
    ):
        monkeypatch.setattr(NgramDrafter, "absorb", planted)
        found = {each["start"]: each["violations"] for each in results("NGRAM", {})}
        red = [violations for name, violations in found.items() if name.endswith((*FORCED,))]
        assert len(red) == 4 and all(violation in each[0] for each in red), found


def test_adaptive_chains_are_compared_as_far_as_both_are_deep():
    short, long, other = Drafted((9, 1), (-1, 0)), Drafted((9, 1, 2), (-1, 0, 1)), Drafted((9, 3, 2), (-1, 0, 1))
    assert first_difference({(0, 4): short}, {(0, 4): long, (1, 4): other}, True) is None
    assert first_difference({(0, 4): short}, {(0, 4): long}, False) == (0, 4)
    assert first_difference({(0, 4): short}, {(0, 4): other}, True) == (0, 4)


@pytest.mark.parametrize(
    ("parents", "wanted", "found"),
    [
        ([-1, 0, 1, 2], 0, [9, 0, 5, 5]),  # the first draft was right
        ([-1, 0, 1, 2], 2, [9, 5, 6, 5]),
        ([-1, 0, 1, 2], 3, [9, 5, 6, 7]),
        ([-1, 0, 0, 2], 1, [9, 0, 5, 4]),  # along the longest path, and no sibling is the same
        ([-1, 0, 0, 2], 0, [9, 0, 4, 4]),
    ],
)
def test_drafts_are_replaced_so_that_as_many_as_wanted_are_accepted(parents, wanted, found):
    tokens = [9, 5, 5, 5] if parents[2] == 1 else [9, 5, 4, 4]
    assert forced(tokens, parents, longest_path(parents), [5, 6, 7, 8], wanted) == found


@pytest.mark.parametrize(
    ("old", "new", "sentence"), table(__file__)["refused"], ids=["drafter", "exit", "dtype", "relay", "check"]
)
def test_an_algorithm_that_cannot_be_made_is_refused_in_one_sentence(tmp_path, old, new, sentence):
    file = changed(tmp_path, old, new)
    line = 1 + next(i for i, text in enumerate(Path(file).read_text().splitlines()) if new in text)
    with pytest.raises(ConfigError) as caught:
        [*results(file, {})]
    assert str(caught.value).startswith(sentence.format(line=line))
    assert torch.get_default_dtype() is torch.float32


def test_a_file_drafts_for_an_answer(tmp_path, capsys):
    words = ["--max-new-tokens", "24", "Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?"]
    assert main(["generate", "--speculative-algorithm-file", str(EXAMPLE), *words]) == 0
    said = capsys.readouterr().err
    assert said.startswith("COPY accepts 1.") and said.endswith("(same tokens)\n")
    forget_algorithm("COPY")
    assert main(["generate", *words, "--speculative-algorithm-file", changed(tmp_path, *BROKEN["exit"][:2])]) == 1
    *_, last = capsys.readouterr().err.splitlines()
    assert "my own" in last and last.endswith("is not called again, and rounds continue without drafts")
    again = ["--speculative-algorithm-file", str(EXAMPLE)]
    assert main(["generate", *words, *again]) == 2
    assert "algorithm COPY is already registered" in capsys.readouterr().err


def test_a_file_with_several_algorithms_needs_a_name(tmp_path, capsys):
    once = "register_algorithm(COPY, CopyDrafter, check=check)\n"
    again = once.replace("COPY", "replace(COPY, name='MORE')")
    file = changed(tmp_path, once, f"from dataclasses import replace\n{once}{again}")
    assert main(["generate", "Hi", "--speculative-algorithm-file", file]) == 2
    assert f"{file} registers COPY, MORE; choose one with --speculative-algorithm" in capsys.readouterr().err
    forget_algorithm("COPY")
    forget_algorithm("MORE")
    words = ["--max-new-tokens", "4", "--speculative-algorithm", "more"]
    assert main(["generate", "Hi", "--speculative-algorithm-file", file, *words]) == 0
    assert capsys.readouterr().err.startswith("MORE accepts ")
