"""Writing and reading checkpoints in Hugging Face layout."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from specmatrix.matrix.zoo.bundled_net import DeepseekNet, HybridNet
from specmatrix.matrix.zoo.config_json import config_of
from specmatrix.matrix.zoo.heads import Dflash2Net, DflashNet, DsparkNet, EagleNet, FeatureNet, Shared
from specmatrix.matrix.zoo.net import CausalNet
from specmatrix.matrix.zoo.registry import Recipe, Shape

STORED: Final = torch.float16
# What every checkpoint has beside config.json, weights and tokenizer.json; drafts have no generation_config.json.
FILES: Final = Path(__file__).with_name("data") / "checkpoint_files.json"
# The router's bias decides between close scores, so it stays in float32, as in DeepSeek's checkpoints.
WIDE: Final = "e_score_correction_bias"
GATE_UP: Final = ("gate_proj", "up_proj")
# By `model_type`; the others have no MTP layers.
NETS: Final[dict[str, Callable[[Shape], CausalNet]]] = {
    "deepseek_v3": DeepseekNet,
    "qwen3_next": HybridNet,
    "qwen3_5_text": HybridNet,
}

Draft = FeatureNet | EagleNet | DflashNet
# By kind of a recipe; DFLASH2's has parts of its own.
DRAFT_NETS: Final[dict[str, Callable[[Recipe, Shared], Draft]]] = {
    **{"eagle": FeatureNet, "eagle3": EagleNet},
    **{"dflash": DflashNet, "dflash2": Dflash2Net, "dspark": DsparkNet},
}


def new_net(recipe: Recipe) -> CausalNet:
    """An untrained target or standalone draft."""
    return NETS.get(recipe.config["model_type"], CausalNet)(recipe.shape)


def new_draft(recipe: Recipe, target: CausalNet) -> Draft:
    """An untrained draft that reads `target`."""
    shared = Shared(target.model.embed_tokens.weight, target.lm_head.weight)
    return DRAFT_NETS["dflash2" if recipe.dflash2 else recipe.kind](recipe, shared)


def write(
    folder: Path,
    recipe: Recipe,
    module: nn.Module,
    tokenizer_json: str,
    target: Recipe | None = None,
    kept: Tensor | None = None,
) -> None:
    """Write config, weights and tokenizer; `kept` [Vd]: ascending target ids of a separate draft vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: _stored(name, tensor) for name, tensor in named(module).items()}
    if kept is not None:
        tensors["d2t"] = (kept - torch.arange(len(kept))).to(torch.int64)
        tensors["t2d"] = torch.zeros(recipe.shape.vocab_size, dtype=torch.bool).index_fill(0, kept, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    files = json.loads(FILES.read_text(encoding="utf-8")) | {"config.json": config_of(recipe, target)}
    files["tokenizer_config.json"]["model_max_length"] = recipe.shape.max_position_embeddings
    if recipe.kind not in ("target", "standalone"):
        del files["generation_config.json"]
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _stored(name: str, tensor: Tensor) -> Tensor:
    kind = torch.float32 if name.endswith(WIDE) else STORED
    return tensor.detach().to(kind).cpu().clone().contiguous()


def named(module: nn.Module) -> dict[str, Tensor]:
    """Checkpoint tensors by name: one per expert, no tied head, embedding and head copied into MTP layers."""
    state: dict[str, Tensor] = dict(module.state_dict())
    if isinstance(module, CausalNet) and module.shape.tie_word_embeddings:
        del state["lm_head.weight"]
    if isinstance(module, DeepseekNet):
        for index in range(module.depth, len(module.model.layers)):
            state[f"model.layers.{index}.embed_tokens.weight"] = state["model.embed_tokens.weight"]
            state[f"model.layers.{index}.shared_head.head.weight"] = state["lm_head.weight"]
    for name in [name for name in state if ".experts." in name]:
        stem, projection = name.rsplit(".", 1)
        both = projection == "gate_up_proj"  # transformers' stacked gates, then ups
        for index, tensor in enumerate(state.pop(name)):
            halves = zip(GATE_UP, tensor.chunk(2), strict=True) if both else ((projection, tensor),)
            state |= {f"{stem}.{index}.{part}.weight": half for part, half in halves}
    return state


def _read(folder: Path) -> dict[str, Tensor]:
    """Stored tensors in float32 under the training nets' names, so that evaluation uses the stored weights."""
    state: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        wide = tensor.float() if tensor.is_floating_point() else tensor
        if ".experts." in name:
            stem, rest = name.split(".experts.")
            index, projection = rest.removesuffix(".weight").split(".")
            experts.setdefault(f"{stem}.experts.{projection}", {})[int(index)] = wide
        elif not name.endswith("shared_head.head.weight") and ".embed_tokens." not in name.partition("layers")[2]:
            state[name] = wide
    return state | {name: torch.stack([each[i] for i in range(len(each))]) for name, each in experts.items()}


def read_net(folder: Path, recipe: Recipe, device: torch.device) -> CausalNet:
    """Load a stored target or standalone draft in float32."""
    net, state = new_net(recipe), _read(folder)
    if net.shape.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    for stem in [name.removesuffix("gate_proj") for name in state if name.endswith(".experts.gate_proj")]:
        state[f"{stem}gate_up_proj"] = torch.cat([state.pop(stem + part) for part in GATE_UP], 1)
    net.load_state_dict(state)
    return net.to(device).eval().requires_grad_(False)


def start_from(folder: Path, module: nn.Module) -> Tensor | None:
    """Load the weights of another checkpoint that a module has too; returns the target ids [Vd] of its own vocabulary,
    None if it has none."""
    state = _read(folder)
    kept = state.pop("d2t", None)
    state.pop("t2d", None)
    module.load_state_dict(state, strict=False)
    return None if kept is None else kept + torch.arange(len(kept))


def read_draft(folder: Path, recipe: Recipe, target: CausalNet, device: torch.device) -> tuple[Draft, Tensor]:
    """Load a stored draft of `target` in float32; also returns the target ids [Vd] of its vocabulary."""
    draft, state = new_draft(recipe, target), _read(folder)
    kept = torch.arange(recipe.draft_vocab or recipe.shape.vocab_size)
    if recipe.draft_vocab:
        kept = kept + state.pop("d2t")
        state.pop("t2d")
    draft.load_state_dict(state)
    return draft.to(device).eval().requires_grad_(False), kept.to(device)
