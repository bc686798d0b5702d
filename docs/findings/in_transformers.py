"""Reproduces the findings of docs/findings.md with tiny models; needs only torch, tokenizers and transformers.

Run it without arguments for all findings, or with their names. Each prints what transformers should do, usually what it
does without speculation, what it does, and whether it was reproduced. Exit status: 0 if every one was, 1 if not, 2 for
an unknown name.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    StoppingCriteria,
    SynthIDTextWatermarkingConfig,
)
from transformers.generation import utils as generation
from transformers.generation.candidate_generator import AssistantToTargetTranslator
from transformers.generation.logits_process import TemperatureLogitsWarper
from transformers.modeling_layers import MtpModel
from transformers.utils import logging

# (what transformers should do, what it does)
Pair = tuple[Any, Any]
FINDINGS: dict[str, Callable[[], Pair]] = {}
LETTERS = "abcdefghijklmnop"
SIZES: dict[str, Any] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def finding(function: Callable[[], Pair]) -> Callable[[], Pair]:
    """Adds a function to FINDINGS under its name with dashes."""
    FINDINGS[function.__name__.replace("_", "-")] = function
    return function


def random_model(family: type[PreTrainedModel] = LlamaForCausalLM, config: Any = LlamaConfig, **changes: Any) -> Any:
    """Two random layers over 16 tokens, always the same; as an assistant it drafts 3 tokens."""
    torch.manual_seed(0)
    model = family(config(**(SIZES | changes))).eval()
    model.generation_config.assistant_confidence_threshold = 0.0
    model.generation_config.num_assistant_tokens = 3
    return model


def windowed(layers: tuple[str, ...], window: int) -> Any:
    """A Qwen3 with sliding-window layers."""
    return random_model(
        Qwen3ForCausalLM,
        Qwen3Config,
        head_dim=16,
        use_sliding_window=True,
        sliding_window=window,
        layer_types=list(layers),
    )


def counting(vocabulary: int = 16) -> Any:
    """A model whose token after t is t + 1, modulo 16."""
    model = random_model(hidden_size=16, head_dim=8)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(16))
        model.lm_head.weight.copy_(torch.eye(16).roll(1, 0))
    model.resize_token_embeddings(vocabulary)
    return model


def letters(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer with one token per letter."""
    tokenizer = Tokenizer(BPE({letter: place for place, letter in enumerate(text)}, []))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def generate(model: Any, prompt: list[int], tokens: int = 8, **arguments: Any) -> Any:
    """What generate() returns; greedy unless the arguments say otherwise."""
    torch.manual_seed(0)
    ids = torch.tensor([prompt])
    defaults = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "do_sample": False}
    return model.generate(ids, **(defaults | arguments))


def new_tokens(model: Any, prompt: list[int], tokens: int = 8, **arguments: Any) -> list[int]:
    """The generated tokens."""
    return generate(model, prompt, tokens, **arguments)[0, len(prompt) :].tolist()


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the start of its error."""
    try:
        return call()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:70]}"


def widths(model: Any, call: Callable[[], Any]) -> list[int]:
    """The number of new positions of each forward pass of a model during a call."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(lambda m, a, k: seen.append(k["input_ids"].shape[1]), with_kwargs=True)
    call()
    hook.remove()
    return seen


@finding
def prompt_ends_with_eos() -> Pair:
    """A prompt whose last token is an EOS token: without drafts in the first round, nothing is generated."""
    model = random_model()
    plain = new_tokens(model, [1, 2, 3, 9], eos_token_id=9)
    return plain, new_tokens(model, [1, 2, 3, 9], eos_token_id=9, prompt_lookup_num_tokens=3)


@finding
def bad_words_over_the_whole_text() -> Pair:
    """Bad words of which all but the last are the whole prompt, and the same words after another token."""
    model, words = counting(), {"bad_words_ids": [[3, 4]]}
    return new_tokens(model, [9, 3], 1, **words), new_tokens(model, [3], 1, **words)


@finding
def decay_of_a_banned_eos() -> Pair:
    """A minimum length and an exponential decay: from the decay's start on, the banned EOS has the score nan."""
    model, least = counting(), {"eos_token_id": 9, "min_new_tokens": 6}
    return new_tokens(model, [0], **least), new_tokens(model, [0], exponential_decay_length_penalty=(2, 1.5), **least)


@finding
def continued_cache() -> Pair:
    """A text continued with the KV cache of an earlier call: the whole text is appended to itself in the cache."""
    model = random_model()
    first = generate(model, [1, 2, 3, 4], 4, return_dict_in_generate=True)
    text = [*first.sequences[0].tolist(), 5, 6]
    cache = first.past_key_values
    plain = new_tokens(model, text, past_key_values=copy.deepcopy(cache))
    assert plain == new_tokens(model, text)
    return plain, new_tokens(model, text, past_key_values=copy.deepcopy(cache), assistant_model=random_model())


@finding
def first_hidden_states() -> Pair:
    """Hidden states of the tokens accepted in the first round are those of the prompt's first tokens."""

    def last(**arguments: Any) -> list[float]:
        states = generate(
            model, [1, 2, 3, 4], 4, return_dict_in_generate=True, output_hidden_states=True, **arguments
        ).hidden_states
        return [round(each[-1][0, -1, 0].item(), 2) for each in states]

    model = random_model()
    return last(), last(assistant_model=random_model())


@finding
def inputs_embeds() -> Pair:
    """A prompt given as embeddings, with prompt lookup: the attention mask is cut to the empty input_ids."""
    model = random_model()
    prompt = model.get_input_embeddings()(torch.tensor([[1, 2, 3, 4]]))
    call = {"inputs_embeds": prompt, "attention_mask": torch.ones(1, 4), "max_new_tokens": 8, "do_sample": False}
    plain = model.generate(**call)[0].tolist()
    return plain, model.generate(**call, prompt_lookup_num_tokens=3)[0].tolist()


@finding
def guidance_scale() -> Pair:
    """Classifier-free guidance keeps a KV cache in its logits processor, which drafts and verification both advance."""
    model = random_model()
    plain = new_tokens(model, [1, 2, 3, 4], guidance_scale=3.0)
    return plain, new_tokens(model, [1, 2, 3, 4], guidance_scale=3.0, assistant_model=random_model())


@finding
def synthid_watermark() -> Pair:
    """SynthID's logits processor keeps state per call, so drafts shift the watermark of every later token."""

    def scores(**arguments: Any) -> list[float]:
        config = SynthIDTextWatermarkingConfig(keys=[654, 400, 836, 123], ngram_len=3)
        arguments |= {"do_sample": True, "top_k": 2, "temperature": 0.01, "watermarking_config": config}
        found = generate(model, [1, 2, 3, 4], return_dict_in_generate=True, output_scores=True, **arguments).scores
        return [round(each.max().item(), 1) for each in found]

    model = random_model()
    return scores(), scores(prompt_lookup_num_tokens=3)


@finding
def stop_strings_with_assistant() -> Pair:
    """Stop strings reach the assistant's generate(), which gets no tokenizer."""
    stop = {"stop_strings": ["e"], "tokenizer": letters(LETTERS)}
    plain = new_tokens(counting(), [0, 1], **stop)
    return plain, outcome(lambda: new_tokens(counting(), [0, 1], assistant_model=counting(), **stop))


@finding
def stop_string_within_a_round() -> Pair:
    """A stop string that a round completes before its last token is missed."""
    stop = {"stop_strings": ["e"], "tokenizer": letters(LETTERS)}
    prompt = [*range(16), 0, 1]
    return new_tokens(counting(), prompt, **stop), new_tokens(counting(), prompt, prompt_lookup_num_tokens=5, **stop)


class AtFour(StoppingCriteria):
    """Stops after token 4."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1] == 4


@finding
def stopping_criteria_within_a_round() -> Pair:
    """The same for a user's own stopping criteria, also with an assistant, which does not get them."""
    plain = new_tokens(counting(), [0], stopping_criteria=[AtFour()])
    assistant = counting()
    assistant.generation_config.num_assistant_tokens = 6
    return plain, new_tokens(counting(), [0], stopping_criteria=[AtFour()], assistant_model=assistant)


@finding
def early_exit_after_an_error() -> Pair:
    """An error while drafting with early exit leaves the target with the exit's number of layers."""
    model = random_model()
    plain = new_tokens(model, [1, 2, 3])
    stop = {"stop_strings": ["e"], "tokenizer": letters(LETTERS)}
    outcome(lambda: new_tokens(model, [1, 2, 3], assistant_early_exit=1, **stop))
    return plain, new_tokens(model, [1, 2, 3])


@finding
def early_exit_with_windows() -> Pair:
    """Early exit below a sliding-window layer: the unused layer's cache cannot be cropped."""
    model = windowed(("full_attention", "sliding_attention"), 64)
    plain = new_tokens(model, [1, 2, 3])
    return plain, outcome(lambda: new_tokens(model, [1, 2, 3], assistant_early_exit=1))


@finding
def assistant_with_windows() -> Pair:
    """An assistant with sliding-window layers, once the text reaches the window."""
    layers = ("sliding_attention", "full_attention")
    model = windowed(layers, 8)
    plain = new_tokens(model, [1, 2, 3, 4], 12)
    return plain, outcome(lambda: new_tokens(model, [1, 2, 3, 4], 12, assistant_model=windowed(layers, 8)))


@finding
def prefill_chunk_size() -> Pair:
    """Chunked prefill: the assistant prefills the whole text again, appended to its own cache, in each round."""

    def passes(size: int | None) -> list[int]:
        call = {"assistant_model": random_model(), "prefill_chunk_size": size}
        return widths(model, lambda: new_tokens(model, [1, 2, 3, 4, 5, 6], 12, **call))

    model = random_model()
    return passes(None), passes(3)


@finding
def dynamic_cache_by_name() -> Pair:
    """cache_implementation="dynamic", the default's own name: the assistant's second round is refused."""
    model = random_model()
    plain = new_tokens(model, [1, 2, 3], cache_implementation="dynamic")
    call = {"assistant_model": random_model(), "cache_implementation": "dynamic"}
    return plain, outcome(lambda: new_tokens(model, [1, 2, 3], **call))


@finding
def num_assistant_tokens() -> Pair:
    """num_assistant_tokens as an argument of generate() is ignored: only the assistant's generation_config counts."""
    model, assistant = random_model(), random_model()
    ignored = widths(model, lambda: new_tokens(model, [1], 8, assistant_model=assistant, num_assistant_tokens=1))
    assistant.generation_config.num_assistant_tokens = 1
    return widths(model, lambda: new_tokens(model, [1], 8, assistant_model=assistant)), ignored


def foreign(extra: str = "qr") -> dict[str, Any]:
    """Arguments for an assistant that has other letters after the target's."""
    return {
        "assistant_model": counting(16 + len(extra)),
        "tokenizer": letters(LETTERS),
        "assistant_tokenizer": letters(LETTERS + extra),
    }


@finding
def universal_eos_within_a_round() -> Pair:
    """Greedy decoding with another tokenizer's assistant continues after an EOS token."""
    prompt = list(range(10))
    plain = new_tokens(counting(), prompt, 6, eos_token_id=11)
    two = foreign() | {"assistant_tokenizer": letters("qr" + LETTERS)}
    two["assistant_model"].generation_config.num_assistant_tokens = 4
    return plain, new_tokens(counting(), prompt, 6, eos_token_id=11, **two)


@finding
def universal_bad_words() -> Pair:
    """bad_words_ids and sequence_bias of the target are applied to the assistant's vocabulary."""
    plain = new_tokens(counting(), [0, 1], bad_words_ids=[[4]])
    return len(plain), outcome(lambda: len(new_tokens(counting(), [0, 1], bad_words_ids=[[4]], **foreign())))


@finding
def universal_subset() -> Pair:
    """Sampling with an assistant whose vocabulary is a part of the target's."""
    two = {
        "assistant_model": counting(15),
        "tokenizer": letters(LETTERS),
        "assistant_tokenizer": letters(LETTERS[:15]),
    }
    call = {"do_sample": True, "top_k": 1}
    plain = new_tokens(counting(), [0, 1], **call)
    return plain, outcome(lambda: new_tokens(counting(), [0, 1], **call, **two))


@finding
def universal_logits() -> Pair:
    """Sampling with another tokenizer's assistant: the logits of the pruned head are read in another order, so drafts
    are judged by other tokens' probabilities. Shown: the assistant's token whose logit each target token gets."""
    two = foreign()
    translator = AssistantToTargetTranslator(
        two["tokenizer"], two["assistant_tokenizer"], 16, two["assistant_model"], True
    )
    rows = translator.assistant_overlap_token_ids.tolist()
    read = translator.get_target_logits(torch.arange(16.0)[None, None])[0, 0]
    return list(range(16)), [rows[int(row)] for row in read.tolist()]


@finding
def universal_second_assistant() -> Pair:
    """Sampling with a second assistant and the same two tokenizers: the cached translator pruned the first one only."""
    call = {"do_sample": True, "top_k": 1, **foreign()}
    new_tokens(counting(), [0, 1], **call)
    call["assistant_model"] = counting(18)
    return new_tokens(counting(), [0, 1], do_sample=True, top_k=1), outcome(
        lambda: new_tokens(counting(), [0, 1], **call)
    )


@finding
def universal_prefill_chunks() -> Pair:
    """Sampling with prefill_chunk_size: from the second chunk on the assistant's embedding maps the last token only."""
    call = {"do_sample": True, "top_k": 1, "prefill_chunk_size": 3}
    plain = new_tokens(counting(), [0, 1, 2, 3, 4, 5, 6], **call)
    return plain, outcome(lambda: new_tokens(counting(), [0, 1, 2, 3, 4, 5, 6], **call, **foreign()))


@finding
def universal_pruned_for_good() -> Pair:
    """Sampling prunes the caller's assistant: on its own it has fewer tokens afterwards."""
    two = foreign()
    new_tokens(counting(), [0, 1], do_sample=True, top_k=1, **two)
    return 18, two["assistant_model"](torch.tensor([[0, 1]])).logits.shape[-1]


def latent(predictions: int) -> Any:
    """A random DeepSeek-V3 of two layers; its prediction layers are in checkpoints only."""
    torch.manual_seed(0)
    config = DeepseekV3Config(
        **SIZES,
        num_nextn_predict_layers=predictions,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        first_k_dense_replace=2,
    )
    return DeepseekV3ForCausalLM(config)


@finding
def mtp_layer_index() -> Pair:
    """MTP weights are looked for in layer 61 only, whatever the number of layers of a DeepSeek-V3 checkpoint."""
    return [r"model\.layers\.2.*"], sorted(latent(1)._keys_to_ignore_on_load_unexpected)


@finding
def mtp_after_one_token() -> Pair:
    """Two prediction layers and a prompt of one token: if the first drafts are rejected, generation crashes."""
    model = latent(2)
    drafter = MtpModel(model, 2)
    for name, value in drafter.named_parameters():
        if ".experts." in name:
            # A model that is built, not loaded, leaves them as the memory was.
            torch.nn.init.zeros_(value)
    weights = model.state_dict()
    for name, value in drafter.state_dict().items():
        if name.startswith("layers."):
            _, place, rest = name.split(".", 2)
            rest = rest.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
            weights[f"model.layers.{2 + int(place)}.{rest}"] = value
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
        model = DeepseekV3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.[23]\."]
        plain = new_tokens(model, [1])
        return plain, outcome(lambda: new_tokens(model, [1], use_mtp=True))


@finding
def prompt_lookup_with_top_p() -> Pair:
    """Prompt lookup asks the logits processors about equal logits, of which top_p=0.5 forbids half the vocabulary."""

    def passes(**arguments: Any) -> list[int]:
        call = {"do_sample": True, "prompt_lookup_num_tokens": 5, **arguments}
        return widths(model, lambda: new_tokens(model, [*range(16), 0, 1], 12, **call))

    model = counting()
    return passes(), passes(top_p=0.5)


@finding
def temperature_twice() -> Pair:
    """The assistant applies temperature twice: the target's processors and its own from the same configuration."""
    calls: list[int] = []
    original = TemperatureLogitsWarper.__call__

    def counted(self: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(input_ids.shape[1])
        return original(self, input_ids, scores)

    TemperatureLogitsWarper.__call__ = counted
    model, assistant = counting(), counting()
    drafts = widths(
        assistant, lambda: new_tokens(model, [0], 4, do_sample=True, temperature=0.5, assistant_model=assistant)
    )
    TemperatureLogitsWarper.__call__ = original
    # The target judges one more position than there are drafts.
    return 2 * len(drafts) + 1, len(calls)


@finding
def gemma_assistant_samples_greedily() -> Pair:
    """Gemma 4's assistant drafts its best token, but reports a softmax as the distribution that it sampled from."""

    def config(**changes: Any) -> Gemma4TextConfig:
        return Gemma4TextConfig(
            **(SIZES | changes),
            head_dim=16,
            global_head_dim=16,
            hidden_size_per_layer_input=0,
            vocab_size_per_layer_input=0,
            sliding_window=32,
            layer_types=["sliding_attention", "full_attention"],
        )

    reported: list[float] = []
    original = generation._speculative_sampling

    def spied(ids: torch.Tensor, logits: torch.Tensor, length: int, *rest: Any, **options: Any) -> Any:
        reported.append(round(logits[0, 0].softmax(-1)[ids[0, -length]].item(), 2))
        return original(ids, logits, length, *rest, **options)

    torch.manual_seed(0)
    target = Gemma4ForCausalLM(config(num_kv_shared_layers=0)).eval()
    assistant = Gemma4AssistantForCausalLM(
        Gemma4AssistantConfig(text_config=config(num_kv_shared_layers=2), backbone_hidden_size=32)
    ).eval()
    assistant.generation_config.num_assistant_tokens = 1
    generation._speculative_sampling = spied
    new_tokens(target, [1, 2, 3], 3, do_sample=True, top_k=0, assistant_model=assistant)
    generation._speculative_sampling = original
    return [1.0], reported


def main(words: list[str]) -> int:
    """Print the pairs of the named findings, or of all; 0 if every one was reproduced."""
    parser = argparse.ArgumentParser(
        description="Reproduce findings in transformers.", epilog=f"names: {', '.join(FINDINGS)}"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="a finding; all without a name")
    names = parser.parse_args(words).names or [*FINDINGS]
    if unknown := [name for name in names if name not in FINDINGS]:
        parser.error(f"unknown finding {unknown[0]!r}; allowed: {', '.join(FINDINGS)}")
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    gone = 0
    for name in names:
        should, does = FINDINGS[name]()
        gone += should == does
        said = "not reproduced" if should == does else "reproduced"
        print(f"{name}\n  should: {should}\n  does:   {does}\n  {said}", flush=True)
    print(f"{len(names) - gone} of {len(names)} reproduced")
    return int(gone > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
