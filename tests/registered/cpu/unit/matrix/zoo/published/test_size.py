"""Sizes from configurations: against published numbers, against files, and against what loaded models hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from specmatrix.engine.models import loader
from specmatrix.engine.models.eagle.formats import load_draft_config
from specmatrix.engine.models.weights import count_numbers
from specmatrix.matrix.zoo.published.models import MODELS
from specmatrix.matrix.zoo.published.needs import config_of
from specmatrix.matrix.zoo.published.pairs import PAIRS
from specmatrix.matrix.zoo.published.size import bundled, held, possible, stored
from specmatrix.matrix.zoo.registry import CHECKPOINTS
from tests.support.published_layouts import TARGETS, writer

DRAFTS = {pair.draft: pair.target for pair in PAIRS.values() if pair.draft is not None}
LOADERS = {"EAGLE3": loader.load_eagle3, "DFLASH": loader.load_dflash, "STANDALONE": loader.load_standalone}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    return writer(tmp_path_factory.mktemp("published"))


def depth(name: str) -> int:
    return config_of(MODELS[DRAFTS[name]]).num_layers if name in DRAFTS else 0


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.numbers is not None])
def test_the_tables_sizes_come_to_the_published_numbers(name):
    """A wrong field would show: the counts come from model cards and file sizes, not from these fields."""
    assert stored(config_of(MODELS[name]), depth(name)) == MODELS[name].numbers


def test_an_eagle3_head_comes_to_the_bytes_of_its_file():
    """799,457,128 bytes with the header of a safetensors file: 16-bit numbers, d2t in 8 bytes each, t2d in one."""
    config = config_of(MODELS["qwen3-8b-eagle3"])
    tensors = 2 * stored(config, 36) + 8 * config.draft.vocab_size + config.vocab_size
    assert 0 < 799_457_128 - tensors < 4096


@pytest.mark.parametrize("name", MODELS)
def test_files_hold_what_their_configuration_implies(published, name):
    folder = published(name)
    target = 8 if name in DRAFTS else 0
    assert count_numbers(folder) == stored(load_draft_config(folder), target)


def test_tables_that_a_checkpoint_may_bring_or_leave_out(published):
    head, bundle = (load_draft_config(published(name)) for name in ("qwen3-8b-eagle3", "gigachat3-10b"))
    table = head.vocab_size * head.hidden_size
    assert possible(head, 8) == {stored(head, 8), stored(head, 8) + table}
    table = bundle.vocab_size * bundle.hidden_size
    assert possible(bundle) == {stored(bundle) - copies * table for copies in (0, 1, 2)}
    dense = load_draft_config(published("qwen3-8b"))
    assert possible(dense) == {stored(dense)}


def test_an_eagle_head_is_counted_too():
    folder = CHECKPOINTS / "llama-mini-eagle"
    assert count_numbers(folder) == stored(load_draft_config(folder))


def tensors(part: object, seen: set[int]) -> Iterator[Tensor]:
    """Every tensor that an object reaches through its attributes."""
    if id(part) in seen:
        return
    seen.add(id(part))
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, dict):
        for value in part.values():
            yield from tensors(value, seen)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from tensors(value, seen)
    elif type(part).__module__.startswith("specmatrix.engine.models"):
        names = [*getattr(part, "__dict__", ()), *getattr(type(part), "__slots__", ())]
        for name in names:
            yield from tensors(getattr(part, name), seen)


def kept(model: object, without: object = None) -> int:
    """Floating numbers in the memory behind a model's tensors, each block of memory counted once."""
    theirs = {t.untyped_storage().data_ptr() for t in tensors(without, set())} if without is not None else set()
    floats = [t.untyped_storage() for t in tensors(model, set()) if t.is_floating_point()]
    blocks = {block.data_ptr(): block.nbytes() // 4 for block in floats}
    return sum(size for block, size in blocks.items() if block not in theirs)


@pytest.mark.parametrize("name", TARGETS)
def test_what_a_target_holds(published, name):
    folder = published(name)
    model = loader.load_target(folder, "cpu", torch.float32)
    assert kept(model) == pytest.approx(held(model.config), rel=0.02)
    per_token = model.kv.layers * model.kv.planes * model.kv.kv_heads * model.kv.head_dim
    assert per_token == model.num_layers * model.config.kept_numbers()


@pytest.mark.parametrize("name", [name for name, pair in PAIRS.items() if pair.draft is not None])
def test_what_a_draft_holds(published, name):
    pair = PAIRS[name]
    target = loader.load_target(published(pair.target), "cpu", torch.float32)
    draft = LOADERS[pair.algorithm](published(pair.draft), target)
    config = load_draft_config(published(pair.draft))
    assert kept(draft, target) == pytest.approx(held(config, target.config), rel=0.02)
    per_token = draft.kv.layers * draft.kv.planes * draft.kv.kv_heads * draft.kv.head_dim
    assert per_token == config.num_layers * config.kept_numbers()


def test_what_an_eagle_head_and_prediction_layers_hold(published):
    target = loader.load_target(CHECKPOINTS / "llama-mini", "cpu", torch.float32)
    folder = CHECKPOINTS / "llama-mini-eagle"
    draft = loader.load_eagle(folder, target)
    assert kept(draft, target) == pytest.approx(held(load_draft_config(folder), target.config), rel=0.02)
    folder = published("gigachat3-10b")
    target = loader.load_target(folder, "cpu", torch.float32)
    layers = loader.load_nextn(folder, target, 1)
    assert kept(layers, target) == pytest.approx(bundled(target.config), rel=0.02)
