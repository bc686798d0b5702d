"""Random networks of every kind of target in whole checkpoints, their config.json with fields and spellings that no
fixture has: an engine scores a text as transformers does."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final

import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.engine.models.tokenizer import Detokenizer, Tokenizer
from specmatrix.errors import ConfigError
from specmatrix.matrix.conformance.random_networks import scaled_rotation
from specmatrix.matrix.zoo.registry import resolve_path
from specmatrix.matrix.zoo.tokenizer import BOS_ID
from specmatrix.temp_dir import TempDir

# What a tokenizer reads as the token that begins a text.
BEGIN: Final = "<|begin|>"
MADE = 3  # targets of a check
# Tokens of a text, and nats within which two libraries agree; a delta rule's norm enlarges rounding.
TEXT, NEAR, HYBRID_NEAR = 28, 3e-4, 2e-3
SHAPE: Final[dict[str, Any]] = {
    **{"vocab_size": 768, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "eos_token_id": 2},
}
LATENT: Final[dict[str, Any]] = {
    **{"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 8, "v_head_dim": 10, "moe_intermediate_size": 20},
    **{"n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4},
    **{"num_nextn_predict_layers": 0, "n_shared_experts": 1, "n_group": 4},
}
DELTA: Final[dict[str, Any]] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12},
    **{"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 20},
}
# Each target's model_type and architecture, its own sizes, and the values of fields among which each network chooses.
KINDS: Final[tuple[tuple[str, str, dict[str, Any], dict[str, tuple[Any, ...]]], ...]] = (
    ("llama", "LlamaForCausalLM", {}, {}),
    ("mistral", "MistralForCausalLM", {}, {"sliding_window": (None, 5)}),
    ("qwen3", "Qwen3ForCausalLM", {"sliding_window": 5, "use_sliding_window": True}, {"max_window_layers": (1, 2)}),
    ("deepseek_v3", "DeepseekV3ForCausalLM", LATENT, {
        "rope_interleave": (True, False), "norm_topk_prob": (True, False), "routed_scaling_factor": (1.3, 2.5),
        "topk_group": (1, 3), "q_lora_rank": (None, 14),
    }),
    ("qwen3_next", "Qwen3NextForCausalLM", DELTA, {
        "full_attention_interval": (2, 3), "partial_rotary_factor": (0.25, 0.5), "linear_conv_kernel_dim": (3, 4),
        "norm_topk_prob": (True, False),
    }),
)  # fmt: skip


def first_wrong_text(seed: int) -> str:
    """A sentence if a random text of characters of several tokens is encoded with other than one token that begins it,
    or shown otherwise than it is while its tokens come; else ""."""
    random, tokenizer = Random(seed), Tokenizer(resolve_path("llama-mini"))
    stream, shown, text = Detokenizer(tokenizer), "", "".join(random.choices("7 aé€😀", k=TEXT))
    ids = tokenizer.encode(random.choice(("", BEGIN)) + text)
    if ids.count(BOS_ID) != 1:
        return f"the random text {seed} is encoded as {ids}, which has not one token {BOS_ID}"
    while ids:
        size = random.randrange(1, 4)
        shown, ids = stream.push(ids[:size]), ids[size:]
        if shown != text[: len(shown)]:
            break
    return "" if shown == text else f"{len(ids)} tokens before its end, the random text {text!r} is shown as {shown!r}"


def first_wrong_target(seed: int) -> str:
    """A sentence on the first of some random targets that scores a text, or ends it, otherwise than transformers'
    network of its config.json, or whose checkpoint is refused; else ""."""
    from transformers.utils import logging as library

    logging: Any = library  # transformers has no types
    random, verbosity, bars = Random(seed), logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return next(filter(None, (_wrong_target(random, seed, *kind) for kind in random.sample(KINDS, MADE))), "")
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@torch.inference_mode()
def _wrong_target(
    random: Random, seed: int, kind: str, architecture: str, sizes: dict[str, Any], choices: dict[str, tuple[Any, ...]]
) -> str:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    chosen = {name: random.choice(values) for name, values in choices.items()}
    chosen |= {"rms_norm_eps": random.choice((1e-2, 0.3)), "tie_word_embeddings": random.choice((True, False))}
    written = SHAPE | sizes | chosen | ({} if sizes is DELTA else scaled_rotation(random))
    made: Any = CONFIG_MAPPING[kind]
    network: Any = MODEL_FOR_CAUSAL_LM_MAPPING[made]
    # A checkpoint with a head of its own is not tied, whatever its config.json says.
    said = {"tie_word_embeddings": chosen["tie_word_embeddings"] or random.choice((True, False))}
    with torch.random.fork_rng(), TempDir("target") as folder:
        torch.manual_seed(seed)
        model: Any = network(made.from_dict(dict(written))).eval()
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or "A_log" in name:
                weight.add_(torch.rand_like(weight) - 0.5)
            elif "inv_freq" not in name:
                weight.copy_(torch.randn_like(weight) * 0.3)
        model.save_pretrained(folder)
        (folder / "tokenizer.json").symlink_to(resolve_path("llama-mini").resolve() / "tokenizer.json")
        tokens = torch.randint(3, 768, (TEXT,)).tolist()
        due = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        # What comes next ends the text if generation_config.json says so, whatever config.json says.
        ends = random.sample(best := due[-1].topk(2).indices.tolist(), 2)
        files: tuple[dict[str, Any], ...] = {}, written | said | {"architectures": [architecture]}
        for name, fields, end in zip(("generation_config", "config"), files, ends, strict=True):
            text = json.dumps(fields | {"eos_token_id": end})
            (folder / f"{name}.json").write_text(text, encoding="utf-8")
        try:
            config = EngineConfig(model_path=str(folder), device="cpu", max_total_tokens=64, max_running_requests=1)
            [answer] = LLM(config).generate([tokens], SamplingParams(max_new_tokens=2, logprob_start_len=0))
        except ConfigError as error:
            return f"the random target {seed} is refused: {error}"
    scores = enumerate(answer.prompt_logprobs[1:])
    off = [abs(float(due[at, tokens[at + 1]]) - score) for at, score in scores if score is not None]
    named = f"the random target {seed}, {kind} with {chosen},"
    if len(off) < TEXT - 1 or max(off) > (HYBRID_NEAR if sizes is DELTA else NEAR):
        return f"{named} scores a token of its text {max(off):.2g} nats off"
    whole = answer.output_ids[: 1 if ends[0] == best[0] else 2]
    return "" if whole == answer.output_ids and whole[0] == best[0] else f"{named} ends behind {answer.output_ids}"
