"""The requested configuration (EngineConfig), facts about the models (Facts), and what will run (Resolved)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Final, Literal, TypeAlias, get_args, get_origin

from specmatrix.engine.core.config.adaptive_file import Slots, inline
from specmatrix.engine.core.draft.ngram_index import NgramOptions
from specmatrix.engine.core.draft.suffix_tree import SuffixOptions
from specmatrix.errors import ConfigError, nearest, shown

AUTO: Final = "auto"
Auto: TypeAlias = Literal["auto"]

# Aliases that SGLang's command line accepts for the same field.
ALIASES: Final = {
    "model": "model_path",
    "speculative_draft_model": "speculative_draft_model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
    "mamba_track_interval": "state_interval",
    "speculative_use_rejection_sampling": "speculative_acceptance",
    "rejection_sample_method": "speculative_acceptance",
}
# SGLang's and vLLM's spellings of an acceptance rule, with the rule that each of their values means.
RULES: Final[dict[str, dict[str, str]]] = {
    "speculative_use_rejection_sampling": {"true": "reject", "1": "reject", "false": "match", "0": "match"},
    "rejection_sample_method": {"standard": "reject", "block": "block"},
}
# Allowed types of values; comparing others may raise.
PLAIN: Final = (str, int, float, bool, type(None))
MAX_INTEGER: Final = 127  # bits
MAX_PATH: Final = 4096  # characters; the limit of most systems
GIB: Final = 1 << 30  # the unit of cuda_graph_max_gb, in bytes
TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The requested configuration, with the flag names that SGLang users know.

    Sizes are in tokens, counts in requests; `auto` leaves the choice to `resolve`. speculative_adaptive_config is the
    path of a JSON file, or the JSON text itself, as are the two of DSPARK. Raises ConfigError on a value of the wrong
    type or outside a closed set; `resolve` checks ranges and combinations.
    """

    model_path: str
    speculative_algorithm: str = "NONE"
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | Auto = AUTO
    speculative_eagle_topk: int | Auto = AUTO
    speculative_num_draft_tokens: int | Auto = AUTO
    speculative_adaptive: bool = False
    speculative_adaptive_config: str | None = None
    speculative_acceptance: Literal["match", "reject", "block"] = "match"
    speculative_ragged_verify: bool = False
    speculative_confidence_threshold: float = 0.0
    speculative_constrained_drafts: bool = False
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
    speculative_suffix_max_tree_depth: int = 24
    speculative_suffix_max_cached_requests: int = 10_000
    speculative_suffix_max_spec_factor: float = 1.0
    speculative_suffix_max_spec_offset: float = 0.0
    speculative_suffix_min_token_prob: float = 0.1
    speculative_suffix_max_gb: float = 1.0
    speculative_dspark_block_size: int = 0
    speculative_dspark_verify_mode: Literal["static", "cap-accept"] = "static"
    speculative_dspark_sps_table_path: str | None = None
    speculative_dspark_confidence_sts_path: str | None = None
    spec_version: Literal["auto", "v1", "v2"] = AUTO
    disable_overlap_schedule: bool = False
    page_size: int | Auto = AUTO
    disable_radix_cache: bool = False
    swa_full_tokens_ratio: float = 1.0
    state_interval: int | Auto = AUTO
    chunked_prefill_size: int | Auto = AUTO
    enable_mixed_chunk: bool = False
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
    disable_grammar_tables: bool = False

    def __post_init__(self) -> None:
        for name, default in UNASKED.items():
            if (value := getattr(self, name)) is not default:
                _check(name, value)

    @classmethod
    def from_flags(cls, flags: Mapping[str, object]) -> "EngineConfig":
        """A configuration from flags (`--page-size`, `page-size` or `page_size`, values as text or typed).

        Raises ConfigError on an unknown flag (suggests the closest one, or lists all), a duplicate flag, or a value
        that cannot be parsed.
        """
        values: dict[str, Any] = {}
        for flag, value in flags.items():
            name = field_of(flag)
            if name in values:
                raise ConfigError(f"{name} is given twice; remove one")
            if spellings := spellings_of(flag):
                value = respelled(flag, str(value), spellings)
            values[name] = _parse(name, value) if isinstance(value, str) else value
        if "model_path" not in values:
            raise ConfigError("model_path is missing; set it to the path or zoo name of the target model")
        return cls(**values)


CHOICES: Final[dict[str, tuple[object, ...]]] = {
    **{field.name: get_args(field.type) for field in fields(EngineConfig) if get_origin(field.type) is Literal},
    **{"strict_memory": (0, 1, 2), "enable_multi_layer_eagle": (AUTO, True, False)},
}


def _kinds() -> dict[str, type]:
    """The type of each field's explicit value; only sizes default to `auto`, only paths to None."""
    kinds: dict[str, type] = {}
    for field in fields(EngineConfig):
        number = field.default == AUTO and field.name not in CHOICES
        text = field.default in (MISSING, None, AUTO)
        kinds[field.name] = int if number else str if text else type(field.default)
    return kinds


KINDS: Final = _kinds()
UNASKED: Final[dict[str, object]] = {field.name: field.default for field in fields(EngineConfig)}
WORDS: Final[dict[type, str]] = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


def field_of(flag: str) -> str:
    """The field that a flag sets. Raises ConfigError on an unknown flag (suggests the closest one, or lists all)."""
    name = flag.removeprefix("--").replace("-", "_")
    name = ALIASES.get(name, name)
    if name not in KINDS:
        raise ConfigError(_unknown(flag, name))
    return name


def spellings_of(flag: str) -> Mapping[str, str]:
    """The values of another engine's flag, with the field's value that each means; {} for flags of this engine's."""
    return RULES.get(flag.removeprefix("--").replace("-", "_"), {})


def respelled(flag: str, value: str, spellings: Mapping[str, str]) -> str:
    """The field's value for a flag's. ConfigError if the flag has no such value."""
    if value.lower() not in spellings:
        raise ConfigError(f"{_typed(flag)} must be one of {', '.join(spellings)}, got {shown(value)}")
    return spellings[value.lower()]


def _unknown(flag: str, name: str) -> str:
    close = nearest(name, KINDS)
    hint = f"did you mean {_typed(close)}?" if close else f"it must be one of {', '.join(map(_typed, KINDS))}"
    return f"unknown flag {shown(_typed(flag))}; {hint}"


def _typed(name: str) -> str:
    """A flag in its command-line spelling."""
    return f"--{name.removeprefix('--').replace('_', '-')}"


def _wants(name: str) -> str:
    """A description of the values that a field accepts."""
    if name in CHOICES:
        return "one of " + ", ".join(str(one).lower() if isinstance(one, bool) else str(one) for one in CHOICES[name])
    return WORDS[KINDS[name]] + (" or 'auto'" if UNASKED[name] == AUTO else "")


def _check(name: str, value: object) -> None:
    kind = KINDS[name]
    if type(value) is int and value.bit_length() > MAX_INTEGER:
        raise ConfigError(f"{name} must be between -2**{MAX_INTEGER} and 2**{MAX_INTEGER}, got {shown(value)}")
    if type(value) not in PLAIN:
        good = False
    elif name in CHOICES:
        good = any(value == choice and type(value) is type(choice) for choice in CHOICES[name])
    elif kind is float:
        good = type(value) in (int, float) and value == value
    else:
        good = type(value) is kind or (UNASKED[name] in (AUTO, None) and value == UNASKED[name])
    if not good:
        raise ConfigError(f"{name} must be {_wants(name)}, got {shown(value)}")
    if type(value) is str and (error := _unreadable(value)):
        raise ConfigError(f"{name} {error}, got {shown(value)}")


def _unreadable(text: str) -> str:
    """Why a text can be neither a name nor a path, "" if it can."""
    if not text:
        return "must not be empty"
    if len(text) > MAX_PATH and not inline(text):
        return f"must be at most {MAX_PATH} characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "must be text without half of a surrogate pair"
    return "must not contain a null character" if "\0" in text else ""


def _parse(name: str, text: str) -> object:
    """Command-line text as the field's type; text that cannot be parsed is returned unchanged for `_check`."""
    kind = KINDS[name]
    if kind is bool or any(choice is True for choice in CHOICES.get(name, ())):
        return TRUTHS.get(text.lower(), text)
    try:
        return text if text == UNASKED[name] else kind(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class DraftFacts:
    """Facts from a draft's checkpoint.

    target_hidden_size: width of one target hidden state that the draft reads, None if it reads none.
    draft_vocab_size: width of the draft's own head, None if it equals vocab_size.
    tokenizer_hash: None if the checkpoint has no tokenizer.
    aux_layers: indices of the target layers whose input states the draft reads; FINAL: after the final norm.
    block_size: positions per forward of a block drafter, root included.
    mask_token: token id in place of those that a draft of several tokens in one forward does not know yet.
    prediction_layers: layers that predict one token each, 0 for a checkpoint without such layers.
    confidence_head: it says how likely each draft of a block is right, by a head of its own.
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
    confidence_head: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the models and the machine, known before the engine starts; context_length in tokens, gpus visible.

    bundled: the draft weights in the target's checkpoint, None if it has none.
    adaptive_config: text of the speculative_adaptive_config file, None if it was not read. adaptive_policies: names of
    the adaptive policies that other packages bring.
    window: size of the target's sliding window in tokens, the query's own included; None without windowed layers.
    state_heads: key heads of the target's layers with a recurrent state, 0 without such layers.
    heads, kv_heads: attention heads of the target; kv_heads is 1 where all heads share one latent. widths: intermediate
    sizes of its feed-forward layers, one for each kind.
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
    adaptive_policies: tuple[str, ...] = ()
    heads: int = 1
    kv_heads: int = 1
    widths: tuple[int, ...] = ()
    state_heads: int = 0

    @property
    def recurrent(self) -> bool:
        """Whether the target has layers with a recurrent state."""
        return self.state_heads > 0


@dataclass(frozen=True, slots=True)
class Reason:
    """Why an automatic choice has its value. evidence: gates that must pass where this choice applies."""

    field: str
    value: str | int | float | bool | None
    because: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A departure from an explicitly requested value; `field` is a field of EngineConfig."""

    field: str
    asked: str | int | float | bool | None
    got: str | int | float | bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """What will run; only `engine.core.config.resolve.resolve` makes one.

    num_steps: draft depth (0 without a drafter). topk: children per node (0 without a drafter).
    num_draft_tokens: nodes per verified tree, root included (1 without a drafter).
    lag: launched steps whose results may be unread: 0 is spec v1, 1 is spec v2.
    chunked_prefill_size: tokens per prefill chunk, None for unchunked prefill.
    enable_mixed_chunk: a prefill step also advances every running request by one token, without drafts.
    max_total_tokens: KV capacity in tokens, a multiple of the page size; num_pages: the same in pages (without the
    padding page).
    enable_deterministic_inference: a token's logits are bitwise independent of the other tokens in its step.
    enable_streaming_session: streaming sessions are allowed.
    enable_multi_layer_eagle: each step of the chain is drafted by its own layer.
    parallel_drafting: all steps of the chain are drafted in one forward, as the draft's checkpoint names a mask token.
    swa_full_tokens_ratio: maximum ratio of window pages to pages of the other layers.
    adaptive_slots: settings of adaptive depth, empty for a static depth; num_steps and num_draft_tokens are then those
    of the first round.
    ngram: options of an n-gram drafter, suffix: those of suffix decoding; None for any other.
    cuda_graph_max_bs: largest batch size (requests) whose rounds run as CUDA graphs, 0 for no graphs.
    cuda_graph_max_gb: maximum GPU memory of all graphs together, in GiB.
    tp_size: ranks that share the target, one process each.
    speculative_acceptance: what accepts a draft of a sampled request: that the target's draw equals it, or rejection
    sampling by the distribution that drew it, token by token or for a whole block.
    speculative_ragged_verify: each row of a round verifies only what is left of its request's length.
    speculative_confidence_threshold: and no draft that is less likely, by the draft's own probabilities of the chain up
    to it; 0: as many as there are.
    speculative_dspark_verify_mode: "static": every draft; "cap-accept": the most likely ones of the batch, as many as
    make the most tokens per second by the steps' measured rates in speculative_dspark_sps_table_path.
    speculative_dspark_confidence_sts_path: the temperatures of the drafts' confidences.
    speculative_constrained_drafts: a draft follows its request's grammar, if that has a token table; the text stays.
    disable_grammar_tables: the masks of all grammars are computed on the host.
    state_interval: tokens between the checkpoints of a recurrent state, 0 for none.
    window: Facts.window; window_pages: KV pages of the windowed layers (without the padding page), 0 if there are none.
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
    parallel_drafting: bool = False
    swa_full_tokens_ratio: float = 1.0
    state_interval: int = 0
    window: int | None = None
    window_pages: int = 0
    adaptive_slots: Slots | tuple[()] = ()
    ngram: NgramOptions | None = None
    suffix: SuffixOptions | None = None
    cuda_graph_max_bs: int = 0
    cuda_graph_max_gb: int = 4
    tp_size: int = 1
    speculative_acceptance: Literal["match", "reject", "block"] = "match"
    speculative_ragged_verify: bool = False
    speculative_confidence_threshold: float = 0.0
    speculative_constrained_drafts: bool = False
    speculative_dspark_verify_mode: Literal["static", "cap-accept"] = "static"
    speculative_dspark_sps_table_path: str | None = None
    speculative_dspark_confidence_sts_path: str | None = None
    disable_grammar_tables: bool = False
    enable_mixed_chunk: bool = False
    reasons: tuple[Reason, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()

    @property
    def max_steps(self) -> int:
        """Depth of the deepest round that can run."""
        return max((slot.candidate_steps[-1] for slot in self.adaptive_slots), default=self.num_steps)

    @property
    def max_draft_tokens(self) -> int:
        """Nodes of the widest round that can run; buffers are sized for it."""
        return self.max_steps + 1 if self.adaptive_slots else self.num_draft_tokens

    @property
    def overrun(self) -> int:
        """Positions that the rounds in flight may reserve past a row's last token."""
        return (self.lag + 1) * self.max_draft_tokens

    @property
    def positions(self) -> int:
        """Positions in the slot tables, in whole pages: the context, and the widest round past its last token."""
        deepest = self.lag * self.max_draft_tokens + max(self.max_draft_tokens, self.max_steps)
        return -(-(self.context_length + deepest) // self.page_size) * self.page_size

    @property
    def state_tokens(self) -> int:
        """Tokens of a page of recurrent states: up to the next checkpoint, or all."""
        return self.state_interval or self.positions

    @property
    def states(self) -> int:
        """Slots for recurrent states: the live ones, and the checkpoints within as many tokens as there is KV for."""
        checkpoints = self.max_total_tokens // self.state_interval if self.state_interval else 0
        return self.max_running_requests + checkpoints

    def as_dict(self) -> dict[str, Any]:
        """Values that can be serialised as JSON, in field order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["adaptive_slots"] = [slot.as_dict() for slot in self.adaptive_slots]
        values["ngram"] = None if self.ngram is None else asdict(self.ngram)
        values["suffix"] = None if self.suffix is None else asdict(self.suffix)
        values["reasons"] = [{"field": r.field, "value": r.value, "because": r.because} for r in self.reasons]
        values["rewrites"] = [asdict(rewrite) for rewrite in self.rewrites]
        return values

    def start_hash(self) -> str:
        """12 hex digits over the effective values; reasons and rewrites do not change it."""
        values = {name: value for name, value in self.as_dict().items() if name not in ("reasons", "rewrites")}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
