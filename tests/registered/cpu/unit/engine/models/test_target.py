"""Every target against transformers' own model of the same checkpoint, and bitwise equality across calls."""

from __future__ import annotations

import json

import pytest
import torch

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.models.loader import load_target

BOUND = 1e-4  # float32, largest absolute difference of a logit; logits here reach about 10
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama one key head per head": ("llama", {"num_key_value_heads": 4}),
    "llama one key head": ("llama", {"num_key_value_heads": 1}),
    "llama theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "mistral": ("mistral", {}),
    "mistral without a window, tied": ("mistral", {"sliding_window": None, "tie_word_embeddings": True}),
    "qwen3 mixed": ("qwen3", {}),
    "qwen3 full": ("qwen3", {"layer_types": None, "use_sliding_window": False}),
    "qwen3 upper layers": ("qwen3", {"layer_types": None, "max_window_layers": 1, "sliding_window": 5}),
    "qwen3 all sliding": ("qwen3", {"layer_types": ["sliding_attention"] * 4, "sliding_window": 1}),
    "qwen3 tied, one key head": ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3 theta": ("qwen3", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "deepseek": ("deepseek", {}),
    "deepseek whole queries": ("deepseek", {"q_lora_rank": None}),
    "deepseek halves": ("deepseek", {"rope_interleave": False}),
    "deepseek one group, scores as they are": ("deepseek", {"n_group": 1, "topk_group": 1, "norm_topk_prob": False}),
    "deepseek all groups": ("deepseek", {"topk_group": 4, "num_experts_per_tok": 8}),
    "deepseek sparse from the start": ("deepseek", {"first_k_dense_replace": 0, "tie_word_embeddings": True}),
    "deepseek wide experts": ("deepseek", {"moe_intermediate_size": 140, "rms_norm_eps": 1e-3}),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_next wide experts as they are": ("qwen3_next", {"norm_topk_prob": False, "moe_intermediate_size": 140}),
    "qwen3_next window as wide as a tree": ("qwen3_next", {"linear_conv_kernel_dim": 9, "rms_norm_eps": 1e-3}),
    "qwen3_5": ("qwen3_5", {}),
    "qwen3_5 tied, one key head": ("qwen3_5", {"tie_word_embeddings": True, "linear_num_key_heads": 1}),
    "qwen3_5 all rotated, square heads": ("qwen3_5", {"partial_rotary_factor": 1.0, "linear_value_head_dim": 8}),
    "qwen3_5 as published": ("qwen3_5", {"published": True}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "qwen3_5_moe as published": ("qwen3_5_moe", {"published": True}),
    "deepseek yarn": ("deepseek", {"rope_parameters": YARN}),
    "deepseek yarn with mscale": ("deepseek", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}),
}
HYBRIDS = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}
KINDS = {kind: changes for name, (kind, changes) in VARIANTS.items() if not changes}
# The widths in which a text is read: of each variant a few, and of hybrids chunks of one size, then token by token.
READS = {name: (kind, changes, (7, 1, 3, 13, 2, 1, 13)) for name, (kind, changes) in VARIANTS.items()}
READS |= {
    f"{name}, chunks of {chunk}": (kind, changes, (chunk,) * (140 // chunk) + (1,) * 10)
    for name, (kind, changes) in VARIANTS.items()
    for chunk in (1, 2, 3, 7, 64)
    if kind in HYBRIDS
}
LINES = torch.randint(0, 768, (33, 65), generator=torch.Generator().manual_seed(2))
LONG = torch.randint(0, 97, (3, 150), generator=torch.Generator().manual_seed(1))
TOKENS = LONG[:, :40]


@pytest.fixture
def pair(target_folder, architectures):
    """A factory: our model and transformers' on one checkpoint."""

    def build(kind: str, deterministic: bool = True, **changes: object):
        folder = target_folder(kind, **changes)
        theirs = architectures[kind][1].from_pretrained(folder, dtype=torch.float32).eval()
        return load_target(folder, "cpu", torch.float32, deterministic), theirs

    return build


def close(ours, theirs, kind=None):
    """The norm behind a delta rule enlarges the error of small numbers, ours and that of transformers' chunked form."""
    assert ours.dtype is torch.float32
    assert theirs.abs().max() > 1.0
    off = (ours - theirs).abs()
    assert off.mean() < BOUND and off.max() < (30 * BOUND if kind in HYBRIDS else BOUND)


@pytest.mark.parametrize(("kind", "changes", "widths"), READS.values(), ids=READS)
@torch.inference_mode()
def test_prefill_chunks_and_decode_match_transformers(pair, paged, kind, changes, widths):
    ours, theirs = pair(kind, **changes)
    tokens = LONG[:, : sum(widths)]
    whole = theirs(tokens).logits
    close(paged(ours, 3, tokens.shape[1]).run(tokens, [0, 0, 0]), whole, kind)
    driver, done = paged(ours, 3, tokens.shape[1], page_size=7), 0
    for width in widths:
        close(driver.run(tokens[:, done : done + width], [done] * 3), whole[:, done : done + width], kind)
        done += width


@pytest.mark.parametrize(
    ("kind", "storage", "shard"),
    [("llama", torch.bfloat16, "5GB"), ("qwen3", torch.float16, "20KB"), ("deepseek", torch.bfloat16, "20KB")],
)
@torch.inference_mode()
def test_storage_and_shards_match_transformers(pair, paged, kind, storage, shard):
    ours, theirs = pair(kind, deterministic=False, dtype=storage, shard=shard)
    close(paged(ours, 3, 40).run(TOKENS, [0, 0, 0]), theirs(TOKENS).logits, kind)


@torch.inference_mode()
def test_positions_reach_past_the_context_as_far_as_requested(target_folder, paged):
    ours = load_target(target_folder("llama"), "cpu", torch.float32, positions=700)
    attend = paged(ours, 1, 4).attend([0], [0], torch.ones(1, 1).bool())
    hidden, aux = ours.forward(TOKENS[:1, :1], torch.tensor([[699]]), attend, capture=(1,))
    assert hidden.isfinite().all() and hidden.shape == aux.shape == (1, 1, 48)


@torch.inference_mode()
def test_a_head_of_its_own_is_read_although_the_config_says_tied(target_folder, architectures, paged):
    folder = target_folder("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    theirs = architectures["llama"][1].from_pretrained(folder, dtype=torch.float32).eval()
    close(paged(load_target(folder, "cpu", torch.float32), 3, 40).run(TOKENS, [0, 0, 0]), theirs(TOKENS).logits)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_requests_of_different_lengths_share_a_step(pair, paged, kind):
    ours, theirs = pair(kind)
    driver = paged(ours, 3, 40)
    lengths = [5, 23, 11]
    for request, length in enumerate(lengths):
        driver.run(TOKENS[request : request + 1, :length], [0], [request])
    step = torch.stack([TOKENS[r, n : n + 4] for r, n in enumerate(lengths)])
    logits = driver.run(step, lengths)
    for r, n in enumerate(lengths):
        close(logits[r], theirs(TOKENS[r : r + 1, : n + 4]).logits[0, n:], kind)


@pytest.mark.parametrize(("kind", "changes"), VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_each_path_of_a_tree_has_its_own_logits(pair, paged, kind, changes):
    """The tree is deeper than the smaller windows, so that a node does not attend to all of its ancestors."""
    ours, theirs = pair(kind, **changes)
    driver = paged(ours, 1, 40)
    prefix, nodes, parents = TOKENS[:1, :22], TOKENS[0, 22:31], [-1, 0, 0, 1, 2, 3, 4, 6, 7]
    driver.run(prefix, [0])
    logits = driver.tree(nodes, parents, 0, 22)
    for node in range(len(parents)):
        path, at = [], node
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        close(logits[0, node], theirs(torch.cat((prefix[0], nodes[path]))[None]).logits[0, -1], kind)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_hidden_and_captured_states_match_transformers(pair, paged, kind):
    ours, theirs = pair(kind)
    left = []
    theirs.model.norm.register_forward_pre_hook(lambda _, args: left.append(args[0]))
    states = theirs(TOKENS, output_hidden_states=True).hidden_states
    attend = paged(ours, 3, 40).attend([0, 1, 2], [0, 0, 0], torch.ones(40, 40).tril().bool())
    capture = (2, 0, FINAL, ours.num_layers)
    hidden, aux = ours.forward(TOKENS, torch.arange(40).expand(3, 40), attend, capture)
    close(hidden, states[-1], kind)
    close(aux, torch.cat((states[2], states[0], states[-1], left[0]), -1), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_stays_near_float32(target_folder, paged, kind, dtype):
    folder = target_folder(kind)
    whole = paged(load_target(folder, "cpu", torch.float32), 3, 40).run(TOKENS, [0, 0, 0])
    half = paged(load_target(folder, "cpu", dtype), 3, 40).run(TOKENS, [0, 0, 0])
    # A few layers of a few roundings each, relative to the largest logit. A token may take another expert where two
    # score alike, and is far off then; few do.
    off = (half - whole).abs().amax(-1).flatten().sort().values
    assert 0 < off[int(0.7 * len(off))] < 24 * torch.finfo(dtype).eps * whole.abs().max()


class TestBatchInvariance:
    """With `deterministic`, a token's logits have the same bits however many tokens share its call."""

    @pytest.fixture(params=["deepseek-mini", "qwen3-mini", "llama-mini", "qwen3_next", "qwen3_5", "qwen3_5_moe"])
    def model(self, request, zoo, target_folder, architectures):
        made = target_folder(request.param, vocab_size=768) if request.param in architectures else zoo(request.param)
        return load_target(made, "cpu", torch.float32)

    @torch.inference_mode()
    def test_over_batch_sizes(self, model, paged):
        driver = paged(model, 33, 32)
        driver.run(LINES[:, :23], [0] * 33)
        last = LINES[:, 23:24]
        whole = driver.run(last, [23] * 33)
        for size in range(1, 33):
            assert torch.equal(driver.run(last[:size], [23] * size), whole[:size]), f"batch {size}"

    @torch.inference_mode()
    def test_over_chunk_widths(self, model, paged):
        line = LINES[:1]
        whole = paged(model, 1, 80).run(line, [0])
        for width in (1, 2, 3, 5, 7, 8, 13, 33, 64):
            driver = paged(model, 1, 80)
            parts = [driver.run(line[:, at : at + width], [at]) for at in range(0, 65, width)]
            assert torch.equal(torch.cat(parts, 1), whole), f"chunks of {width}"

    @torch.inference_mode()
    def test_over_read_lengths_and_other_requests(self, model, paged):
        driver = paged(model, 3, 600, page_size=8)
        for at, end in ((0, 20), (20, 64), (64, 65)):
            driver.run(LINES[:3, at:end], [at] * 3)
        alone = driver.run(LINES[:1, 20:21], [20], [0], reach=21)
        for reach in [*range(22, 60, 3), 64, 127, 128, 129, 256, 511, 513, 600]:
            assert torch.equal(driver.run(LINES[:1, 20:21], [20], [0], reach=reach), alone), f"reach {reach}"
        mixed = driver.run(torch.stack((LINES[0, 20:21], LINES[2, 64:])), [20, 64], [0, 2])
        assert torch.equal(mixed[:1], alone)

    @torch.inference_mode()
    def test_a_tree_node_equals_the_same_token_decoded(self, model, paged):
        line = LINES[0, :30]
        decoded, drafted = paged(model, 1, 48), paged(model, 1, 48)
        decoded.run(line[None, :20], [0])
        drafted.run(line[None, :20], [0])
        steps = [decoded.run(line[None, at : at + 1], [at]) for at in (20, 21)]
        # Nodes: root, a wrong child, the right child.
        logits = drafted.tree(line[[20, 29, 21]], [-1, 0, 0], 0, 20)
        assert torch.equal(logits[:, [0, 2]], torch.cat(steps, 1))


def test_windows(target_folder):
    mixed = load_target(target_folder("qwen3"), "cpu", torch.float32)
    assert [mixed.window_of(i) for i in range(4)] == [None, 11, None, 11]
    llama = load_target(target_folder("llama"), "cpu", torch.float32)
    assert [llama.window_of(i) for i in range(3)] == [None] * 3
