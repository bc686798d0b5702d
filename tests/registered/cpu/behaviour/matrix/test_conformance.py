"""A user's drafter on the command line: held to the contract, and drafting for an answer."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.engine.core.draft.algorithms import ALGORITHMS, known_algorithms
from specmatrix.engine.plugin import forget_algorithm

pytestmark = pytest.mark.register(est_seconds=12, stage="pr")

EXAMPLE = HOME / "examples" / "copy_the_prompt.py"
DRAFTS = "return chain(torch.cat((batch.root, drafts), 1))"
# What is changed in the example, and what is then told of each launch.
BROKEN = {
    "token": (
        DRAFTS,
        DRAFTS.replace("drafts", "drafts + 9999"),
        "proposed a token outside the vocabulary; ",
    ),
    "host read": (DRAFTS, f"batch.root.tolist(); {DRAFTS}", "is not called again, and rounds continue without drafts"),
    "exception": (DRAFTS, "raise ValueError('my own')", "my own"),
    "traits": ("max_lag=1,", "max_lag=1, own_kv=True,", "the drafter has 0 KV pools, but own_kv is True"),
    "width": (
        "resolved.num_draft_tokens\n",
        "resolved.num_draft_tokens + 1\n",
        "the drafter's nodes must be 4, the largest round, got 5",
    ),
}


@pytest.fixture(autouse=True)
def forgotten():
    """Nothing that a file registered outlives its test."""
    yield
    for traits in known_algorithms()[len(ALGORITHMS) :]:
        forget_algorithm(traits.name)


def changed(folder: Path, old: str, new: str) -> str:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    (folder / "mine.py").write_text(text.replace(old, new))
    return str(folder / "mine.py")


def test_the_example_keeps_the_contract(capsys):
    assert main(["contract", str(EXAMPLE)]) == 0
    *launches, last = capsys.readouterr().out.splitlines()
    assert last == "COPY satisfies the contract in 3 engine starts" and len(launches) == 3
    assert all(re.fullmatch(r"  chain, .* kept +1\.\d\d tokens per round", line) for line in launches)


@pytest.mark.parametrize(("old", "new", "told"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_told_and_red(tmp_path, capsys, old, new, told):
    assert main(["contract", changed(tmp_path, old, new), "--json", "--speculative-num-steps", "3"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert (found["name"], found["kept"]) == ("COPY", False)
    assert all(any(told in sentence for sentence in each["broken"]) for each in found["launches"]), found


def test_a_broken_launch_prints_its_sentences(tmp_path, capsys):
    assert main(["contract", changed(tmp_path, *BROKEN["traits"][:2])]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-5:] == ["BROKEN", "1.16", "tokens", "per", "round"]
    assert lines[1] == "    the drafter has 0 KV pools, but own_kv is True"
    assert lines[-1] == "COPY VIOLATES the contract in 3 of 3 engine starts"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "self.traits = context.traits",
            "self.traits = context.nothing",
            "drafter of COPY cannot be built (mine.py, line ",
        ),
        ("check=check)", "relay=lambda *all: 1 // 0)", "relay of COPY cannot be built (mine.py, line "),
    ],
)
def test_a_drafter_that_cannot_be_made_is_one_sentence(tmp_path, capsys, old, new, said):
    assert main(["contract", changed(tmp_path, old, new)]) == 2
    told = capsys.readouterr().err
    assert f"specmatrix: the {said}" in told and told.count("\n") == 1


def test_a_file_drafts_for_an_answer(tmp_path, capsys):
    words = ["--max-new-tokens", "24", "Eli had 75 keys. He gave 11 of them to Cora. How many keys are left?"]
    assert main(["generate", "--speculative-algorithm-file", str(EXAMPLE), *words]) == 0
    said = capsys.readouterr().err
    assert said.startswith("COPY accepts 1.") and said.endswith("(same tokens)\n")
    forget_algorithm("COPY")
    assert main(["generate", *words, "--speculative-algorithm-file", changed(tmp_path, *BROKEN["exception"][:2])]) == 1
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
