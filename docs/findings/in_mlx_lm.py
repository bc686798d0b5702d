"""Reproduces mlx-lm findings of docs/findings.md with tiny models of random weights:

    python docs/findings/in_mlx_lm.py [NAME ...]

It needs the packages mlx-lm (found with 0.32.2) and mlx (on Linux `mlx[cpu]`, found with 0.32.4), and nothing of this
project. Each finding prints what should come out, what does, and whether it was reproduced. Exit status: 0 if every one
was, 1 if not, 2 for an unknown name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import mlx.core as mx
from mlx_lm import server
from mlx_lm.generate import StopSequences, TextStateMachine, generate_step, speculative_generate_step
from mlx_lm.models import deepseek_v3, llama, qwen3
from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer

VOCABULARY: Final = 64
WINDOW: Final = 16
SIZES: Final = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 16},
    **{"num_key_value_heads": 1, "rms_norm_eps": 1e-5, "vocab_size": VOCABULARY, "max_position_embeddings": 512},
    **{"rope_theta": 10000.0, "tie_word_embeddings": False},
}
PROMPT: Final = [7, 3, 9, 4, 11, 2, 30, 8, 21, 5]


def model(seed: int, kind: Any = llama, **more: Any) -> Any:
    """A model of random weights, float32."""
    mx.random.seed(seed)
    made = kind.Model(kind.ModelArgs.from_dict({"model_type": "llama", **SIZES, **more}))
    made.update(scaled(made.parameters()))
    mx.eval(made.parameters())
    return made


def scaled(weights: Any) -> Any:
    """Weights large enough that the best token depends on the text."""
    if isinstance(weights, dict):
        return {name: scaled(one) for name, one in weights.items()}
    if isinstance(weights, list):
        return [scaled(one) for one in weights]
    return mx.random.normal(weights.shape) * 0.3 if weights.ndim > 1 else weights


def plain(target: Any, prompt: Sequence[int], count: int, **more: Any) -> list[int]:
    """Greedy tokens without drafts."""
    steps = generate_step(mx.array(list(prompt)), target, max_tokens=count, **more)
    return [int(token) for token, _ in steps]


def drafted(target: Any, draft: Any, prompt: Sequence[int], count: int, **more: Any) -> tuple[list[int], int]:
    """Greedy tokens with two drafts a round, and how many of them were drafts."""
    steps = [*speculative_generate_step(mx.array(list(prompt)), target, draft, max_tokens=count, **more)]
    return [int(token) for token, _, _ in steps], sum(from_draft for _, _, from_draft in steps)


def rotating_cache() -> tuple[object, object, bool]:
    windows = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    target, draft = model(0, **windows), model(1)
    due, (found, _) = plain(target, PROMPT, 24), drafted(target, draft, PROMPT, 24)
    return due, found, found != due


def served(kept: Any, target: Any, draft: Any, prompt: list[int], count: int) -> tuple[list[int], int, int]:
    """Greedy tokens as the server makes them (mlx_lm/server.py, _serve_single), how many prompt tokens it treats as
    cached, and how many the target has KV for."""
    cache, rest = kept.fetch_nearest_cache("model", prompt)
    cache = cache or make_prompt_cache(target) + make_prompt_cache(draft)
    there = cache[0].offset
    found, _ = drafted(target, draft, rest, count, prompt_cache=cache)
    kept.insert_cache("model", [*prompt, *found], cache)
    return found, len(prompt) - len(rest), there


def kv_without_the_last_token() -> tuple[object, object, bool]:
    target, draft, kept = model(0), model(1), LRUPromptCache()
    first, *_ = served(kept, target, draft, PROMPT, 9)
    turn = [*PROMPT, *first, 12, 13]
    due = plain(target, turn, 6)
    found, cached, there = served(kept, target, draft, turn, 6)
    kept = LRUPromptCache()
    again = [served(kept, target, draft, PROMPT, 9)[0] for _ in range(5)]
    answers = len({tuple(one) for one in again})
    said = {"next turn": found, "its KV": f"{there} of {cached}", "answers to five times one prompt": answers}
    return {"next turn": due}, said, there == cached - 1 and found != due and again[0] == first and answers > 1


def draft_kv_without_the_last_token() -> tuple[object, object, bool]:
    target = model(0)  # its own draft, so that every draft should be accepted
    cache = make_prompt_cache(target) * 1 + make_prompt_cache(target)
    found, _ = drafted(target, target, PROMPT, 8, prompt_cache=cache)
    lengths = cache[0].offset, cache[-1].offset
    turn = [12, 13, 14]
    _, accepted = drafted(target, target, turn, 9, prompt_cache=cache)
    _, due = drafted(target, target, [*PROMPT, *found, *turn], 9)
    said = {"KV of target and draft": lengths, "accepted in the next turn": accepted}
    return {"accepted in the next turn": due}, said, lengths[1] == lengths[0] - 1 and accepted < due


def processors_without_the_prompt() -> tuple[object, object, bool]:
    target, draft = model(0), model(1)
    penalty = {"logits_processors": make_logits_processors(repetition_penalty=1.5, repetition_context_size=999)}
    due, (found, _) = plain(target, PROMPT, 12, **penalty), drafted(target, draft, PROMPT, 12, **penalty)
    first: list[int] = []

    def read(tokens: Any, logits: Any) -> Any:
        first.append(len(tokens))
        return logits

    drafted(target, draft, PROMPT, 1, logits_processors=[read])
    return (len(PROMPT), due), (first[0], found), first[0] == 1 and found != due


def stop_word_in_other_tokens() -> tuple[object, object, bool]:
    # "ab" has the token 2 of its own, and the text " abc" the tokens 3 and 4, of " a" and "bc".
    matcher, machine = StopSequences([(2,)]).matcher(), TextStateMachine({"normal": [("ab", "normal")]})
    state, shown, stopped = machine.make_state("normal"), "", False
    for token, text in ((3, " a"), (4, "bc"), (5, "d")):
        stopped = stopped or matcher.advance(token)
        state, more, _ = TextStateMachine.step(state, text)
        shown += more
    return ("' ', stopped", True), (repr(shown), stopped), shown == " cd" and not stopped


def text_held_back_at_eos() -> tuple[object, object, bool]:
    """Reads a text that ends by EOS as APIHandler.handle_completion does."""
    machine = TextStateMachine({"normal": [("7~", "normal")]})
    state, shown = machine.make_state("normal"), ""
    for text in ("#### ", "7"):
        state, more, _ = TextStateMachine.step(state, text)
        shown += more
    state, _ = TextStateMachine.discard(state)  # of a response whose finish_reason is "stop"
    code = server.APIHandler.handle_completion.__code__
    return "#### 7", shown, shown == "#### " and "discard" in code.co_names


class Letters:
    """A tokenizer of byte-level BPE with two tokens, " a" and "b"."""

    def __len__(self) -> int:
        return 2

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [("\u0120a", "b")[one] for one in ids]


def leading_space() -> tuple[object, object, bool]:
    detokenizer = BPEStreamingDetokenizer(Letters())
    for token in (0, 1):
        detokenizer.add_token(token)
    detokenizer.finalize()
    return " ab", detokenizer.text, detokenizer.text == "ab"


def windows_dropped() -> tuple[object, object, bool]:
    text = mx.array([PROMPT * 4])
    given = {"mistral": (llama, {"sliding_window": WINDOW})}
    given["qwen3"] = (qwen3, {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 0})
    same = {
        name: bool(mx.array_equal(model(0, kind, model_type=name, **more)(text), model(0, kind, model_type=name)(text)))
        for name, (kind, more) in given.items()
    }
    return "logits behind 16 tokens that depend on the window", f"the same ones: {same}", all(same.values())


def layer_61() -> tuple[object, object, bool]:
    class Two:
        args = deepseek_v3.ModelArgs(num_hidden_layers=2, n_routed_experts=1)

    weights = {f"model.layers.{layer}.eh_proj.weight": mx.zeros(1) for layer in (2, 61)}
    weights |= {f"model.layers.{layer}.mlp.experts.0.{name}.weight": mx.zeros(1) for layer in (0, 1) for name in "x"}
    left = [name for name in deepseek_v3.Model.sanitize(Two(), weights) if "eh_proj" in name]
    return [], left, left == ["model.layers.2.eh_proj.weight"]


def exact_hit() -> tuple[object, object, bool]:
    target, kept = model(0), LRUPromptCache()
    cache = make_prompt_cache(target)
    found = plain(target, PROMPT, 4, prompt_cache=cache)
    kept.insert_cache("model", [*PROMPT, *found], cache)
    cache, rest = kept.fetch_nearest_cache("model", [*PROMPT, *found])
    try:
        said: object = plain(target, rest, 4, prompt_cache=cache)
    except ValueError as error:
        said = str(error)
    return plain(target, [*PROMPT, *found], 4), said, rest == [] and isinstance(said, str)


FINDINGS: Final[dict[str, Callable[[], tuple[object, object, bool]]]] = {
    "rotating-cache": rotating_cache,
    "kv-without-the-last-token": kv_without_the_last_token,
    "draft-kv-without-the-last-token": draft_kv_without_the_last_token,
    "processors-without-the-prompt": processors_without_the_prompt,
    "stop-word-in-other-tokens": stop_word_in_other_tokens,
    "text-held-back-at-eos": text_held_back_at_eos,
    "leading-space": leading_space,
    "windows-dropped": windows_dropped,
    "layer-61": layer_61,
    "exact-hit": exact_hit,
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
