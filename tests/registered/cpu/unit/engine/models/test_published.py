"""Checkpoints in the exact layout of the published ones: logits are transformers', and every pair drafts for real."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.device.attention import DraftAttention
from specmatrix.engine.models.loader import load_dflash, load_eagle3, load_target
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.published.models import MODELS
from specmatrix.matrix.zoo.published.pairs import PAIRS
from tests.support.published_layouts import TARGETS, shard, small_config, write, writer
from tests.support.uncached_models import WholeDFlash, WholeEagle3

BOUND = 1e-4  # float32, largest absolute difference of a logit
TOKENS = torch.randint(2, 768, (2, 40), generator=torch.Generator().manual_seed(1))
PROMPTS = ["Question: Ann has 3 pens and buys 4. How many pens has she?\nAnswer:", "A farmer has 12 cows."]
LENGTH = 12


@pytest.fixture(scope="module", autouse=True)
def silent():
    """transformers warns of prediction layers that it does not run."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """The folder of a small checkpoint like the published one, by name; each is written once."""
    return writer(tmp_path_factory.mktemp("published"))


def theirs(folder: Path):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", [*TARGETS, "deepseek-v3"])
@torch.inference_mode()
def test_logits_are_those_of_transformers(published, paged, name):
    folder = published(name)
    expected = theirs(folder)(TOKENS).logits
    ours = paged(load_target(folder, "cpu", torch.float32), 2, 40)
    parts = [ours.run(TOKENS[:, :29], [0, 0]), ours.run(TOKENS[:, 29:30], [29, 29]), ours.run(TOKENS[:, 30:], [30, 30])]
    assert expected.abs().max() > 1.0
    assert (torch.cat(parts, 1) - expected).abs().max() < BOUND


@pytest.mark.parametrize("name", PAIRS)
def test_every_pair_generates_what_transformers_generates(published, name):
    """With drafts of random weights: most are refused, so that their KV and states are rolled back all the time."""
    pair = PAIRS[name]
    small = {"device": "cpu", "dtype": "float32", "context_length": 256, "max_total_tokens": 512, "strict_memory": 2}
    width = {"speculative_num_draft_tokens": 5} if pair.algorithm == "DFLASH" else {}
    llm = LLM(replace(pair.config, **small, **width), published)
    outputs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=LENGTH, ignore_eos=True))
    model = theirs(published(pair.target))
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        ids = llm.tokenizer.encode(prompt)
        start = len(ids)
        with torch.inference_mode():
            for _ in range(LENGTH):
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
        assert list(output.output_ids) == ids[start:]
    assert llm.readback()["algorithm"] == pair.algorithm
    assert pair.algorithm == "NGRAM" or llm.counters["spec.drafted"] > 0


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return bool((ours - theirs).abs().max() < 1e-5 * theirs.abs().max())


@pytest.mark.parametrize("pair", ["llama-3.1-8b.eagle3", "qwen3-8b.eagle3"])
@torch.inference_mode()
def test_an_eagle3_head_is_its_formula(published, paged, pair):
    target = load_target(published(PAIRS[pair].target), "cpu", torch.float32)
    made = published(PAIRS[pair].draft)
    head = load_eagle3(made, target)
    oracle, states = WholeEagle3(made, target.embedding, target.head.t()), torch.randn(20, 3 * 64)
    attend = paged(head, 1, 20).attend([0], [0], torch.ones(20, 20).tril().bool())
    out = head.forward(TOKENS[:1, :20], torch.arange(20)[None], states[None], attend)[0]
    theirs = oracle.run(TOKENS[0, :20], list(states))
    assert head.aux_layers == (2, 4, 5) and close(out, theirs)
    logits, expected = head.logits(out), oracle.logits(theirs)
    ids = head.to_target(torch.arange(96))
    assert close(logits, expected[:, ids])
    expected[:, ids] = float("-inf")
    assert expected.isinf().all(), "a draft id stands for each target id that it may propose"


@torch.inference_mode()
def test_a_dflash_block_is_its_formula(published, paged):
    pair = PAIRS["qwen3-8b.dflash"]
    target = load_target(published(pair.target), "cpu", torch.float32)
    made = published(pair.draft)
    model = load_dflash(made, target)
    states, driver = torch.randn(20, 3 * 64), paged(model, 1, 40)
    for layer, kv in enumerate(model.context(states[None], torch.arange(20)[None])):
        driver.pool.store(layer, driver.slots[0, :20], kv)
    attend = DraftAttention(driver.pool, driver.slots[:, :20], torch.zeros(1, 1, 1, 20), 16)
    attend.begin(0, torch.ones(1, 16, 16, dtype=torch.bool))
    block = torch.tensor([[11, *[767] * 15]])
    ours = model.logits(model.forward(block, 20 + torch.arange(16)[None], attend))[0]
    assert (model.aux_layers, model.mask_token) == ((2, 5, 7), 767)
    assert close(ours, WholeDFlash(made, target.embedding, target.head.t()).block(11, 16, states))


def test_an_eagle_draft_under_its_targets_name_drafts(zoo, tmp_path):
    """As EAGLE's authors publish them, given as --speculative-draft-model-path."""
    drafts = {"eagle": zoo("llama-mini-eagle"), "misnamed": shutil.copytree(zoo("llama-mini-eagle"), tmp_path / "d")}
    raw = json.loads((drafts["misnamed"] / "config.json").read_text())
    (drafts["misnamed"] / "config.json").write_text(json.dumps(raw | {"architectures": ["LlamaForCausalLM"]}))
    lengths = []
    for name in drafts:
        config = EngineConfig("llama-mini", "EAGLE", name, speculative_num_steps=3, device="cpu", dtype="float32")
        llm = LLM(config, lambda asked: drafts.get(asked) or zoo(asked))
        lengths.append(llm.generate(PROMPTS[:1], SamplingParams(max_new_tokens=20))[0].accept_lengths)
    assert lengths[0] == lengths[1] and sum(lengths[0]) > 2 * len(lengths[0])


def test_the_layouts_are_sharded_tied_and_stored_in_16_bits(published):
    """The assumptions of the tests above."""
    kinds = {}
    for name in TARGETS:
        folder = published(name)
        names = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        assert set(json.loads((folder / "config.json").read_text())) == set(MODELS[name].config)
        assert ("lm_head.weight" in names) is not small_config(name)["tie_word_embeddings"]
        assert len(set(names.values())) == 3
        for file in set(names.values()):
            with safe_open(folder / file, "pt") as tensors:
                kinds |= {key: tensors.get_slice(key).get_dtype() for key in tensors.keys()}  # noqa: SIM118
    assert {kind for key, kind in kinds.items() if "correction" not in key} == {"BF16"}
    prediction = {key.removeprefix("model.layers.4.") for key in kinds if key.startswith("model.layers.4.")}
    assert {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight"} < prediction
    assert {"shared_head.head.weight", "embed_tokens.weight"} < prediction


DAMAGE = {
    "a shard is missing": (
        lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
        r"model-00002-of-00003.safetensors is missing; the checkpoint is incomplete",
    ),
    "a shard is cut short": (
        lambda folder: _cut(folder / "model-00002-of-00003.safetensors"),
        r"model-00002-of-00003.safetensors cannot be read as safetensors \(.*\); it is truncated or damaged",
    ),
    "a shard of another export": (
        lambda folder: (folder / "model-00001-of-00003.safetensors").replace(
            folder / "model-00002-of-00003.safetensors"
        ),
        r"model-0000\d-of-00003.safetensors (is missing|lacks tensor)",
    ),
    "a tensor nobody holds": (
        lambda folder: _without(folder, "model.layers.3.mlp.up_proj.weight"),
        r"tensor 'model.layers.3.mlp.up_proj.weight' is missing from the weights",
    ),
    "a tensor of another shape": (
        lambda folder: _changed(folder, "model.norm.weight", torch.ones(65)),
        r"tensor 'model.norm.weight' has shape \(65,\), but config.json implies \(64,\)",
    ),
    "a tensor of integers": (
        lambda folder: _changed(folder, "model.norm.weight", torch.ones(64, dtype=torch.int64)),
        r"tensor 'model.norm.weight' holds int64; it must hold floating-point numbers",
    ),
    "a quantized tensor": (
        lambda folder: _changed(folder, "lm_head.weight", torch.ones(768, 64).to(torch.float8_e4m3fn)),
        r"tensor 'lm_head.weight' is stored as F8_E4M3; quantized weights are not supported",
    ),
    "a tensor of another architecture": (
        lambda folder: _changed(folder, "model.layers.0.self_attn.q_proj.bias", torch.ones(64)),
        r"tensor 'model.layers.0.self_attn.q_proj.bias' does not belong to this architecture",
    ),
    "no index": (lambda folder: (folder / "model.safetensors.index.json").unlink(), r"has no weights; it must contain"),
    "half a config.json": (lambda folder: _cut(folder / "config.json"), r"config.json is not valid JSON \(.*\); the"),
}


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in folder.glob("model-*.safetensors"):
        with safe_open(file, "pt") as tensors:
            found |= {key: tensors.get_tensor(key) for key in tensors.keys()}  # noqa: SIM118 - not a mapping
    return found


def _without(folder: Path, name: str) -> None:
    shard(folder, {key: tensor for key, tensor in _tensors(folder).items() if key != name})


def _changed(folder: Path, name: str, tensor: torch.Tensor) -> None:
    shard(folder, _tensors(folder) | {name: tensor})


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_one_sentence(tmp_path, damage, sentence):
    folder = write(tmp_path / "made", "llama-3.1-8b-instruct")
    damage(folder)
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_target(folder, "cpu", torch.float32)
    assert "\n" not in str(caught.value)
