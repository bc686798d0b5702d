"""DFLASH's drafts as the zoo trains them: a whole block in one forward, no KV kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specmatrix.matrix.zoo.heads import Dflash2Net, DflashNet, DsparkNet, Shared
from specmatrix.matrix.zoo.registry import RECIPES, BlockHeads, Dflash2Parts
from tests.support.random_drafts import Shapes

NOTHING = torch.empty(0)
PARTS = Dflash2Parts.__dataclass_fields__


def block_net(c: dict[str, Any], embedding: Tensor = NOTHING, head: Tensor = NOTHING, target_hidden: int = 48) -> Any:  # noqa: ANN401 - a DflashNet and more
    """A net by config.json; embedding [V, H] and head [V, H] are the target's."""
    own = c.get("dflash_config", c)
    states = range(len(own.get("target_layer_ids", range(c["num_hidden_layers"]))))
    recipe = replace(
        RECIPES["llama-mini-dflash"],
        config={"model_type": "qwen3", "hidden_act": "silu"} | c,
        **{"aux_layers": tuple(states), "block": 0, "mask_id": own["mask_token_id"]},
    )
    shared = Shared(embedding if embedding.numel() else torch.empty(0, target_hidden), head)
    if "conv_kernel_size" in own:
        parts = Dflash2Parts(**{name: own[name] for name in PARTS})
        return Dflash2Net(replace(recipe, dflash2=parts), shared).eval()
    if "markov_head_type" in c:
        return DsparkNet(replace(recipe, heads=BlockHeads(c["markov_head_type"], c["markov_rank"])), shared).eval()
    return DflashNet(recipe, shared).eval()


def shapes_of(net: DflashNet) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}


def read(net: Any, folder: Path) -> Any:  # noqa: ANN401 - as above
    """The net with a checkpoint's weights."""
    net.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()})
    return net


def block(net: DflashNet, first: int, width: int, states: Tensor) -> Tensor:
    """Hidden states [width, H] of a block whose first token is known; states [L, A * Ht] of all positions before it."""
    net.first = 0
    tokens, at = torch.tensor([[0] * len(states) + [first]]), torch.tensor([[len(states)]])
    return net.rows(tokens, torch.cat((states, states[:1]))[None], at, width + 1)[0, 0]
