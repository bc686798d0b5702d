"""Reproduces ONNX Runtime GenAI findings of docs/findings.md with tiny models of random weights:

    python docs/findings/in_onnxruntime_genai.py [NAME ...]

It needs the packages onnxruntime-genai (found with 0.18.0), onnx-ir, torch and transformers, and nothing of this
project. Each finding prints what should come out, what does, and whether it was reproduced. Exit status: 0 if every one
was, 1 if not, 2 for an unknown name.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime_genai as genai
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SPECIAL: Final = ("<s>", "</s>")
LETTERS: Final = sorted(pre_tokenizers.ByteLevel.alphabet())
VOCABULARY: Final = len(SPECIAL) + len(LETTERS)
WINDOW: Final = 24
SIZES: Final = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "initializer_range": 0.2},
}
KINDS: Final = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "qwen3": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            **{"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
}
PROMPT: Final = [7, 3, 9, 4] * 10


@cache
def checkpoint(kind: str) -> tuple[Path, Any]:
    """The folder of a model of random weights, and the model."""
    place = Path(tempfile.mkdtemp())
    torch.manual_seed(0)
    config, model, more = KINDS[kind]
    made = model(config(**SIZES, **more)).eval()
    made.save_pretrained(place)
    words = {word: place for place, word in enumerate((*SPECIAL, *LETTERS))}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(place)
    return place, made


@cache
def built(kind: str) -> Path:
    """The same model in the format of ONNX Runtime GenAI, in float32, by its own builder."""
    place, _ = checkpoint(kind)
    words = ["-m", str(place), "-i", str(place), "-o", f"{place}/onnx", "-p", "fp32", "-e", "cpu", "-c", f"{place}/x"]
    subprocess.run([sys.executable, "-m", "onnxruntime_genai.models.builder", *words], check=True, capture_output=True)
    return place / "onnx"


def expected(kind: str, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens by transformers."""
    _, model = checkpoint(kind)
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def generator(kind: str, length: int, drafts: dict[str, int] | None = None, **options: Any) -> Any:
    config = genai.Config(str(built(kind)))
    config.overlay('{"model": {"eos_token_id": 0}}')  # BOS, so that no text ends
    model = genai.Model(config)
    params = genai.GeneratorParams(model)
    params.set_search_options(**{"do_sample": False, "max_length": length, **options})
    if drafts:
        params.set_speculative_options(**drafts)
    return genai.Generator(model, params)


def tokens(one: Any, prompt: Sequence[int], count: int) -> list[int] | str:
    """Tokens of a generator, or how it fails."""
    try:
        one.append_tokens(np.array(prompt, np.int32))
        for _ in range(count):
            one.generate_next_token()
    except Exception as error:
        return f"{one.token_count() - len(prompt)} tokens, then: {error}"
    return list(map(int, one.get_sequence(0)[len(prompt) :]))


def windows_dropped() -> tuple[object, object, bool]:
    due = expected("mistral", PROMPT, 12)
    found = tokens(generator("mistral", 60, past_present_share_buffer=False), PROMPT, 12)
    return due, found, found != due


def windows_shared_buffer() -> tuple[object, object, bool]:
    found = tokens(generator("mistral", 80), PROMPT, 12)
    return "12 tokens", found, isinstance(found, str) and "GroupQueryAttention" in found


def windows_and_drafts() -> tuple[object, object, bool]:
    due = expected("qwen3", PROMPT, 12)
    plain = tokens(generator("qwen3", 80), PROMPT, 12)
    found = tokens(generator("qwen3", 80, {"ngram_size": 2, "max_draft_tokens": 4}), PROMPT, 12)
    return due, found, plain == due and isinstance(found, str) and "Cannot rewind" in found


def windows_and_short_texts() -> tuple[object, object, bool]:
    due = expected("qwen3", PROMPT[:8], 4)
    found = tokens(generator("qwen3", 12), PROMPT[:8], 4)
    return due, found, isinstance(found, str) and "KV cache capacity" in found


def logits_after_a_miss() -> tuple[object, object, bool]:
    one = generator("llama", 80, {"ngram_size": 8, "max_draft_tokens": 4})
    tokens(one, range(2, 22), 1)
    fallback = one.get_speculative_stats()["standard_fallback_steps"]
    try:
        one.get_logits()
    except Exception as error:
        return "logits, as without n-grams", str(error), fallback == 1
    return "logits", "logits", False


def prompt_ends_with_eos() -> tuple[object, object, bool]:
    """EOS is the padding too. No speculation."""
    due = expected("llama", [*PROMPT, 1], 3)
    found = tokens(generator("llama", 80), [*PROMPT, 1], 3)
    return due, found, found == expected("llama", PROMPT, 3)


def rewind_keeps_a_token() -> tuple[object, object, bool]:
    """A prompt without its last token, which is rewound."""
    due = expected("llama", PROMPT[:-1], 2)
    one = generator("llama", 80)
    tokens(one, PROMPT, 0)
    one.rewind_to(len(PROMPT) - 1)
    found = []
    for _ in range(2):
        one.generate_next_token()
        found.append(list(map(int, one.get_sequence(0)[len(PROMPT) - 1 :])))
    return [due[:1], due], found, found[0] == [PROMPT[-1], *expected("llama", PROMPT, 1)]


def text_ends_at_a_byte() -> tuple[object, object, bool]:
    ids = [2 + LETTERS.index(letter) for letter in "ab"] + [2 + LETTERS.index("ÿ")]
    ids += [2 + LETTERS.index(letter) for letter in "cd"]
    due = Tokenizer.from_file(str(built("llama") / "tokenizer.json")).decode(ids)
    found = genai.Tokenizer(genai.Model(str(built("llama")))).decode(np.array(ids, np.int32))
    return due, found, due.endswith("cd") and not found.endswith("cd")


def stream_drops_letters() -> tuple[object, object, bool]:
    ids = [2 + LETTERS.index(letter) for letter in "abÿcdef"]
    stream = genai.Tokenizer(genai.Model(str(built("llama")))).create_stream()
    found = "".join(stream.decode(token) for token in ids)
    return "each of abcdef", found, not all(letter in found for letter in "abcdef")


def end_ids_add_up() -> tuple[object, object, bool]:
    def ends(said: object) -> int:
        config = genai.Config(str(built("llama")))
        config.overlay(json.dumps({"model": {"eos_token_id": said}}))
        model = genai.Model(config)
        params = genai.GeneratorParams(model)
        params.set_search_options(do_sample=False, max_length=50)
        one = genai.Generator(model, params)
        one.append_tokens(np.array(PROMPT, np.int32))
        one.set_logits(np.eye(1, VOCABULARY, 1, dtype=np.float32).reshape(1, 1, -1))
        one.generate_next_token()
        return int(one.token_count() == len(PROMPT))

    number, listed = ends(5), ends([5])
    return (0, 0), (number, listed), (number, listed) == (0, 1)


FINDINGS: Final[dict[str, Callable[[], tuple[object, object, bool]]]] = {
    "windows-dropped": windows_dropped,
    "windows-shared-buffer": windows_shared_buffer,
    "windows-and-drafts": windows_and_drafts,
    "windows-and-short-texts": windows_and_short_texts,
    "logits-after-a-miss": logits_after_a_miss,
    "prompt-ends-with-eos": prompt_ends_with_eos,
    "rewind-keeps-a-token": rewind_keeps_a_token,
    "text-ends-at-a-byte": text_ends_at_a_byte,
    "stream-drops-letters": stream_drops_letters,
    "end-ids-add-up": end_ids_add_up,
}


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in FINDINGS]:
        print(f"{unknown[0]} is unknown; it must be one of {', '.join(FINDINGS)}", file=sys.stderr)
        return 2
    missed = 0
    for name in names or FINDINGS:
        due, found, reproduced = FINDINGS[name]()
        missed += not reproduced
        print(f"{name}: {'reproduced' if reproduced else 'NOT reproduced'}\n  due   {due}\n  found {found}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
