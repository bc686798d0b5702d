"""Translates cells into vLLM's engine arguments and sampling parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from specmatrix.matrix.subjects.environment import SUFFIX, VLLM, InEnvironment
from specmatrix.matrix.subjects.limits import AUTO_DEPTHS, AxisLimit, chain_depth, chains_only, declared, obstacle
from specmatrix.matrix.subjects.profiles import profile_of
from specmatrix.matrix.subjects.protocol import Capability, EngineCommand, RunningEngine, SubjectRequest, Unsupported
from specmatrix.matrix.subjects.vllm.widen import WIDE
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.requirements import LATE

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell
    from specmatrix.matrix.workloads.prepared_cell import PreparedCell

# vLLM's name of each drafter; ngram is prompt lookup, or suffix decoding in the variant of the subject.
METHODS: Final[Mapping[str, str]] = {
    "standalone": "draft_model",
    "eagle3": "eagle3",
    "eagle": "eagle",
    "ngram": "ngram",
    "dflash": "dflash",
    "nextn": "mtp",
}
LAYERS: Final = "vLLM drafts with both prediction layers in turn, so steps must be 1 or even"
BLOCKS: Final = "vLLM's attention takes no block of this size"
BIASED: Final = "vLLM takes neither min_p nor logit_bias with speculative decoding"
# Values of page_size by device: vLLM's CPU attention takes multiples of 32 tokens, others multiples of 16. The default
# of the axis, a page of one token, means the smallest.
SMALLEST: Final = {"cpu": 32, "cuda": 16}
LATENT_BLOCK: Final = 16
DEPTHS: Final = {**AUTO_DEPTHS, "nextn": 2}
LOOKUP: Final = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
# Variants of checkpoints: the architecture that vLLM knows a draft by, where its own is SGLang's name, and the size of
# latent attention that its CPU kernel takes.
VARIANTS: Final = {
    "llama-mini-eagle": "EagleLlamaForCausalLM",
    **dict.fromkeys(("deepseek-mini", "qwen3next-mini", "qwen35-mini"), WIDE),
}
OFFLINE: Final = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# Triton multiplies float32 as TF32 otherwise, in attention too: log-probabilities are 0.01 nats off.
TRUE_FLOAT32: Final = {"TRITON_F32_DEFAULT": "ieee"}
# Several engines share a GPU.
SMALL_POOL: Final = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 30}
ONE_THREAD: Final = {"VLLM_CPU_OMP_THREADS_BIND": "0", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
# vLLM's names of the kinds of grammars, in StructuredOutputsParams.
GRAMMARS: Final = {"json_schema": "json", "regex": "regex", "ebnf": "grammar", "structural_tag": "structural_tag"}
# Fields that are sent if they differ from their default, with vLLM's names.
EQUAL: Final = {
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "min_new_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "allowed_token_ids": "allowed_token_ids",
    "no_stop_trim": "include_stop_str_in_output",
    "n": "n",
    "stream": "stream",
}
HOTTEST: Final = 2.0
EVERY: Final = -1


class VllmSubject(InEnvironment):
    """vLLM's engine loop in one process, in float32 and hybrids in the precision of their CPU kernels; on a CPU on one
    thread.

    lookup: the method of the n-gram drafter.
    """

    name = "vllm"
    lookup = "ngram"
    profile = profile_of("vllm")
    environment = VLLM

    def requests(self, cell: Cell, seed: int) -> Sequence[RequestSpec]:
        """The matrix's requests without reasoning, which vLLM ends by a parser that knows models by name, and in cells
        of rules and stops without the rules that vLLM has not."""
        found = [replace(one, reasoning_end_ids=()) for one in super().requests(cell, seed)]
        return [_able(one, cell) for one in found] if cell.sampling == "rules" or cell.finish == "stops" else found

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        """Flags are vLLM's EngineArgs, fields of an ask its SamplingParams, less those that `engine` reads itself."""
        device = "cuda" if prepared.gpus else "cpu"
        if reason := obstacle(prepared, "vllm", self._limits(device), _unread(prepared)):
            return Unsupported(reason)
        ruled = any(one.ruled for one in prepared.requests)
        return EngineCommand(
            self._flags(prepared, device),
            prepared.checkpoints,
            tuple(_ask(request, ruled) for request in prepared.requests),
            variant=next((VARIANTS[name] for name in prepared.checkpoints.values() if name in VARIANTS), ""),
            environment=OFFLINE | (ONE_THREAD if device == "cpu" else TRUE_FLOAT32),
        )

    def start(self, command: EngineCommand) -> RunningEngine:
        """Start vLLM. ConfigError if it refuses the flags."""
        from specmatrix.matrix.subjects.vllm.engine import VllmEngine

        return VllmEngine(command)

    def limits(self) -> tuple[AxisLimit, ...]:
        return tuple(self._limits("cpu"))

    def _limits(self, device: str) -> Iterator[AxisLimit]:
        yield AxisLimit(
            LAYERS,
            ("algorithm", "model", "steps", "draft_tokens"),
            lambda cell: (
                cell.algorithm == "nextn"
                and not _recurrent(cell)
                and chain_depth(cell, DEPTHS) > 1
                and chain_depth(cell, DEPTHS) % 2 > 0
            ),
        )
        yield from declared("vllm on a CPU" if device == "cpu" else "vllm on a GPU")
        yield from declared("vllm-suffix") if self.lookup != "ngram" else ()
        yield from (*declared("vllm"), *chains_only("vLLM"))
        yield AxisLimit(
            BLOCKS,
            ("page_size", "model"),
            lambda cell: cell.page_size != "1" and int(cell.page_size) % _smallest_block(cell, device) > 0,
        )

    def _flags(self, prepared: PreparedCell, device: str) -> dict[str, Any]:
        """Engine arguments that all requests of a start share."""
        cell, asked = prepared.cell, prepared.asked
        block = _smallest_block(cell, device) if cell.page_size == "1" else int(cell.page_size)
        flags: dict[str, Any] = {
            "dtype": "bfloat16" if _recurrent(cell) and device == "cpu" else "float32",
            "seed": asked.random_seed,
            "block_size": block,
            "enable_prefix_caching": cell.prefix_cache == "on",
            "max_logprobs": EVERY,
        }
        if device == "cpu":
            flags["enforce_eager"] = True
            if _latent(cell):  # a CPU with AMX would take a kernel for bfloat16
                flags["attention_backend"] = "CPU_MLA"
        else:
            flags |= SMALL_POOL
        if cell.ranks > 1:
            flags["tensor_parallel_size"] = cell.ranks
        if cell.prefill_chunk != "off":
            flags["long_prefill_token_threshold"] = int(cell.prefill_chunk)
        if cell.slots != "auto":
            flags["max_num_seqs"] = int(cell.slots)
        if cell.spec_version != "auto" or cell.overlap == "off":
            flags["async_scheduling"] = cell.spec_version == "v2" and cell.overlap == "on"
        if cell.context != "model":
            flags["max_model_len"] = asked.context_length
        if cell.memory != "ample":
            # vLLM requires room for one text of the greatest length, and keeps one block for itself.
            flags["num_gpu_blocks_override"] = -(-cell.memory_tokens // block) + 1
            flags["max_model_len"] = min(cell.memory_tokens, flags.get("max_model_len", cell.memory_tokens))
        if any(request.ruled for request in prepared.requests):
            flags["logprobs_mode"] = "processed_logprobs"
        if cell.algorithm != "none":
            flags["speculative_config"] = self._drafter(cell)
            if cell.algorithm == "nextn" and "attention_backend" in flags:  # of drafts, it is chosen anew
                flags["speculative_config"]["attention_backend"] = flags["attention_backend"]
        return flags

    def _drafter(self, cell: Cell) -> dict[str, Any]:
        """vLLM's speculative_config, without the path of the draft."""
        depth = chain_depth(cell, DEPTHS)
        if cell.algorithm != "ngram":
            drawn = {"draft_sample_method": "probabilistic"} if cell.acceptance != "match" else {}
            blocks = {"rejection_sample_method": "block"} if cell.acceptance == "block" else {}
            return {"method": METHODS[cell.algorithm], "num_speculative_tokens": depth, **drawn, **blocks}
        more = LOOKUP if self.lookup == "ngram" else {}
        return {"method": self.lookup, "num_speculative_tokens": depth, **more}


def _latent(cell: Cell) -> bool:
    return cell.model == "deepseek"


def _recurrent(cell: Cell) -> bool:
    return cell.model in ("qwen3next", "qwen35")


def _smallest_block(cell: Cell, device: str) -> int:
    return LATENT_BLOCK if _latent(cell) else SMALLEST[device]


class SuffixSubject(VllmSubject):
    """vLLM with suffix decoding in place of prompt lookup."""

    name = "vllm-suffix"
    lookup = "suffix"
    profile = replace(VllmSubject.profile, capabilities=VllmSubject.profile.capabilities | {Capability.ORDER})

    def version(self) -> str | None:
        return VLLM.version() if VLLM.has(SUFFIX) else None


def _unread(prepared: PreparedCell) -> Iterator[str]:
    """Yield a reason for each request that cannot be translated."""
    for request in prepared.requests:
        if prepared.cell.algorithm != "none" and (request.min_p or request.logit_bias):
            yield BIASED
        if request.temperature > HOTTEST:
            yield f"vLLM takes temperatures up to {HOTTEST:g}"


def _able(request: RequestSpec, cell: Cell) -> RequestSpec:
    """A request within vLLM's temperatures, without scores of min_p, which it takes behind it, and without bad words
    that begin in the prompt, where it looks for none. Beside drafts it has neither min_p nor biases: where the matrix
    makes EOS likely as soon as it is allowed, it is banned until behind the answer. It is greedy there too unless
    drafts are drawn, as the CPU build spoils all answers of a step with a draft and a sampled request
    (docs/findings.md)."""
    from specmatrix.matrix.workloads.questions import prompt_ids

    prompt = prompt_ids(request)
    request = replace(
        request,
        temperature=min(request.temperature, HOTTEST),
        logprobs=request.logprobs and not request.min_p,
        bad_words_ids=tuple(
            word for word in request.bad_words_ids if all(word[:n] != prompt[-n:] for n in range(1, len(word)))
        ),
    )
    if cell.algorithm == "none":
        return request
    greedy = cell.sampling == "rules" and cell.acceptance == "match"
    return replace(
        request,
        temperature=0.0 if greedy else request.temperature,
        min_new_tokens=min(LATE, request.max_new_tokens) if request.min_new_tokens else 0,
        min_p=0.0,
        logit_bias=(),
    )


def _ask(request: RequestSpec, ruled: bool) -> SubjectRequest:
    """ruled: whether scores are those after the rules and the temperature."""
    from specmatrix.matrix.workloads.questions import prompt_ids

    scored = request.logprobs or request.top_logprobs > 0 or request.prompt_logprobs >= 0
    # vLLM scores tokens before the temperature, which needs every token's score to correct.
    width = EVERY if request.temperature not in (0, 1) and not ruled else request.top_logprobs
    values: dict[str, Any] = {
        "max_tokens": request.max_new_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": request.ignore_eos,
        "logprobs": width if scored else None,
        "top_logprobs": request.top_logprobs,
    }
    if request.temperature:
        values |= {"top_k": request.top_k, "top_p": request.top_p, "min_p": request.min_p}
    if request.prompt_logprobs >= 0:
        values |= {"prompt_logprobs": request.top_logprobs, "prompt_logprob_from": request.prompt_logprobs}
    for name, value in request.changed.items():
        if name in EQUAL:
            values[EQUAL[name]] = list(value) if isinstance(value, tuple) else value
    if request.logit_bias:
        values["logit_bias"] = {str(token): bias for token, bias in request.logit_bias}
    if request.grammar is not None:
        values["structured_outputs"] = {GRAMMARS[request.grammar[0]]: request.grammar[1]}
    if request.bad_words_ids:
        values["bad_words_token_ids"] = [list(word) for word in request.bad_words_ids]
    return SubjectRequest(request.name, prompt_ids(request), values, request.after, request.abort_after)
