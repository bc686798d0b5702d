"""DFLASH's drafts as the zoo trains them: a whole block in one forward, no KV kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from specmatrix.matrix.zoo.dflash2_net import Dflash2Net
from specmatrix.matrix.zoo.dflash_net import DflashNet
from specmatrix.matrix.zoo.dspark_net import DsparkNet
from specmatrix.matrix.zoo.eagle_net import Shared
from specmatrix.matrix.zoo.recipes import BlockHeads, Dflash2Parts, Shape
from tests.support.random_drafts import Shapes

NOTHING = torch.empty(0)
PARTS = Dflash2Parts.__dataclass_fields__


def block_net(c: dict[str, Any], embedding: Tensor = NOTHING, head: Tensor = NOTHING, target_hidden: int = 48) -> Any:  # noqa: ANN401 - a DflashNet and more
    """A net by config.json; embedding [V, H] and head [V, H] are the target's."""
    own = c.get("dflash_config", c)
    states = len(own.get("target_layer_ids", range(c["num_hidden_layers"])))
    shape = Shape(**{"model_type": "qwen3", "hidden_act": "silu"} | c)
    always = shape, states * target_hidden, 0, own["mask_token_id"], Shared(embedding, head)
    if "conv_kernel_size" in own:
        return Dflash2Net(*always, Dflash2Parts(**{name: own[name] for name in PARTS})).eval()
    if "markov_head_type" in c:
        return DsparkNet(*always, BlockHeads(c["markov_head_type"], c["markov_rank"])).eval()
    return DflashNet(*always).eval()


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
