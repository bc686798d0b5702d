"""The target model against transformers' own on the same checkpoint, and bitwise equality across call shapes."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaForCausalLM

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.loader import load_target
from specmatrix.errors import ConfigError

BOUND = 1e-4  # float32, largest absolute difference of a logit; logits here reach about 10
VARIANTS = {
    "default": {},
    "tied": {"tie_word_embeddings": True},
    "one key head per head": {"num_key_value_heads": 4},
    "one key head": {"num_key_value_heads": 1},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
}
TOKENS = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def pair(llama_folder):
    """A factory: our model and transformers' on one checkpoint."""

    def build(deterministic: bool = True, **changes: object):
        folder = llama_folder(**changes)
        return (
            load_target(folder, "cpu", torch.float32, deterministic),
            LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(),
        )

    return build


def close(ours, theirs):
    assert ours.dtype is torch.float32
    assert theirs.abs().max() > 1.0
    assert (ours - theirs).abs().max() < BOUND


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_prefill_matches_transformers(pair, paged, changes):
    ours, theirs = pair(**changes)
    close(paged(ours, 3, 40).run(TOKENS, [0, 0, 0]), theirs(TOKENS).logits)


@pytest.mark.parametrize("storage", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard", ["5GB", "20KB"])
@torch.inference_mode()
def test_storage_matches_transformers(pair, paged, storage, shard):
    ours, theirs = pair(dtype=storage, shard=shard)
    close(paged(ours, 3, 40).run(TOKENS, [0, 0, 0]), theirs(TOKENS).logits)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("page_size", [1, 7, 64])
@torch.inference_mode()
def test_chunks_and_decode_match_transformers(pair, paged, page_size, deterministic):
    ours, theirs = pair(deterministic)
    driver = paged(ours, 3, 40, page_size)
    whole = theirs(TOKENS).logits
    done = 0
    for width in (9, 1, 16, 1, 1, 12):
        logits = driver.run(TOKENS[:, done : done + width], [done] * 3)
        close(logits, whole[:, done : done + width])
        done += width
    assert done == 40


@torch.inference_mode()
def test_tree_mask_gives_each_path_its_own_logits(pair, paged):
    ours, theirs = pair()
    driver = paged(ours, 1, 40)
    prefix, nodes, parents = TOKENS[:1, :10], TOKENS[0, 10:16], [-1, 0, 0, 1, 2, 3]
    driver.run(prefix, [0])
    seen = torch.eye(6, dtype=torch.bool)
    paths = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
        seen[node, paths[node]] = True
    positions = torch.tensor([[10 + len(path) - 1 for path in paths]])
    hidden, _ = ours.forward(nodes[None], positions, driver.attend([0], [10], seen))
    logits = ours.logits(hidden)
    for node, path in enumerate(paths):
        line = torch.cat((prefix[0], nodes[path]))
        close(logits[0, node], theirs(line[None]).logits[0, -1])


@torch.inference_mode()
def test_hidden_and_captured_states_match_transformers(pair, paged):
    ours, theirs = pair()
    states = theirs(TOKENS, output_hidden_states=True).hidden_states
    positions = torch.arange(40).expand(3, 40)
    attend = paged(ours, 3, 40).attend([0, 1, 2], [0, 0, 0], torch.ones(40, 40).tril().bool())
    hidden, aux = ours.forward(TOKENS, positions, attend, capture=(2, FINAL, 0, 2))
    close(hidden, states[-1])
    close(aux, torch.cat((states[2], states[-1], states[0], states[2]), -1))


@torch.inference_mode()
def test_the_state_after_the_last_layer_can_be_captured(pair, paged):
    ours, theirs = pair()
    seen = []
    theirs.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    theirs(TOKENS)
    attend = paged(ours, 3, 40).attend([0, 1, 2], [0, 0, 0], torch.ones(40, 40).tril().bool())
    _, aux = ours.forward(TOKENS, torch.arange(40).expand(3, 40), attend, capture=(3,))
    close(aux, seen[0])


@torch.inference_mode()
def test_a_lone_token_returns_one_row(pair, paged):
    ours, _ = pair()
    attend = paged(ours, 1, 8).attend([0], [0], torch.ones(1, 1).bool())
    hidden, aux = ours.forward(TOKENS[:1, :1], torch.zeros(1, 1, dtype=torch.int64), attend, capture=(1,))
    assert hidden.shape == aux.shape == (1, 1, 48)
    assert ours.logits(hidden).shape == (1, 1, 97)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_stays_near_float32(llama_folder, paged, dtype):
    folder = llama_folder()
    whole = paged(load_target(folder, "cpu", torch.float32), 3, 40).run(TOKENS, [0, 0, 0])
    half = paged(load_target(folder, "cpu", dtype), 3, 40).run(TOKENS, [0, 0, 0])
    # Three layers of a few roundings each, relative to the largest logit.
    bound = 16 * torch.finfo(dtype).eps * whole.abs().max()
    assert 0 < (half - whole).abs().max() < bound


@torch.inference_mode()
def test_positions_reach_past_the_context_as_far_as_requested(llama_folder, paged):
    ours, last = load_target(llama_folder(), "cpu", torch.float32, positions=700), 699
    attend = paged(ours, 1, 4).attend([0], [0], torch.ones(1, 1).bool())
    hidden, _ = ours.forward(TOKENS[:1, :1], torch.tensor([[last]]), attend)
    assert hidden.isfinite().all()


class TestBatchInvariance:
    """With `deterministic`, a token's logits have the same bits however many tokens share its call."""

    @pytest.fixture
    def model(self, llama_folder):
        # llama-mini's widths: the order of summation depends on them.
        folder = llama_folder(vocab_size=768, hidden_size=128, intermediate_size=384, head_dim=32, num_hidden_layers=2)
        return load_target(folder, "cpu", torch.float32)

    @torch.inference_mode()
    def test_over_batch_sizes(self, model, paged):
        batch = torch.randint(0, 768, (64, 24), generator=torch.Generator().manual_seed(2))
        driver = paged(model, 64, 32)
        driver.run(batch[:, :23], [0] * 64)
        last = batch[:, 23:]
        whole = driver.run(last, [23] * 64)
        for size in range(1, 65):
            assert torch.equal(driver.run(last[:size], [23] * size), whole[:size]), f"batch {size}"

    @torch.inference_mode()
    def test_over_chunk_widths(self, model, paged):
        line = torch.randint(0, 768, (1, 65), generator=torch.Generator().manual_seed(2))
        whole = paged(model, 1, 80).run(line, [0])
        for width in (1, 2, 3, 5, 8, 13, 33, 64):
            driver = paged(model, 1, 80)
            parts = [driver.run(line[:, at : at + width], [at]) for at in range(0, 65, width)]
            assert torch.equal(torch.cat(parts, 1), whole), f"chunks of {width}"

    @torch.inference_mode()
    def test_over_read_lengths_and_other_requests(self, model, paged):
        batch = torch.randint(0, 768, (3, 150), generator=torch.Generator().manual_seed(2))
        driver = paged(model, 3, 600, page_size=8)
        driver.run(batch, [0, 0, 0])
        alone = driver.run(batch[:1, 20:21], [20], [0], reach=21)
        for reach in [*range(22, 60), 64, 127, 128, 129, 255, 256, 257, 384, 511, 512, 513, 600]:
            assert torch.equal(driver.run(batch[:1, 20:21], [20], [0], reach=reach), alone), f"reach {reach}"
        mixed = driver.run(torch.stack((batch[0, 20:21], batch[2, 149:])), [20, 149], [0, 2])
        assert torch.equal(mixed[:1], alone)

    @torch.inference_mode()
    def test_a_tree_node_equals_the_same_token_decoded(self, model, paged):
        line = torch.randint(0, 768, (1, 30), generator=torch.Generator().manual_seed(2))
        decoded, drafted = paged(model, 1, 48), paged(model, 1, 48)
        decoded.run(line[:, :20], [0])
        drafted.run(line[:, :20], [0])
        steps = [decoded.run(line[:, at : at + 1], [at]) for at in (20, 21)]
        # Nodes: root, a wrong child, the right child.
        seen = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
        nodes = torch.stack((line[0, 20], line[0, 29], line[0, 21]))[None]
        hidden, _ = model.forward(nodes, torch.tensor([[20, 21, 21]]), drafted.attend([0], [20], seen))
        logits = model.logits(hidden)
        assert torch.equal(logits[:, [0, 2]], torch.cat(steps, 1))

    @torch.inference_mode()
    def test_the_fast_path_may_differ_by_rounding_only(self, llama_folder, paged):
        folder = llama_folder()
        fast = paged(load_target(folder, "cpu", torch.float32, False), 1, 4).run(TOKENS[:1, :1], [0])
        slow = paged(load_target(folder, "cpu", torch.float32, True), 1, 4).run(TOKENS[:1, :1], [0])
        assert (fast - slow).abs().max() < BOUND


class TestRefusals:
    def test_missing_tensor(self, llama_folder):
        folder = llama_folder(shard="20KB")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        name = "model.layers.1.mlp.up_proj.weight"
        index["weight_map"] = {k: v for k, v in index["weight_map"].items() if v != index["weight_map"][name]}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(ConfigError, match=r"tensor 'model\..*' is missing from the weights"):
            load_target(folder, "cpu", torch.float32)

    def test_shape_that_config_does_not_imply(self, llama_folder):
        folder = llama_folder()
        config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 96}
        (folder / "config.json").write_text(json.dumps(config))
        sentence = r"'model.embed_tokens.weight' has shape \(97, 48\), but config.json implies \(96, 48\)"
        with pytest.raises(ConfigError, match=sentence):
            load_target(folder, "cpu", torch.float32)

    def test_tensor_without_a_place(self, llama_folder):
        folder = llama_folder()
        config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"tensor 'model.layers.2.* does not belong to this architecture"):
            load_target(folder, "cpu", torch.float32)
