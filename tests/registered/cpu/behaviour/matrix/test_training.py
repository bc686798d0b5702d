from dataclasses import replace
from itertools import repeat
from pathlib import Path
from shutil import copytree

import pytest
import torch

from specmatrix.matrix.zoo import card
from specmatrix.matrix.zoo.bundled_net import DeepseekNet, HybridNet
from specmatrix.matrix.zoo.corpus import Batch
from specmatrix.matrix.zoo.heads import (
    DflashNet,
    EagleNet,
    FeatureNet,
    Head,
    LanguageHead,
    Shared,
    mask_of,
    rotated,
    unroll,
    unrolled_attention,
    whole,
)
from specmatrix.matrix.zoo.net import CausalNet, rope_table
from specmatrix.matrix.zoo.oracle import HeadDraft, RotatedDraft
from specmatrix.matrix.zoo.registry import CHECKPOINTS, RECIPES, Fit, Shape
from specmatrix.matrix.zoo.train import optimise, plan_of, train

TINY = {"hidden_size": 24, "intermediate_size": 20}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 14}
LATENT = Shape(**RECIPES["deepseek-mini"].config | TINY | EXPERTS | {
    "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 3, "q_lora_rank": 12, "kv_lora_rank": 8,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10, "n_routed_experts": 4,
})  # fmt: skip
HYBRID = Shape(**RECIPES["qwen3next-mini"].config | TINY | EXPERTS | {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "linear_attention", "full_attention"], "head_dim": 12,
    "partial_rotary_factor": 1 / 3, "linear_key_head_dim": 6, "linear_value_head_dim": 4, "num_experts": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1 / 3},
    "shared_expert_intermediate_size": 14,
})  # fmt: skip
PLAIN = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} | TINY
SMALL = Shape(**RECIPES["llama-mini"].config | PLAIN)


def small_draft(kind, draft_vocab=0, mask_id=0, parallel=False, block=0, **config: object):
    """A recipe of a draft that reads two layers of a target of width 24."""
    recipe = RECIPES[f"llama-mini-{kind}"]
    own = {"draft_vocab": draft_vocab, "mask_id": mask_id, "parallel": parallel, "block": block, "aux_layers": (0, 1)}
    return replace(recipe, config=recipe.config | PLAIN | config, **own)


@pytest.fixture(
    params=["eagle", "eagle3", "eagle3 of two layers", "p-eagle", "pard", "standalone", "bundled", "hybrid"]
)
def head(request) -> tuple[Head, int]:
    """A head of random weights, and the width of what it reads of the target."""
    torch.manual_seed(0)
    shared = Shared(torch.randn(768, 24), torch.randn(768, 24))
    if request.param == "eagle":
        return FeatureNet(small_draft("eagle"), shared).eval(), 24
    if request.param == "eagle3":
        return EagleNet(small_draft("eagle3", draft_vocab=32, hidden_size=20, num_hidden_layers=1), shared).eval(), 48
    if request.param == "p-eagle":
        own = small_draft("eagle3", draft_vocab=32, mask_id=5, parallel=True, hidden_size=20)
        return EagleNet(own, shared).eval(), 48
    if request.param in ("pard", "standalone"):
        return LanguageHead(CausalNet(SMALL).eval(), 5 if request.param == "pard" else None), 24
    if request.param == "bundled":
        return DeepseekNet(LATENT).eval().bundled()[0], 24
    if request.param == "hybrid":
        return HybridNet(HYBRID).eval().bundled()[0], 24
    return EagleNet(small_draft("eagle3"), shared).eval(), 48


@torch.inference_mode()
def test_an_unrolled_step_equals_drafting_from_that_slot(head):
    # Each base slot drafts on its own: its later steps see step-0 keys up to the slot and only their own keys after it.
    net, width = head
    tokens = torch.randint(0, 768, (1, 12), generator=torch.Generator().manual_seed(1))
    captured = torch.randn(1, 12, width, generator=torch.Generator().manual_seed(2))
    unrolled = unroll(net, tokens, captured, 4)
    draft = HeadDraft(net, torch.arange(768), tokens[0].tolist(), captured[0])
    for slot in (0, 3, 6):
        path, states = (), []
        for step in range(4):
            state, logits = draft.after([slot + 1], [path], [states])
            assert logits.abs().max() > 0.1
            assert (unrolled[step][1][0, slot] - logits[0]).abs().max() < 1e-4, (slot, step)
            path, states = (*path, int(tokens[0, slot + 2 + step])), [*states, state[0]]


@torch.inference_mode()
def test_drafts_over_a_text_read_once_equal_a_pass_over_the_whole_sequence(head):
    net, width = head
    tokens = torch.randint(0, 768, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    captured = torch.randn(12, width, generator=torch.Generator().manual_seed(2))
    draft, features = HeadDraft(net, torch.arange(768), tokens, captured), net.features(captured)
    mask = mask_of(net)
    for slots, paths in (([1, 5], [(), ()]), ([7, 5], [(9,), (700,)]), ([7, 7, 4], [(3, 9), (3, 11), (8, 2)])):
        depth = len(paths[0])
        states = [[torch.randn_like(features[0]) for _ in range(depth)] for _ in paths]
        made = draft.after(slots, paths, states)
        for row, (known, path, own) in enumerate(zip(slots, paths, states, strict=True)):
            if mask is not None:
                path, own = (mask[0],) * depth, [mask[1]] * depth
            hidden = torch.stack((*features[:known], *own))[None]
            table = rope_table(net.shape, torch.arange(known + depth))
            whole_pass = net.step(torch.tensor([[*tokens[1 : known + 1], *path]]), hidden, table, whole)
            for ours, theirs in zip(made, whole_pass, strict=True):
                torch.testing.assert_close(ours[row], theirs[0, -1], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_a_chain_of_layers_equals_drafting_layer_by_layer():
    torch.manual_seed(0)
    net = DeepseekNet(LATENT).eval()
    tokens = torch.randint(0, 768, (1, 12), generator=torch.Generator().manual_seed(1))
    final = torch.randn(1, 12, 24, generator=torch.Generator().manual_seed(2))
    heads = net.bundled()
    made = rotated(heads, tokens, final)
    draft = RotatedDraft(heads, tokens[0].tolist(), final[0])
    for slot in (2, 7):
        first, logits = draft.after([slot + 1], [()], [[]])
        assert (made[0][1][0, slot] - logits[0]).abs().max() < 1e-4
        _, logits = draft.after([slot + 1], [(int(tokens[0, slot + 2]),)], [[first[0]]])
        assert (made[1][1][0, slot] - logits[0]).abs().max() < 1e-4


@torch.inference_mode()
def test_a_block_depends_on_the_context_in_front_of_it_and_on_its_anchor_alone():
    torch.manual_seed(0)
    shared = Shared(torch.randn(768, 24), torch.randn(768, 24))
    net = DflashNet(small_draft("dflash", block=5, mask_id=3), shared).eval()
    tokens = torch.randint(4, 768, (1, 12), generator=torch.Generator().manual_seed(1))
    captured = torch.randn(1, 12, 48, generator=torch.Generator().manual_seed(2))
    both = net.rows(tokens, captured, torch.tensor([[4, 7]]))
    assert both.shape == (1, 2, 4, 24)
    assert (net.rows(tokens, captured, torch.tensor([[7]]))[:, 0] - both[:, 1]).abs().max() < 1e-4
    tokens[0, 8:], captured[0, 7:] = 9, 1.0
    later = net.rows(tokens, captured, torch.tensor([[4, 7]]))
    assert (later - both).abs().max() < 1e-4
    captured[0, 6] = 1.0
    assert (net.rows(tokens, captured, torch.tensor([[4, 7]]))[:, 1] - both[:, 1]).abs().max() > 0.01


def test_a_routers_bias_moves_towards_the_idle_experts():
    torch.manual_seed(0)
    net = DeepseekNet(LATENT)
    router = net.bundled()[0].layer.mlp.gate
    _, weights, chosen = router.train()(torch.randn(1, 50, 24))
    load = torch.nn.functional.one_hot(chosen, 4).float().sum(1).mean(0)
    moved = router.e_score_correction_bias.clone()
    assert torch.equal(moved.sign(), (load.mean() - load).sign())
    assert chosen.shape == (50, 2) and torch.allclose(weights.sum(-1), torch.tensor(2.5))
    assert torch.equal(chosen[:, 0] // 2, chosen[:, 1] // 2)
    router.eval()(torch.randn(1, 50, 24))
    assert torch.equal(router.e_score_correction_bias, moved)


def test_a_later_key_of_another_slot_is_never_seen():
    generator = torch.Generator().manual_seed(3)
    q, first, later, values, mixed = (torch.randn(1, 1, 5, 8, generator=generator) for _ in range(5))
    before = unrolled_attention(q, [first, later], [values, mixed])
    changed = later.clone()
    changed[:, :, 4] += 1.0
    after = unrolled_attention(q, [first, changed], [values, mixed])
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4], after[:, :, 4])


def test_shares_above_one_are_scaled_equally():
    fit = RECIPES["qwen3-mini"].fit
    alone = plan_of("cpu", Path("none"), 8.0, short=False)
    assert alone.seconds_for(fit) == pytest.approx(fit.share * 480)
    assert replace(alone, whole=0.5).seconds_for(fit) == pytest.approx(fit.share * 480)
    assert replace(alone, whole=4.0).seconds_for(fit) == pytest.approx(fit.share * 120)


def test_a_loss_that_is_not_finite_ends_the_training():
    module = torch.nn.Linear(2, 1)
    one = torch.ones(1, 2, dtype=torch.int64)
    batches = repeat(Batch(one, one[:, 0], one[:, 0]))
    with pytest.raises(ArithmeticError, match=r"^the loss is nan after 1 steps; lower the learning rate$"):
        optimise(module, Fit(3, 1.0, 2, 1e-3), 60.0, batches, lambda batch: module.weight.sum() * torch.nan, print)


def tiny_plan(out):
    """Two steps on a few problems."""
    plan = plan_of("cpu", out, 60.0, short=True)
    sizes = {"train_problems": 64, "distill_problems": 4, "test_problems": 2}
    tiny = replace(plan.data, **sizes, heldout_problems=4, level_problems=1, answer_limit=6)
    short = {"steps": 2, "batch_tokens": 512}

    def shortened(recipe):
        bundled = recipe.bundled_fit and replace(recipe.bundled_fit, **short)
        return replace(recipe, fit=replace(recipe.fit, **short), bundled_fit=bundled, unroll=min(recipe.unroll, 2))

    return replace(plan, data=tiny, recipes={name: shortened(recipe) for name, recipe in plan.recipes.items()})


@pytest.mark.nightly
def test_a_few_steps_on_a_cpu_write_loadable_checkpoints(tmp_path, capsys):
    train(tiny_plan(tmp_path), list(RECIPES))
    assert "llama-mini-eagle3" in capsys.readouterr().out
    for name in RECIPES:
        known = card.read(tmp_path / name)
        assert known.training["steps"] == 2
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= {p.name for p in (tmp_path / name).iterdir()}


def test_a_draft_alone_learns_from_the_target_that_is_there(tmp_path, capsys):
    """The one in its folder, else the committed one."""
    train(tiny_plan(tmp_path), ["llama-mini-standalone"])
    assert f"llama-mini-standalone learns from {CHECKPOINTS / 'llama-mini'}\n" in capsys.readouterr().out
    assert [each.name for each in tmp_path.iterdir()] == ["llama-mini-standalone"]
    copytree(CHECKPOINTS / "llama-mini", tmp_path / "llama-mini")
    assert tiny_plan(tmp_path).target_folder("llama-mini") == tmp_path / "llama-mini"
