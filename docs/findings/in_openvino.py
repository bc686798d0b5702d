"""Reproduces OpenVINO GenAI findings of docs/findings.md with tiny models of random weights:

    python docs/findings/in_openvino.py [NAME ...]

It needs the packages openvino-genai (found with 2026.4.1) and gguf, and nothing of this project. Each finding prints
what should come out, what does, and whether it was reproduced. Exit status: 0 if every one was, 1 if not, 2 for an
unknown name.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
import openvino as ov
import openvino_genai as genai

# Two special tokens, GPT-2's letters for bytes, those that show themselves first, and the one merge of a blank and t.
SHOWN: Final = [*range(33, 127), *range(161, 173), *range(174, 256)]
HIDDEN: Final = [byte for byte in range(256) if byte not in SHOWN]
TOKENS: Final = ["<s>", "</s>", *map(chr, SHOWN), *(chr(256 + place) for place in range(len(HIDDEN))), "Ġt"]
NEWLINE: Final = 2 + len(SHOWN) + HIDDEN.index(10)
VOCABULARY: Final = len(TOKENS)
WIDTH: Final = 64
INNER: Final = 96
LAYERS: Final = 2
HEADS: Final = 2
MATRICES: Final = (
    *(("attn_q", WIDTH, WIDTH), ("attn_k", WIDTH // HEADS, WIDTH), ("attn_v", WIDTH // HEADS, WIDTH)),
    *(("attn_output", WIDTH, WIDTH), ("ffn_gate", INNER, WIDTH), ("ffn_up", INNER, WIDTH), ("ffn_down", WIDTH, INNER)),
)
FLOAT32: Final = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PROMPT: Final = [7, 3, 9, 4] * 4
OTHER: Final = [5, 11, 2, 8] * 10
Run = tuple[list[list[int]], list[list[int]]]


@cache
def model(seed: int) -> str:
    """The folder of a Llama of random weights; one with seed 1 is that of seed 0 with some noise, as its draft."""
    place = Path(tempfile.mkdtemp())
    writer = gguf.GGUFWriter(place / "model.gguf", "llama")
    writer.add_file_type(1)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_key_length(WIDTH // HEADS)
    writer.add_value_length(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, *[1] * (VOCABULARY - 2)])
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    draw, noise = np.random.default_rng(0), np.random.default_rng(1)

    def add(name: str, shape: tuple[int, int]) -> None:
        # With little attention a text soon repeats itself.
        scale = 0.005 if name.endswith("attn_output") else 0.3
        weight = draw.normal(0, scale, shape) + seed * noise.normal(0, 0.06, shape)
        writer.add_tensor(f"{name}.weight", weight.astype(np.float16))

    for name in ("token_embd", "output"):
        add(name, (VOCABULARY, WIDTH))
    for layer in range(LAYERS):
        for name, rows, columns in MATRICES:
            add(f"blk.{layer}.{name}", (rows, columns))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", draw.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    writer.add_tensor("output_norm.weight", draw.uniform(0.5, 1.5, WIDTH).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file, options = place / "model.gguf", {"enable_save_ov_model": True}
    genai.ContinuousBatchingPipeline(file, genai.SchedulerConfig(), "CPU", options)
    genai.Tokenizer(file, **options)
    return str(place)


def pipeline(kind: str, **sizes: Any) -> Any:
    """kind: "plain", "self" with the model as its own draft, "draft" with the noisy one, or "lookup"; sizes: of
    SchedulerConfig."""
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    for name, value in sizes.items():
        setattr(scheduler, name, value)
    more: dict[str, Any] = {"prompt_lookup": True} if kind == "lookup" else {}
    if kind in ("self", "draft"):
        more["draft_model"] = genai.draft_model(model(int(kind == "draft")), "CPU", **FLOAT32)
    return genai.ContinuousBatchingPipeline(model(0), genai.Tokenizer(model(0)), scheduler, "CPU", **FLOAT32, **more)


def run(kind: str, prompts: Sequence[Sequence[int]], fields: dict[str, Any], **sizes: Any) -> Run:
    """Tokens of each prompt's answer, and how many each step yielded."""
    pipe = pipeline(kind, **sizes)
    return ask(pipe, kind, prompts, fields)


def ask(pipe: Any, kind: str, prompts: Sequence[Sequence[int]], fields: dict[str, Any]) -> Run:
    """As `run`, on a pipeline."""
    handles = []
    for place, prompt in enumerate(prompts):
        config = genai.GenerationConfig()
        config.eos_token_id, config.stop_token_ids, config.ignore_eos = 1, {1}, True
        if kind != "plain":
            config.num_assistant_tokens = 3
        if kind == "lookup":
            config.max_ngram_size = 2
        for name, value in fields.items():
            setattr(config, name, value + place if name == "rng_seed" else value)
        handles.append(pipe.add_request(place, ov.Tensor(np.array([prompt], np.int64)), config))
    answers: list[list[int]] = [[] for _ in prompts]
    steps: list[list[int]] = [[] for _ in prompts]
    while pipe.has_non_finished_requests():
        pipe.step()
        for place, handle in enumerate(handles):
            while handle.can_read():
                for output in handle.read().values():
                    answers[place] += output.generated_ids
                    steps[place].append(len(output.generated_ids))
    return answers, steps


def failure(call: Callable[[], object]) -> str:
    """The first line of what a call raises, "" if nothing."""
    try:
        call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def apart(due: list[list[int]], got: list[list[int]]) -> tuple[object, object, bool]:
    """The first answers that differ, from where they do."""
    for one, other in zip(due, got, strict=True):
        if one != other:
            at = next((place for place, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1), 0)
            return one[at : at + 12], other[at : at + 12], True
    return due, got, False


def split_prompt() -> tuple[object, object, bool]:
    """Drafts, and prompts that do not fit in one step of the default size, 256 tokens."""
    prompts = [[token, *OTHER * 2] for token in range(3, 11)]
    due, _ = run("plain", prompts, {"max_new_tokens": 12})
    got, _ = run("self", prompts, {"max_new_tokens": 12})
    return apart(due, got)


def split_lookup() -> tuple[object, object, bool]:
    """Lookups, and rounds that do not fit in one step."""
    prompts = [[token, *OTHER] for token in (3, 6, 9)]
    due, _ = run("plain", prompts, {"max_new_tokens": 40})
    got, _ = run("lookup", prompts, {"max_new_tokens": 40}, max_num_batched_tokens=6)
    return apart(due, got)


def preempted_draft() -> tuple[object, object, bool]:
    """Drafts, and too few blocks for two texts."""
    prompts = [[token, *OTHER] for token in (3, 6)]
    due, _ = run("plain", prompts, {"max_new_tokens": 70})
    got, _ = run("self", prompts, {"max_new_tokens": 70}, num_kv_blocks=6)
    return apart(due, got)


def preempted_lookup() -> tuple[object, object, bool]:
    """Lookups, and too few blocks for two texts."""
    said = failure(lambda: run("lookup", [PROMPT, OTHER], {"max_new_tokens": 70}, num_kv_blocks=5))
    return "two answers", said, "generated_and_verified_len" in said


def sampled_drafts() -> tuple[object, object, bool]:
    """How often the second token is each of the commonest, of 1,000 sampled answers."""
    fields = {"max_new_tokens": 3, "do_sample": True, "rng_seed": 1}
    draws = [PROMPT] * 1000
    counts = []
    for kind, seed in (("plain", 1), ("plain", 100_001), ("draft", 1)):
        answers, _ = run(kind, draws, {**fields, "rng_seed": seed}, max_num_batched_tokens=100_000, max_num_seqs=1000)
        counts.append(Counter(answer[1] for answer in answers))
    plain, again, draft = counts
    common = [token for token, _ in plain.most_common(5)]
    apart = [sum(abs(plain[token] - other[token]) for token in plain | other) / 2000 for other in (again, draft)]
    shown = {"draft": [draft[token] for token in common], "apart": round(apart[1], 3)}
    due = {"plain": [plain[token] for token in common], "apart": round(apart[0], 3)}
    return due, shown, apart[1] > 2 * apart[0]


def sampled_drafts_with_cache() -> tuple[object, object, bool]:
    """One sampled request with drafts and the prefix cache."""
    fields = {"max_new_tokens": 90, "do_sample": True, "rng_seed": 1}
    said = failure(lambda: run("draft", [PROMPT], fields, enable_prefix_caching=True))
    return "an answer", said, "content_length" in said


def min_new_tokens() -> tuple[object, object, bool]:
    """A stop token that is banned from the first 40 tokens."""
    (free,), _ = run("plain", [PROMPT], {"max_new_tokens": 40})
    found = []
    for stop in dict.fromkeys(free[4:]):
        fields = {"max_new_tokens": 44, "min_new_tokens": 40, "stop_token_ids": {stop}, "eos_token_id": stop}
        (due,), _ = run("plain", [PROMPT], {**fields, "ignore_eos": False})
        (got,), _ = run("draft", [PROMPT], {**fields, "ignore_eos": False})
        found.append((len(due), len(got)))
    least = min(found, key=lambda pair: pair[1])
    return "40 tokens or more", f"{least[1]} tokens", least[0] >= 40 > least[1]


def stop_string_whitespace() -> tuple[object, object, bool]:
    """A stop string that ends with a newline, which the output includes. No speculation."""
    fields = {"max_new_tokens": 400, "do_sample": True, "temperature": 3.0, "rng_seed": 5}
    (free,), _ = run("plain", [PROMPT], fields)
    at = next(
        place for place, token in enumerate(free) if token == NEWLINE and place > 3 and free[place - 1] != NEWLINE
    )
    stop = genai.Tokenizer(model(0)).decode(free[at - 1 : at + 1])
    stops = {"stop_strings": {stop}, "include_stop_str_in_output": True}
    (got,), _ = run("plain", [PROMPT], {**fields, **stops})
    return free[: at + 1][-3:], got[-3:], got == free[:at]


def stop_string_at_the_limit() -> tuple[object, object, bool]:
    """A stop string in the third of the four tokens that a last round accepts."""
    plain, drafts = pipeline("plain"), pipeline("self")
    for first in range(3, 90):
        prompt = [[first, *OTHER]]
        (free,), _ = ask(plain, "plain", prompt, {"max_new_tokens": 13})
        if 2 <= free[11] < 2 + 94 and free[11] not in free[:11]:  # one letter of ASCII
            fields = {"max_new_tokens": 13, "stop_strings": {TOKENS[free[11]]}, "include_stop_str_in_output": True}
            (due,), _ = ask(plain, "plain", prompt, fields)
            (got,), _ = ask(drafts, "self", prompt, fields)
            if (len(due), len(got)) == (12, 13):
                return due, got, True
    return "12 tokens", "12 tokens", False


def hits_together() -> tuple[object, object, bool]:
    """Tokens of each step where two prompts, one of 32 tokens, are new, and where both are cached."""
    pipe, prompts = pipeline("self", enable_prefix_caching=True), [[3, *OTHER, *OTHER[:10]], [4, *OTHER[:31]]]
    _, due = ask(pipe, "self", prompts, {"max_new_tokens": 12})
    _, got = ask(pipe, "self", prompts, {"max_new_tokens": 12})
    return due, got, due != got


FINDINGS: Final[dict[str, Callable[[], tuple[object, object, bool]]]] = {
    "split-prompt": split_prompt,
    "split-lookup": split_lookup,
    "preempted-draft": preempted_draft,
    "preempted-lookup": preempted_lookup,
    "sampled-drafts": sampled_drafts,
    "sampled-drafts-with-cache": sampled_drafts_with_cache,
    "min-new-tokens": min_new_tokens,
    "stop-string-whitespace": stop_string_whitespace,
    "stop-string-at-the-limit": stop_string_at_the_limit,
    "hits-together": hits_together,
}


def main(*names: str) -> int:
    """Run the named findings, or all."""
    if unknown := [name for name in names if name not in FINDINGS]:
        print(f"unknown finding {unknown[0]}; there are {', '.join(FINDINGS)}", file=sys.stderr)
        return 2
    reproduced = True
    for name in names or FINDINGS:
        due, got, shown = FINDINGS[name]()
        print(f"{name}: {'reproduced' if shown else 'NOT reproduced'}\n  due: {due}\n  got: {got}")
        reproduced &= shown
    return 0 if reproduced else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
