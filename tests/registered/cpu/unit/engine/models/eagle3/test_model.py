"""The EAGLE-3 draft against the training code's independent network on the same weights, and its refusals."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.models.loader import load_eagle3, load_target
from specmatrix.engine.models.weights import load_weights
from specmatrix.errors import ConfigError


@pytest.fixture
def draft(llama_folder, eagle_folder):
    """A factory: the draft of a random target; keywords go to its checkpoint."""

    def build(deterministic: bool = True, **changes: object):
        target = load_target(llama_folder(), "cpu", torch.float32, deterministic)
        return load_eagle3(eagle_folder(**changes), target)

    return build


def test_embeddings_and_head_come_from_the_target_where_missing(llama_folder, eagle_folder):
    target = load_target(llama_folder(), "cpu", torch.float32)
    shared = {"drop": ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d")}
    folder = eagle_folder(hidden_size=48, head_dim=16, draft_vocab_size=97, **shared)
    model = load_eagle3(folder, target)
    own = load_weights(folder, "cpu", torch.float32)
    assert torch.equal(model.head, target.head * model.norm.scale(own["norm.weight"])[:, None])
    scale = model.norm.scale(own["midlayer.input_layernorm.weight"])
    assert torch.equal(model.embedding, model.norm.whole(target.embedding, scale))
    assert model.to_target(torch.tensor([5])).tolist() == [5]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"drop": ("fc.weight",)}, "tensor 'fc.weight' is missing from the weights"),
        ({"drop": ("d2t",)}, "d2t is missing, but 41 draft ids are not the target's 97"),
        ({"drop": ("lm_head.weight",)}, r"lm_head.weight is missing, and the target's has shape \(97, 48\), not \(41"),
        ({"drop": ("embed_tokens.weight",)}, "embed_tokens.weight is missing, and the target's width is 48, not 36"),
        (
            {"put": {"d2t": torch.zeros(41, dtype=torch.int64).index_fill_(0, torch.tensor([0]), 1)}},
            "d2t must map draft ids to distinct target ids below 97, but its ids range from 1 to 40",
        ),
        ({"put": {"d2t": torch.full((41,), 90)}}, "d2t must map draft ids to distinct target ids below 97, but its"),
        ({"put": {"t2d": torch.ones(97, dtype=torch.bool)}}, "t2d marks other target ids than d2t maps to"),
        ({"eagle_config": None}, r"default, \[2, 1, 0\] for a target of 3 layers, is not three layers one behind"),
        ({"put": {"midlayer.bias": torch.zeros(1)}}, "tensor 'midlayer.bias' does not belong to this architecture"),
    ],
)
def test_refusals(draft, changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        draft(**changes)


@torch.inference_mode()
def test_ids_map_by_differences(draft, tmp_path):
    model = draft()
    d2t = load_weights(tmp_path / "eagle", "cpu", torch.float32)["d2t"]
    ids = torch.tensor([[0, 40], [7, 7]])
    assert model.to_target(ids).tolist() == [[int(i + d2t[i]) for i in row] for row in ids.tolist()]
