"""A cell: one value per axis. Frozen, hashable, ordered; its id encodes its content.

The facts of the models on the axes that configuration resolution needs; a test reads them from the checkpoints.

The settings behind start axis values: `adaptive` configurations and session_retract memory sizes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from operator import getitem
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import msgspec

from specmatrix.engine.core.config.asked import AUTO, Auto, DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.draft.algorithms import Traits, algorithm, is_registered
from specmatrix.errors import ConfigError, nearest, shown
from specmatrix.matrix.cells.axes import AXES, INDEX, NAMES, OWN_VALUES, START_AXES, Axis, OwnValue, axis


class SessionRetract(msgspec.Struct, frozen=True):
    """Sizes in tokens: of the memory, and of a conversation after its first and its second turn.

    The memory is between one and two conversations, so a retracted turn resumes from the KV that its session kept. The
    second turns of two conversations do not fit with the first ones, so the younger is retracted; the end of the older
    one, with two rounds of the widest tree, fits with the KV that the younger had inherited.
    """

    memory: int
    first: int
    second: int


class StartSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of start_settings.yaml, which explains it."""

    adaptive: dict[str, dict[str, Any]]
    pages: dict[int, SessionRetract]
    windowed_pages: dict[int, SessionRetract]


_SETTINGS: Final = msgspec.yaml.decode(Path(__file__).with_name("start_settings.yaml").read_bytes(), type=StartSettings)
# None: no file is given, so the default table applies.
ADAPTIVE_TEXTS: Final[dict[str, str | None]] = {"table": None} | {
    name: json.dumps(it) for name, it in _SETTINGS.adaptive.items()
}


def session_retract(windowed: bool, page_size: int) -> SessionRetract:
    """The sizes for pages of `page_size` tokens."""
    sizes = _SETTINGS.windowed_pages if windowed else _SETTINGS.pages
    return sizes.get(page_size, sizes[0])


def spares(windowed: bool, page_size: int) -> bool:
    """Whether a second turn's inherited KV survives its retraction: with smaller pages a window has slid past it."""
    return not windowed or page_size == 256


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value of the axis `model` in models.yaml, which explains its fields."""

    target: str
    drafts: dict[str, str] = {}
    recurrent: bool = False
    ngram: dict[str, Any] = {}
    suffix: dict[str, Any] = {}


ROWS: Final = msgspec.yaml.decode(Path(__file__).with_name("models.yaml").read_bytes(), type=dict[str, Model])
# The zoo's name of each target, and of the drafts by model and drafter.
MODELS: Final = {name: row.target for name, row in ROWS.items()}
DRAFTS: Final = {(name, drafter): draft for name, row in ROWS.items() for drafter, draft in row.drafts.items()}
HYBRIDS: Final = frozenset(name for name, row in ROWS.items() if row.recurrent)
# Tight memory fits a workload's longest request alone, but no two requests to their end. It is the larger of these two
# sizes: with fewer pages no request would ever need a second page.
TIGHT_TOKENS: Final = 192
TIGHT_PAGES: Final = 2
# Sliding-window layers reserve two pages per request, and two requests must run.
TIGHT_WINDOW_PAGES: Final = 4
# A multiple of the page size, so that drafts past the last position need a page that no text ever fills.
SHORT_CONTEXT: Final = 320
# Ample memory holds all requests of the largest workload at once; more only slows the ledger checks. Of four requests
# at a time it holds these and some of the texts before them, so that in many questions the first ones are evicted.
AMPLE_TOKENS: Final = 12_288
FEW_SLOTS_TOKENS: Final = 3_072
AMPLE_PAGES: Final = 128
# Drafts that are less likely are left out: of the zoo's drafts about one in five is, and half of those are wrong.
CONFIDENCE: Final = 0.5
# Steps per second by verified tokens, as a device would have that is busy with few: with plateaus, as graphs have.
COSTS: Final = (
    '{"sample_batch_tokens": [1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 24, 28, 32, 40], "sample_steps_per_sec": '
    "[92, 86, 80, 75, 67, 60, 55, 49, 43, 38, 34, 30, 28, 23]}"
)
# How the confidences of DSPARK's drafts are calibrated, of which rnn has one more.
TEMPERATURES: Final = (0.8, 1.3, 0.9, 1.6, 1.1, 0.7)
# Seed of every engine except those started as v1, such as baselines: they have seed 0 and seed each request.
ENGINE_SEED: Final = 17
# Settings that the gates need on every engine, besides batch-invariant results: KV stamps, ledger checks, and sessions,
# which any cell of a start may open.
INSTRUMENTS: Final[dict[str, Any]] = {
    "kv_stamps": True, "strict_memory": 1, "enable_streaming_session": True,
}  # fmt: skip
# Limits of engines on a GPU with few slots. They differ from the defaults, so an engine that ignores them shows, and a
# full batch exceeds the largest graph. All other cells run with the defaults.
GPU_LIMITS: Final[dict[str, Any]] = {"cuda_graph_max_gb": 3, "cuda_graph_max_bs": 3}


class Cell(NamedTuple):
    """One value per axis, in the order of AXES; the values are their names."""

    algorithm: str = "none"
    model: str = "llama"
    tp: str = "1"
    steps: str = "auto"
    topk: str = "auto"
    draft_tokens: str = "auto"
    adaptive: str = "off"
    acceptance: str = "match"
    verify: str = "whole"
    constrained_drafts: str = "off"
    drafting: str = "stepwise"
    spec_version: str = "auto"
    overlap: str = "on"
    page_size: str = "1"
    prefix_cache: str = "on"
    state_interval: str = "auto"
    prefill_chunk: str = "off"
    mixed_chunk: str = "off"
    context: str = "model"
    memory: str = "ample"
    slots: str = "auto"
    numerics: str = "float32"
    batch: str = "single"
    session: str = "none"
    sampling: str = "greedy"
    finish: str = "eos"
    abort: str = "none"
    grammar: str = "none"

    @property
    def id(self) -> str:
        """The tokens of the non-default values, joined by dots; inverse of `from_id`."""
        return ".".join([token for table, value in zip(TOKENS, self, strict=True) if (token := table[value])])

    @classmethod
    def from_id(cls, text: str) -> "Cell":
        """The cell of an id. ConfigError on an unknown token, or on two tokens of one axis."""
        values: dict[str, str] = {}
        for token in text.split("."):
            if token not in MEANINGS:
                raise ConfigError(f"cell id {shown(text)} has {_unknown_part(token)}")
            name, value = MEANINGS[token]
            if name in values:
                raise ConfigError(f"cell id {shown(text)} sets {name} twice")
            values[name] = value
        if "algorithm" not in values:
            names = ", ".join(axis("algorithm").names)
            raise ConfigError(f"cell id {shown(text)} has no algorithm; it must start with one of {names}")
        return cls(**values)

    @classmethod
    def of(cls, assignment: Mapping[str, str]) -> "Cell":
        """The cell with these values, defaults elsewhere. ConfigError on an unknown axis or value."""
        return cls(**{name: axis(name).value(value).name for name, value in assignment.items()})

    @property
    def values(self) -> dict[str, str]:
        """Axis name to value."""
        return self._asdict()

    @property
    def start_key(self) -> tuple[str, ...]:
        """The values of the start axes; cells with equal keys share an engine start."""
        return self[: len(START_AXES)]

    @property
    def target(self) -> str:
        """The target's name in the zoo."""
        return MODELS[self.model]

    @property
    def draft(self) -> str | None:
        """The draft's name in the zoo; None without a draft, or if the target's checkpoint contains it."""
        return DRAFTS.get((self.model, self.drafter))

    @property
    def drafter(self) -> str:
        """The name of the algorithm's draft in DRAFTS and among the oracle's."""
        way = "vanilla" if (self.algorithm, self.drafting) == ("dspark", "stepwise") else self.drafting
        return self.algorithm if way == "stepwise" else f"{self.algorithm}.{way}"

    @property
    def baseline(self) -> "Cell":
        """The same cell without a drafter and mixed steps, for paired gates."""
        names = ("steps", "topk", "draft_tokens", "adaptive", "acceptance", "verify", "constrained_drafts", "drafting")
        default = {name: self._field_defaults[name] for name in (*names, "mixed_chunk")}
        return self._replace(algorithm="none", **default)

    @property
    def canonical(self) -> "Cell":
        """The default engine start of the model, context and numerics, the reference for drafters, timings and page
        sizes."""
        same = {name: self.values[name] for name in ("model", "context", "numerics")}
        return Cell(prefix_cache="off", spec_version="v1", **same)

    @property
    def session_baseline(self) -> "Cell":
        """The default engine start with the cell's drafter, the reference for turns with inherited KV."""
        shape = ("steps", "topk", "draft_tokens", "acceptance", "verify", "constrained_drafts")
        names = ("algorithm", "drafting", *shape)
        return self.canonical._replace(**{name: self.values[name] for name in names})

    @property
    def own_values(self) -> dict[str, OwnValue]:
        """Its values that plug-ins added, by axis."""
        return {pair[0]: OWN_VALUES[pair] for pair in zip(NAMES, self, strict=True) if pair in OWN_VALUES}

    @property
    def as_like(self) -> "Cell":
        """The cell that gates treat it as, with a built-in value on each request axis."""
        return self._replace(**{name: own.like for name, own in self.own_values.items() if name not in START_AXES})

    @property
    def own_traits(self) -> Traits | None:
        """The traits of a user's algorithm, None for a built-in one."""
        name = self.algorithm.upper()
        return algorithm(name) if is_registered(name) else None

    @property
    def shares_rounds(self) -> bool:
        """Whether what a request's rounds accept follows from other requests' texts too."""
        return algorithm(self.algorithm).rounds == "shared"

    @property
    def _calibration(self) -> str | None:
        if self.algorithm != "dspark" or self.verify not in ("confident", "budget"):
            return None
        return json.dumps({"temperatures": TEMPERATURES[: None if self.drafting == "rnn" else -1]})

    @property
    def adapts(self) -> bool:
        """Whether the depth changes between rounds: only EAGLE-style chains may (sglang#21599, #23336)."""
        may = self.algorithm in ("eagle", "eagle3", "nextn") if self.own_traits is None else self.own_traits.adaptive
        return may and self.adaptive != "off" and self.topk in ("auto", "1")

    @property
    def seconds(self) -> float:
        """Estimated duration on one CPU thread."""
        return sum(price[value] for price, value in zip(SECONDS, self, strict=True))

    @property
    def gpus(self) -> int:
        """Number of GPUs that the cell needs; 0 runs on a CPU."""
        return max(map(getitem, GPUS, self))

    @property
    def ranks(self) -> int:
        """Number of tensor-parallel ranks."""
        return int(self.tp)

    @property
    def memory_tokens(self) -> int:
        """Size of the KV memory in tokens, a multiple of the page size."""
        page = int(self.page_size)
        if self.memory == "session_retract":
            return session_retract(self.model == "qwen3", page).memory
        if self.memory == "ample":
            return max(AMPLE_TOKENS if self.slots == "auto" else FEW_SLOTS_TOKENS, AMPLE_PAGES * page)
        pages = TIGHT_WINDOW_PAGES if self.model == "qwen3" and page > TIGHT_TOKENS else TIGHT_PAGES
        return max(TIGHT_TOKENS, pages * page)

    def config(self) -> EngineConfig:
        """The engine configuration that the cell requests; the only bridge from the matrix to the engine."""
        found = EngineConfig(
            model_path=self.target,
            speculative_algorithm=self.algorithm.upper(),
            speculative_draft_model_path=self.draft,
            speculative_num_steps=_size(self.steps),
            speculative_eagle_topk=_size(self.topk),
            speculative_num_draft_tokens=_size(self.draft_tokens),
            speculative_adaptive=self.adaptive != "off",
            speculative_adaptive_config=ADAPTIVE_TEXTS.get(self.adaptive),
            speculative_acceptance=cast(Any, self.acceptance),
            speculative_ragged_verify=self.verify not in ("whole", "budget"),
            speculative_constrained_drafts=self.constrained_drafts == "on",
            speculative_confidence_threshold=CONFIDENCE if self.verify == "confident" else 0.0,
            speculative_dspark_verify_mode="cap-accept" if self.verify == "budget" else "static",
            speculative_dspark_sps_table_path=COSTS if self.verify == "budget" else None,
            speculative_dspark_confidence_sts_path=self._calibration,
            spec_version=cast(Any, self.spec_version),
            disable_overlap_schedule=self.overlap == "off",
            page_size=int(self.page_size),
            disable_radix_cache=self.prefix_cache == "off",
            state_interval=_size(self.state_interval),
            chunked_prefill_size=-1 if self.prefill_chunk == "off" else int(self.prefill_chunk),
            enable_mixed_chunk=self.mixed_chunk == "on",
            context_length=SHORT_CONTEXT if self.context == "short" else AUTO,
            max_total_tokens=self.memory_tokens,
            max_running_requests=_size(self.slots),
            tp_size=self.ranks,
            dtype=AUTO if self.numerics == "float32" else "bfloat16",
            random_seed=0 if self.spec_version == "v1" else ENGINE_SEED,
            **(getattr(ROWS[self.model], self.algorithm) if self.algorithm in ("ngram", "suffix") else {}),
        )
        for own in self.own_values.values():
            found = replace(found, **own.config)
        return found


TOKENS: Final = tuple({value.name: value.token for value in axis.values} for axis in AXES)
SECONDS: Final = tuple({value.name: value.seconds for value in axis.values} for axis in AXES)
GPUS: Final = tuple({value.name: value.gpus for value in axis.values} for axis in AXES)
MEANINGS: Final = {value.token: (axis.name, value.name) for axis in AXES for value in axis.values if value.token}


def asked(cell: Cell, gpus: int = 0) -> EngineConfig:
    """The configuration of the engine that runs a cell, see `instrumented`."""
    return instrumented(cell.config(), cell.numerics, gpus)


def instrumented(config: EngineConfig, numerics: str, gpus: int = 0) -> EngineConfig:
    """Add the settings that gates need to a configuration; if gpus > 0, also a GPU with the CPU tier's precision,
    unless the numerics set another."""
    config = replace(config, **INSTRUMENTS, enable_deterministic_inference=numerics != "fast")
    if not gpus:
        return config
    config = replace(config, device="cuda", dtype="float32" if config.dtype == AUTO else config.dtype)
    if config.max_running_requests == AUTO:
        return config
    # Rounds drafted on the host have no graphs, so requesting a graph size would be a rewrite.
    graphed = not algorithm(config.speculative_algorithm).reads_host
    return replace(config, **(GPU_LIMITS if graphed else {"cuda_graph_max_gb": GPU_LIMITS["cuda_graph_max_gb"]}))


def _unknown_part(token: str) -> str:
    """The error text for an unknown part of an id, with the closest known parts."""
    if not token:
        return "an empty part; join parts with single dots, as in eagle3.s3.k4"
    if token in INDEX:
        return f"the axis name {token} in place of a value; its values are written {_tokens(axis(token))}"
    letters = token.rstrip("0123456789")
    # `k5` most likely means the axis of `k4`, even if other tokens are spelled similarly.
    near = [part for part in MEANINGS if part != letters != token and part.rstrip("0123456789") == letters]
    near = near or [part for part in (nearest(token, MEANINGS),) if part]
    if near:
        return f"an unknown part {shown(token)}; the closest {'is' if len(near) == 1 else 'are'} {', '.join(near)}"
    return f"an unknown part {shown(token)}; an id is an algorithm and values of other axes, as in eagle3.s3.k4.n8.pair"


def _tokens(axis: Axis) -> str:
    return ", ".join(value.token for value in axis.values if value.token)


def _size(value: str) -> int | Auto:
    return AUTO if value == AUTO else int(value)


def parse_assignment(text: str) -> dict[str, str]:
    """Parse `algorithm=eagle3 topk=4` (separated by blanks, commas or `and`). ConfigError on anything else."""
    values: dict[str, str] = {}
    for part in text.replace(",", " ").split():
        if part == "and":
            continue
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise ConfigError(
                f"{shown(part)} is not an assignment; write axis=value, for example algorithm=eagle3 topk=4"
            )
        if name in values:
            raise ConfigError(f"{name} is given twice; give it once")
        values[axis(name).name] = axis(name).value(value.lower()).name
    return values


def order(cells: Iterable[Cell]) -> list[Cell]:
    """The distinct cells, ordered by the positions of their values on the axes."""
    return sorted(set(cells), key=lambda cell: [RANKS[i][value] for i, value in enumerate(cell)])


RANKS: Final = tuple({name: rank for rank, name in enumerate(axis.names)} for axis in AXES)

if Cell._fields != NAMES or any(Cell._field_defaults[name] != AXES[INDEX[name]].default for name in NAMES):
    raise TypeError("the fields of Cell must be the axes, with their defaults")


class ModelFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of model_facts.yaml: targets and drafts by name."""

    targets: dict[str, Facts]
    drafts: dict[str, DraftFacts]


_FACTS: Final = msgspec.yaml.decode(Path(__file__).with_name("model_facts.yaml").read_bytes(), type=ModelFacts)
TARGETS: Final = _FACTS.targets
DRAFT_FACTS: Final = _FACTS.drafts


def zoo_facts(cell: Cell) -> Facts:
    """The facts of a cell's target and draft, on a CPU."""
    return model_facts(cell.target, cell.draft)


@cache
def model_facts(target: str, draft: str | None = None) -> Facts:
    """The facts of a zoo target and its draft, which may be a target too, on a CPU."""
    if draft in TARGETS:
        one = TARGETS[draft]
        return replace(TARGETS[target], draft=DraftFacts(one.architecture, one.vocab_size, one.hidden_size))
    return replace(TARGETS[target], draft=None if draft is None else DRAFT_FACTS[draft])
