"""Hybrids that have no committed checkpoint yet: what is written is transformers' model, and reads back unchanged."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from specmatrix.matrix.zoo.checkpoint import new_net, read_net, write
from specmatrix.matrix.zoo.decode import greedy
from specmatrix.matrix.zoo.net import FINAL, Cache
from specmatrix.matrix.zoo.recipes import PLANNED, HybridShape
from specmatrix.matrix.zoo.registry import HERE

HYBRIDS = [name for name, one in PLANNED.items() if isinstance(one.shape, HybridShape) and one.kind == "target"]


@pytest.mark.parametrize("name", HYBRIDS)
@torch.inference_mode()
def test_a_hybrid_is_written_in_the_published_layout_and_read_back(name, tmp_path):
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    net = new_net(PLANNED[name])
    for parameter in net.parameters():
        parameter.copy_((parameter * 2 + 0.05 * torch.randn_like(parameter)).half().float())
    write(tmp_path, PLANNED[name], net, (HERE / "data" / "tokenizer.json").read_text(encoding="utf-8"))
    model, loading = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not any(loading[kind] for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"))
    mtp = {key for key in load_file(tmp_path / "model.safetensors") if key.startswith("mtp.")}
    assert {"mtp.fc.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.layers.0.self_attn.q_norm.weight"} < mtp
    tokens = torch.randint(2, 768, (3, 90), generator=torch.Generator().manual_seed(0))
    stored = read_net(tmp_path, PLANNED[name], torch.device("cpu"))
    whole, aux = stored(tokens, aux=(1, FINAL))
    assert torch.equal(whole, net(tokens)[0])
    theirs = model(input_ids=tokens, output_hidden_states=True)
    assert theirs.logits.abs().max() > 1.0
    assert (whole - theirs.logits).abs().max() < 1e-3
    assert (aux[..., : net.hidden] - theirs.hidden_states[2]).abs().max() < 2e-3
    cache = Cache(90)
    parts = [stored(tokens[:, :70], cache)[0], *(stored(tokens[:, i : i + 1], cache)[0] for i in range(70, 90))]
    assert (torch.cat(parts, 1) - whole).abs().max() < 2e-3
    prompts = [row[:length] for row, length in zip(tokens.tolist(), (40, 9, 23), strict=True)]
    alone = [greedy(stored, [prompt], 12)[0] for prompt in prompts]
    assert greedy(stored, prompts, 12) == alone and len({tuple(answer) for answer in alone}) == 3
    assert isinstance(stored.prediction, nn.Module) and {f"mtp.{key}" for key in stored.prediction.state_dict()} >= {
        key for key in mtp if ".experts." not in key
    }
