"""What was asked (EngineConfig), what is known of the models (Facts), and what will run (Resolved)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from specmatrix.engine.core.config.adaptive_file import AdaptiveSlot
from specmatrix.engine.core.config.suggest import nearest
from specmatrix.engine.core.draft.ngram_index import NgramOptions
from specmatrix.errors import ConfigError

AUTO: Final = "auto"
Auto: TypeAlias = Literal["auto"]

CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "spec_version": (AUTO, "v1", "v2"),
    "dtype": (AUTO, "float32", "bfloat16", "float16"),
    "device": (AUTO, "cpu", "cuda"),
    "strict_memory": (0, 1, 2),
    "enable_multi_layer_eagle": (AUTO, True, False),
    "speculative_ngram_match_type": ("BFS", "PROB"),
}
# Second names that SGLang's command line accepts for the same field.
ALIASES: Final = {
    "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
}
TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What was asked, under the flag names that SGLang users know.

    Sizes are in tokens, counts in requests; `auto` leaves the choice to `resolve`. speculative_adaptive_config is the
    path of a JSON file, or that JSON itself. ConfigError on a value of the wrong type or outside a closed set; ranges
    and combinations are judged by `resolve`.
    """

    model_path: str
    speculative_algorithm: str = "NONE"
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | Auto = AUTO
    speculative_eagle_topk: int | Auto = AUTO
    speculative_num_draft_tokens: int | Auto = AUTO
    speculative_adaptive: bool = False
    speculative_adaptive_config: str | None = None
    speculative_accept_threshold_single: float = 1.0
    speculative_accept_threshold_acc: float = 1.0
    speculative_ngram_min_bfs_breadth: int = 1
    speculative_ngram_max_bfs_breadth: int | Auto = AUTO
    speculative_ngram_match_type: Literal["BFS", "PROB"] = "BFS"
    speculative_ngram_max_trie_depth: int = 18
    speculative_ngram_capacity: int = 10_000_000
    speculative_ngram_external_corpus_path: str | None = None
    speculative_ngram_external_sam_budget: int = 0
    speculative_ngram_external_corpus_max_tokens: int = 10_000_000
    spec_version: Literal["auto", "v1", "v2"] = AUTO
    disable_overlap_schedule: bool = False
    page_size: int | Auto = AUTO
    disable_radix_cache: bool = False
    swa_full_tokens_ratio: float = 1.0
    chunked_prefill_size: int | Auto = AUTO
    max_total_tokens: int | Auto = AUTO
    max_running_requests: int | Auto = AUTO
    context_length: int | Auto = AUTO
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = AUTO
    device: Literal["auto", "cpu", "cuda"] = AUTO
    tp_size: int = 1
    disable_cuda_graph: bool = False
    cuda_graph_max_bs: int | Auto = AUTO
    cuda_graph_max_gb: int = 4
    enable_multi_layer_eagle: bool | Auto = AUTO
    enable_streaming_session: bool = False
    random_seed: int = 0
    strict_memory: int = 0
    kv_stamps: bool = False
    enable_deterministic_inference: bool = False

    def __post_init__(self) -> None:
        for name in KINDS:
            _check(name, getattr(self, name))

    @classmethod
    def from_flags(cls, flags: Mapping[str, object]) -> "EngineConfig":
        """A configuration from flags as typed (`--page-size`, `page-size` or `page_size`, values as text or typed).

        ConfigError on an unknown flag (names the closest one, or all), a flag given twice, or a value that does
        not parse.
        """
        values: dict[str, Any] = {}
        for flag, value in flags.items():
            name = field_of(flag)
            if name in values:
                raise ConfigError(f"{name} is given twice; give it once")
            values[name] = _parse(name, value) if isinstance(value, str) else value
        if "model_path" not in values:
            raise ConfigError("model_path is missing; give the path or zoo name of the target model")
        return cls(**values)


def _kinds() -> dict[str, type]:
    """The type of an explicit value, field by field; only sizes default to `auto`, only paths to None."""
    kinds: dict[str, type] = {}
    for field in fields(EngineConfig):
        number = field.default == AUTO and field.name not in CHOICES
        text = field.default in (MISSING, None, AUTO)
        kinds[field.name] = int if number else str if text else type(field.default)
    return kinds


KINDS: Final = _kinds()
UNASKED: Final[dict[str, object]] = {field.name: field.default for field in fields(EngineConfig)}
WORDS: Final[dict[type, str]] = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}


def field_of(flag: str) -> str:
    """The field that a flag sets. ConfigError on an unknown flag (names the closest one, or all)."""
    name = flag.removeprefix("--").replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in KINDS:
        raise ConfigError(_unknown(flag, name))
    return name


def _unknown(flag: str, name: str) -> str:
    close = nearest(name, KINDS)
    hint = f"the closest one is {_typed(close)}" if close else f"it must be one of {', '.join(map(_typed, KINDS))}"
    return f"flag {_typed(flag)!r} is unknown; {hint}"


def _typed(name: str) -> str:
    """A flag as it is typed on a command line."""
    return f"--{name.removeprefix('--').replace('_', '-')}"


def _wants(name: str) -> str:
    """The words for what a field accepts."""
    if name in CHOICES:
        return "one of " + ", ".join(str(choice).lower() for choice in CHOICES[name])
    return WORDS[KINDS[name]] + (" or 'auto'" if UNASKED[name] == AUTO else "")


def _check(name: str, value: object) -> None:
    kind = KINDS[name]
    if name in CHOICES:
        good = any(value == choice and type(value) is type(choice) for choice in CHOICES[name])
    elif kind is float:
        good = type(value) in (int, float) and value == value
    else:
        good = type(value) is kind or (UNASKED[name] in (AUTO, None) and value == UNASKED[name])
    if not good:
        raise ConfigError(f"{name} must be {_wants(name)}, got {value!r}")


def _parse(name: str, text: str) -> object:
    """Text from a command line as the field's type; text that does not parse goes on to `_check` unchanged."""
    kind = KINDS[name]
    if kind is bool or any(choice is True for choice in CHOICES.get(name, ())):
        return TRUTHS.get(text.lower(), text)
    try:
        return text if text == UNASKED[name] else kind(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """What a draft's checkpoint says of itself.

    target_hidden_size: width of one target state that the draft reads, None for a draft that reads none.
    draft_vocab_size: width of the draft's own head, None where it is vocab_size.
    tokenizer_hash: None where the checkpoint brings no tokenizer.
    aux_layers: indices of the target layers whose input states the draft reads; FINAL: behind the final norm.
    block_size: positions that one forward of a block drafter covers, its root included.
    mask_token: target id that stands for a block's unknown tokens.
    prediction_layers: layers that predict one token each, 0 in a checkpoint without such layers.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    target_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    tokenizer_hash: str | None = None
    aux_layers: tuple[int, ...] = ()
    block_size: int | None = None
    mask_token: int | None = None
    prediction_layers: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the models and the machine before a launch; context_length in tokens, gpus visible.

    bundled: what the target's checkpoint brings to draft with, None for nothing.
    adaptive_config: text of the file that speculative_adaptive_config names, None where it is unread.
    window: tokens that the target's sliding-window layers look back, their own included; None without such layers.
    heads, kv_heads: of the target's attention; kv_heads is 1 where all heads share one latent. widths: inner numbers of
    its feed-forward parts, one for each kind.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    context_length: int
    tokenizer_hash: str | None = None
    draft: DraftFacts | None = None
    device_kind: Literal["cpu", "cuda"] = "cpu"
    gpus: int = 0
    window: int | None = None
    bundled: DraftFacts | None = None
    adaptive_config: str | None = None
    heads: int = 1
    kv_heads: int = 1
    widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an automatic choice took its value. evidence: gates that must be green where it did."""

    field: str
    value: str | int | float | bool | None
    because: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A departure from an explicit ask; `field` is a field of EngineConfig."""

    field: str
    asked: str | int | float | bool | None
    got: str | int | float | bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What will run; only `engine.core.config.resolve.resolve` makes one.

    num_steps: depth of a draft (0 without a drafter). topk: children per node (0 without a drafter).
    num_draft_tokens: nodes per verified tree, root included (1 without a drafter).
    lag: launched steps that may wait unread: 0 is spec v1, 1 is spec v2.
    chunked_prefill_size: tokens per prefill chunk, None for whole prompts.
    max_total_tokens: KV capacity in tokens, a whole number of pages; num_pages: the same in pages (padding page
    not counted).
    enable_deterministic_inference: the bits of a token's logits do not depend on the rest of its step.
    enable_streaming_session: streaming sessions may be opened.
    enable_multi_layer_eagle: each step of the chain is drafted by a layer of its own.
    swa_full_tokens_ratio: the most window pages per page of the other layers.
    adaptive_slots: what adapts the depth from round to round, empty for a static one; num_steps and num_draft_tokens
    are then those of the first round.
    ngram: what an n-gram drafter runs with, None for any other.
    cuda_graph_max_bs: requests of the largest batch whose rounds run as CUDA graphs, 0 for no graphs.
    cuda_graph_max_gb: GiB of GPU memory that all of them together may hold.
    tp_size: ranks that share the target, one process each.
    window: Facts.window; window_pages: KV pages of the layers that have it (padding page not counted), 0 without.
    """

    model_path: str
    draft_path: str | None
    algorithm: str
    num_steps: int
    topk: int
    num_draft_tokens: int
    lag: int
    spec_version: Literal["v1", "v2"]
    page_size: int
    radix_cache: bool
    chunked_prefill_size: int | None
    max_total_tokens: int
    num_pages: int
    max_running_requests: int
    context_length: int
    dtype: Literal["float32", "bfloat16", "float16"]
    device: Literal["cpu", "cuda"]
    random_seed: int
    strict_memory: int
    kv_stamps: bool
    enable_deterministic_inference: bool
    enable_streaming_session: bool = False
    enable_multi_layer_eagle: bool = False
    swa_full_tokens_ratio: float = 1.0
    window: int | None = None
    window_pages: int = 0
    adaptive_slots: tuple[AdaptiveSlot, ...] = ()
    ngram: NgramOptions | None = None
    cuda_graph_max_bs: int = 0
    cuda_graph_max_gb: int = 4
    tp_size: int = 1
    reasons: tuple[Reason, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    @property
    def max_steps(self) -> int:
        """Depth of the deepest round that may run."""
        return max((slot.candidate_steps[-1] for slot in self.adaptive_slots), default=self.num_steps)

    @property
    def max_draft_tokens(self) -> int:
        """Nodes of the widest round that may run: what memory is laid out for."""
        return self.max_steps + 1 if self.adaptive_slots else self.num_draft_tokens

    @property
    def slack(self) -> int:
        """Positions that the rounds in flight may reserve past a row's last token."""
        return (self.lag + 1) * self.max_draft_tokens

    @property
    def positions(self) -> int:
        """Positions that exist, in whole pages: the context, and what rounds behind its last token are wide or deep."""
        deepest = self.lag * self.max_draft_tokens + max(self.max_draft_tokens, self.max_steps)
        return -(-(self.context_length + deepest) // self.page_size) * self.page_size

    def as_dict(self) -> dict[str, Any]:
        """JSON-able values in the order of the fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["adaptive_slots"] = [slot.as_dict() for slot in self.adaptive_slots]
        values["ngram"] = None if self.ngram is None else asdict(self.ngram)
        values["reasons"] = [{"field": r.field, "value": r.value, "because": r.because} for r in self.reasons]
        values["rewrites"] = [
            {"field": r.field, "asked": r.asked, "got": r.got, "reason": r.reason} for r in self.rewrites
        ]
        return values

    def start_hash(self) -> str:
        """12 hex digits over the values that run; reasons and rewrites do not change it."""
        values = {name: value for name, value in self.as_dict().items() if name not in ("reasons", "rewrites")}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
