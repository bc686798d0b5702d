"""An oracle regenerated from a wrong draft agrees with it; the stored figures do not."""

import json

import msgspec
import pytest

from specmatrix.matrix.zoo import absolute, command, oracle
from specmatrix.matrix.zoo.oracle import HeadDraft
from specmatrix.matrix.zoo.registry import TARGETS, oracle_file
from tests.support.refusals import refusal


@pytest.mark.parametrize("target", TARGETS)
def test_the_stored_oracle_reaches_the_figures_of_every_draft(target):
    body = json.loads(oracle_file(target).read_text())
    absolute.verify(target)
    assert absolute.stored()[target] == absolute.of_oracle(body)
    assert all(low < rate < high for one in absolute.of_oracle(body).values() for rate, (low, high) in one.pairs)
    assert absolute.stored()[target].keys() == body["acceptance"].keys()
    assert len(absolute.lines(target)) == 2 * len(body["acceptance"])


def test_zoo_verify_compares_the_stored_oracle_with_the_figures(monkeypatch):
    known = absolute.stored()
    first = known["llama-mini"]["eagle3"]
    higher = msgspec.structs.replace(first, wilson95=((0.999, 1.0), *first.wilson95[1:]))
    monkeypatch.setattr(absolute, "stored", lambda: known | {"llama-mini": {**known["llama-mini"], "eagle3": higher}})
    assert "of eagle3 at position 1; it must accept at least 99.9%" in refusal(command.verify)


def test_a_last_round_does_not_count_and_a_position_only_after_those_before_it():
    found = absolute.positions("2/1/3", [(3, 2, 1, 3), (1, 3, 2)])
    assert found.rate == (0.6, 0.6667) and found.wilson95[1] == pytest.approx((0.2077, 0.9385), abs=1e-4)
    assert absolute.positions("1/1/2", [(1,)]).wilson95 == ((0.0, 1.0),)


def test_tokens_per_round_are_those_of_chains_by_their_drafts():
    shapes = {"2/1/3": [(3, 2), (1,)], "1/1/2": [(2, 2)], "5/4/8": [(6,)], "1/1/6": [(6, 1)]}
    assert absolute.lengths(shapes) == {1: 2.0, 2: 2.0, 5: 3.5}


def test_an_oracle_of_a_rotated_map_to_the_targets_vocabulary_is_refused(monkeypatch, tmp_path):
    figures = tmp_path / "absolute.json"
    figures.write_bytes(absolute.FILE.read_bytes())
    monkeypatch.setattr(absolute, "FILE", figures)
    monkeypatch.setattr(HeadDraft, "to_target", lambda self, index: self.kept[(index + 1) % len(self.kept)])
    wrong = oracle.account("qwen3-mini", oracle.questions()[:2], {"eagle3": [(7, 1, 8)]})["acceptance"]
    stored = json.loads(oracle_file("qwen3-mini").read_text())
    monkeypatch.setattr(oracle, "account", lambda *_: {**stored, "acceptance": {**stored["acceptance"], **wrong}})
    monkeypatch.setattr(oracle, "oracle_file", lambda target: tmp_path / "oracle.json")
    text = refusal(oracle.main, ["qwen3-mini"])
    assert text == (
        "the oracle of qwen3-mini accepts 1.1% of the drafts of eagle3 at position 1; it must accept at least 84.0% "
        "(absolute.json: 87.9%), so a draft is wrong"
    )
    assert (
        not (tmp_path / "oracle.json").exists()
        and figures.read_bytes() == absolute.HERE.joinpath("data", "absolute.json").read_bytes()
    )


def test_figures_are_written_once_and_every_algorithm_must_have_some(monkeypatch, tmp_path):
    monkeypatch.setattr(absolute, "FILE", tmp_path / "absolute.json")
    assert "cannot be read" in refusal(absolute.stored)
    absolute.FILE.write_text("{}")
    lacking = refusal(absolute.verify, "mistral-mini")
    assert lacking.startswith("absolute.json has no figures of mistral-mini; rewrite its oracle: ")
    body = json.loads(oracle_file("mistral-mini").read_text())
    absolute.write("mistral-mini", body)
    once = absolute.FILE.read_text()
    better = {"acceptance": {"standalone": {"7/1/8": [[8] * 30]}}}
    absolute.write("mistral-mini", better)
    assert absolute.FILE.read_text() == once
    text = refusal(absolute.write, "mistral-mini", {"acceptance": {"eagle": {"7/1/8": [[8]]}}})
    assert text == "the oracle of mistral-mini has no rounds of standalone with 7/1/8; it must have them"
