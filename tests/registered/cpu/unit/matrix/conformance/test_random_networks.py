"""Drafts of random networks are those of the zoo's naive drafts, and what no fixture has shows."""

from __future__ import annotations

import re

import pytest

from specmatrix.engine.models import rope
from specmatrix.engine.models.config_reader import ConfigReader
from specmatrix.engine.models.dflash.model import DFlash
from specmatrix.engine.spec import autoregressive
from specmatrix.matrix.conformance.random_networks import first_wrong_block, first_wrong_tree
from specmatrix.matrix.conformance.random_targets import first_wrong_target

SEEDS = range(12)


def test_candidates_that_no_text_has_are_ranked(monkeypatch):
    own = autoregressive.select_tree
    assert not any(map(first_wrong_tree, SEEDS))
    monkeypatch.setattr(autoregressive, "select_tree", lambda scores, *more: own(scores.clamp(min=1e-3), *more))
    said = r"in random tree \d of \d+ with \d steps, topk \d and \d+ nodes, the likelihoods .* are \[.*, not \[.*\]"
    assert re.fullmatch(said, next(filter(None, map(first_wrong_tree, SEEDS))))


def mixed_heads(own):
    def context(self, states, positions):
        kv, heads = own(self, states, positions), 2 * self.config.num_kv_heads
        return kv.view(*kv.shape[:2], heads, -1).roll(1, 2).flatten(2) if heads > 2 else kv

    return context


@pytest.mark.parametrize(
    ("name", "broken", "shown"),
    [
        ("context", mixed_heads(DFlash.context), "[23] KV heads"),
        ("mask_token", property(lambda self: 0, lambda self, value: None), r"\d KV heads.*mask token [1-9]\d*"),
    ],
)
def test_blocks_of_shapes_that_no_fixture_has_are_drafted(monkeypatch, name, broken, shown):
    assert not any(map(first_wrong_block, SEEDS))
    monkeypatch.setattr(DFlash, name, broken, raising=False)
    said = rf"draft \d of the random block \d+ as of llama-mini-d\S+ with {shown}.* is \S+ nats behind the best"
    assert re.fullmatch(said, next(filter(None, map(first_wrong_block, SEEDS))))


def test_blocks_have_scaled_positions(monkeypatch):
    monkeypatch.setattr(rope, "_yarn", lambda given, frequency: frequency / given.factor)
    assert next(filter(None, map(first_wrong_block, SEEDS))).split(" is ")[0].endswith(" and yarn rotation")
    monkeypatch.setitem(rope.FIELDS, "linear", ())
    assert "rope_scaling.factor" in (said := first_wrong_block(1)), said


@pytest.mark.parametrize(
    ("field", "default", "said"),
    [
        ("max_window_layers", 28, r"the random target \d+, qwen3 with .* scores a token of its text \S+ nats off"),
        ("full_attention_interval", 4, r"the random target \d+ is refused: .*layer_types must contain both .*"),
    ],
)
def test_targets_with_fields_that_no_fixture_has_are_scored_as_by_transformers(monkeypatch, field, default, said):
    own = ConfigReader.value
    assert not any(map(first_wrong_target, SEEDS))
    monkeypatch.setattr(
        ConfigReader, "value", lambda self, name, *more: default if name == field else own(self, name, *more)
    )
    assert re.fullmatch(said, next(filter(None, map(first_wrong_target, SEEDS))))
