"""The executor on every target: greedy tokens equal those of transformers, with and without drafts, at both timings."""

from __future__ import annotations

import shutil

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.schedule.request import SamplingParams

SHAPE = {
    "vocab_size": 768,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
TARGETS = {
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            **SHAPE,
            use_sliding_window=True,
            sliding_window=2,
            layer_types=["full_attention"] * 2 + ["sliding_attention"] * 2,
        )
    ),
    "deepseek": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(
            **{name: size for name, size in SHAPE.items() if name != "head_dim"} | {"num_key_value_heads": 4},
            q_lora_rank=28,
            kv_lora_rank=21,
            qk_nope_head_dim=14,
            qk_rope_head_dim=10,
            v_head_dim=18,
            n_routed_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=28,
            n_group=3,
            topk_group=2,
            first_k_dense_replace=1,
            num_nextn_predict_layers=0,
        )
    ),
}
# (algorithm, steps, topk, nodes, version); the tree is drafted by the target itself, so that deep paths are accepted.
RUNS = [("NONE", 0, 0, 1, "v2"), ("STANDALONE", 5, 1, 6, "v2"), ("STANDALONE", 5, 2, 13, "v1")]
PROMPTS = [[(7 * i + r) % 700 + 2 for i in range(n)] for r, n in enumerate((29, 17, 6))]


@pytest.fixture(scope="module", params=TARGETS)
def target(request, tmp_path_factory, zoo):
    """A folder of a random target with llama-mini's tokenizer, a draft that mostly agrees, and greedy tokens."""
    torch.manual_seed(5)
    model = TARGETS[request.param]().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # What the last layers attend to moves logits a little, so that a draft without windows is mostly right.
            size = 0.005 if "o_proj" in key and int(key.split(".")[2]) > 1 else 0.2
            parameter.copy_(torch.rand_like(parameter) + 0.5 if "norm" in key else torch.randn_like(parameter) * size)
    folder, draft = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("draft")
    model.save_pretrained(folder)
    # The draft has the same weights, without windows.
    full = {"use_sliding_window": False, "layer_types": None} if request.param == "qwen3" else {}
    agreeing = type(model)(type(model.config)(**model.config.to_dict() | full))
    agreeing.load_state_dict(model.state_dict())
    agreeing.save_pretrained(draft)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(zoo("llama-mini") / name, folder)
        shutil.copy(zoo("llama-mini") / name, draft)
    return folder, draft, [_greedy(model, prompt, 24) for prompt in PROMPTS]


@torch.inference_mode()
def _greedy(model, prompt, new):
    """The greedy tokens and their log-probabilities."""
    tokens, logprobs = list(prompt), []
    for _ in range(new):
        best = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1).max(-1)
        tokens.append(int(best.indices))
        logprobs.append(float(best.values))
    return tokens[len(prompt) :], logprobs


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run[0]}-{run[1]}-{run[2]}-{run[4]}")
@pytest.mark.parametrize("page_size", [1, 7])
def test_greedy_tokens_are_those_of_transformers(target, run, page_size):
    folder, draft, expected = target
    algorithm, steps, topk, nodes, version = run
    drafted = {
        "speculative_draft_model_path": str(draft),
        "speculative_num_steps": steps,
        "speculative_eagle_topk": topk,
        "speculative_num_draft_tokens": nodes,
    }
    llm = LLM(
        EngineConfig(
            str(folder),
            speculative_algorithm=algorithm,
            spec_version=version,
            page_size=page_size,
            max_total_tokens=page_size * (420 // page_size),
            max_running_requests=3,
            chunked_prefill_size=9,
            strict_memory=2,
            kv_stamps=True,
            enable_deterministic_inference=True,
            **(drafted if steps else {}),
        )
    )
    outputs = llm.generate(PROMPTS, SamplingParams(max_new_tokens=24, ignore_eos=True, return_logprob=True))
    for output, (tokens, logprobs) in zip(outputs, expected, strict=True):
        assert list(output.output_ids) == tokens
        assert output.logprobs == pytest.approx(logprobs, abs=1e-4)
    if steps:
        assert max(max(output.accept_lengths) for output in outputs) >= 4
