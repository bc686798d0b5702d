import pytest
import torch

from matrix.zoo import card
from matrix.zoo.eagle_net import EagleNet, unrolled_attention
from matrix.zoo.oracle import EagleDraft
from matrix.zoo.recipes import RECIPES
from matrix.zoo.train import plan_of, train

pytestmark = pytest.mark.register(est_seconds=15, tier="cpu", stage="pr")


@pytest.fixture
def head() -> EagleNet:
    torch.manual_seed(0)
    return EagleNet(RECIPES["llama-mini-eagle3"].shape, 12, 32).eval()


@torch.inference_mode()
def test_an_unrolled_step_is_what_drafting_from_that_slot_gives(head):
    # Each base slot drafts on its own: its later steps see step-0 keys up to the slot and only their own keys after it.
    tokens = torch.randint(0, 768, (1, 12), generator=torch.Generator().manual_seed(1))
    aux = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(2))
    unrolled = head.unroll(tokens, aux, 4)
    draft = EagleDraft(head, torch.arange(32), tokens[0].tolist(), aux[0])
    for slot in (0, 3, 6):
        path, states = (), []
        for step in range(4):
            state, logits = draft.after(slot + 1, [path], [states])
            assert (unrolled[step][0, slot] - logits[0]).abs().max() < 1e-4, (slot, step)
            path, states = (*path, int(tokens[0, slot + 2 + step])), [*states, state[0]]


def test_a_later_key_of_another_slot_is_never_seen():
    generator = torch.Generator().manual_seed(3)
    q, first, later, values, mixed = (torch.randn(1, 1, 5, 8, generator=generator) for _ in range(5))
    before = unrolled_attention(q, [first, later], [values, mixed])
    changed = later.clone()
    changed[:, :, 4] += 1.0
    after = unrolled_attention(q, [first, changed], [values, mixed])
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4], after[:, :, 4])


def test_a_few_steps_on_a_cpu_write_loadable_checkpoints(tmp_path, capsys):
    from dataclasses import replace

    plan = plan_of("cpu", tmp_path, 60.0, short=True)
    sizes = {"train_problems": 64, "distill_problems": 8, "test_problems": 4}
    tiny = replace(plan.data, **sizes, heldout_problems=4, level_problems=1)
    recipes = {name: replace(r, fit=replace(r.fit, steps=2, batch_tokens=512)) for name, r in plan.recipes.items()}
    train(replace(plan, data=tiny, recipes=recipes), list(RECIPES))
    assert "llama-mini-eagle3" in capsys.readouterr().out
    for name in RECIPES:
        known = card.read(tmp_path / name)
        assert known.training["steps"] == 2
        assert {"model.safetensors", "config.json", "tokenizer.json"} <= {p.name for p in (tmp_path / name).iterdir()}
