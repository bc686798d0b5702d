"""The axes of the matrix: one table, each value with its cost.

The first value of an axis is its default. A value's token is its part of a cell's id (`eagle3.s3.k4.n8.v2.pair`);
defaults have no token, except on the first axis, so adding an axis leaves existing ids unchanged.
Each combination of start axis values needs its own engine start; one start serves all values of the request axes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from specmatrix.errors import ConfigError, nearest, shown


@dataclass(frozen=True, slots=True)
class Value:
    """One value of an axis; seconds (CPU) and gpus are what it adds to a cell's cost."""

    name: str
    token: str
    seconds: float = 0.0
    gpus: int = 0


@dataclass(frozen=True)
class Axis:
    """One axis; the first value is the default."""

    name: str
    scope: Literal["start", "request"]
    summary: str
    values: tuple[Value, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.values)

    @property
    def default(self) -> str:
        return self.values[0].name

    def value(self, name: str) -> Value:
        """The value of a name. ConfigError lists the existing values."""
        for value in self.values:
            if value.name == name:
                return value
        raise ConfigError(f"{self.name} has no value {shown(name)}; it must be one of {', '.join(self.names)}")


AXES: Final[tuple[Axis, ...]] = (
    Axis(
        "algorithm",
        "start",
        "draft algorithm",
        (
            Value("none", "none", 0.3),
            Value("standalone", "standalone", 0.5),
            Value("eagle3", "eagle3", 0.5),
            Value("eagle", "eagle", 0.5),
            Value("ngram", "ngram", 0.5),
            Value("dflash", "dflash", 0.5),
            Value("nextn", "nextn", 0.5),
        ),
    ),
    Axis(
        "model",
        "start",
        "the target: dense, with some sliding-window layers, with latent attention and experts, or with windows only",
        (
            Value("llama", ""),
            Value("qwen3", "qwen3", 0.2),
            Value("deepseek", "deepseek", 0.4),
            Value("mistral", "mistral", 0.2),
        ),
    ),
    Axis(
        "tp",
        "start",
        "tensor-parallel ranks of the target, one process each and one GPU each on GPU tiers; 2 also runs on a CPU",
        (
            Value("1", ""),
            Value("2", "tp2", 3.0),
            Value("4", "tp4", 4.0, gpus=4),
            Value("8", "tp8", 6.0, gpus=8),
        ),
    ),
    Axis(
        "steps",
        "start",
        "depth of the draft",
        (Value("auto", ""), Value("1", "s1"), Value("2", "s2"), Value("3", "s3"), Value("5", "s5")),
    ),
    Axis(
        "topk",
        "start",
        "children per draft node",
        (Value("auto", ""), Value("1", "k1"), Value("2", "k2", 0.1), Value("4", "k4", 0.2)),
    ),
    Axis(
        "draft_tokens",
        "start",
        "verified nodes, including the root",
        (Value("auto", ""), Value("4", "n4"), Value("6", "n6"), Value("8", "n8"), Value("16", "n16", 0.1)),
    ),
    Axis(
        "adaptive",
        "start",
        "draft depth: static, or adaptive with the default table, with fast-reacting slots, or with one flat slot",
        (Value("off", ""), Value("table", "table", 0.1), Value("tiers", "tiers", 0.1), Value("flat", "flat", 0.1)),
    ),
    Axis(
        "spec_version",
        "start",
        "timing: v1 (lag 0) or v2 (lag 1)",
        (Value("auto", ""), Value("v1", "v1"), Value("v2", "v2")),
    ),
    Axis("overlap", "start", "overlap schedule on, or disabled by its flag", (Value("on", ""), Value("off", "sync"))),
    Axis(
        "page_size",
        "start",
        "tokens per KV page",
        (Value("1", ""), Value("4", "p4"), Value("16", "p16"), Value("64", "p64"), Value("256", "p256", 0.3)),
    ),
    Axis("prefix_cache", "start", "radix cache", (Value("on", ""), Value("off", "nocache"))),
    Axis(
        "prefill_chunk",
        "start",
        "tokens per prefill chunk",
        (Value("off", ""), Value("7", "c7", 0.2), Value("32", "c32", 0.1)),
    ),
    Axis(
        "context",
        "start",
        "context length: the model's, or so short that requests end at its last position",
        (Value("model", ""), Value("short", "ctx", 0.3)),
    ),
    Axis(
        "memory",
        "start",
        "KV memory: tight forces retraction; session_retract does too, but a session's turn keeps its inherited KV",
        (Value("ample", ""), Value("tight", "tight", 0.5), Value("session_retract", "session_retract", 0.5)),
    ),
    Axis(
        "slots",
        "start",
        "maximum number of concurrent requests; a GPU that has 4 runs batches of up to 3 as CUDA graphs",
        (Value("auto", ""), Value("4", "m4", 0.1)),
    ),
    Axis(
        "numerics",
        "start",
        "precision on GPU tiers: float32 or bf16 with deterministic inference, or bf16 with the fast kernels",
        (Value("float32", ""), Value("bf16", "bf16", gpus=1), Value("fast", "fast", gpus=1)),
    ),
    Axis(
        "batch",
        "request",
        "requests: 1, 2, 5 of mixed length, 9, many GSM8K questions, or waves of 1, 8, 32, 8 (after loading the "
        "weights again) and 1 (after a release and resume of all memory)",
        (
            Value("single", ""),
            Value("pair", "pair", 0.1),
            Value("mixed_lengths", "mixed_lengths", 0.3),
            Value("burst", "burst", 0.5),
            Value("gsm", "gsm", 6.0),
            Value("ramp", "ramp", 0.8),
        ),
    ),
    Axis(
        "session",
        "request",
        "independent requests, turns of streaming sessions, or branches of ordinary sessions",
        (Value("none", ""), Value("streaming", "stream", 0.4), Value("branching", "branch", 0.4)),
    ),
    Axis(
        "sampling",
        "request",
        "sampling parameters; rules: penalties, bias, bad words, allowed tokens and min_p, greedy and sampled",
        (
            Value("greedy", ""),
            Value("temperature", "temperature", 0.1),
            Value("topk_topp", "topk_topp", 0.1),
            Value("mixed", "mixed", 0.1),
            Value("rules", "rules", 0.4),
        ),
    ),
    Axis(
        "finish",
        "request",
        "what ends a request; stops: a minimum length, kept, overlapping and ignored stops, streamed reads",
        (
            Value("eos", ""),
            Value("length", "length"),
            Value("stop_token", "stop_token"),
            Value("stop_string", "stop_string"),
            Value("stops", "stops", 0.1),
        ),
    ),
    Axis(
        "abort",
        "request",
        "whether a request is aborted, and when",
        (Value("none", ""), Value("queued", "abort_queued"), Value("running", "abort_running")),
    ),
)
NAMES: Final = tuple(axis.name for axis in AXES)
START_AXES: Final = tuple(axis.name for axis in AXES if axis.scope == "start")
INDEX: Final = {name: index for index, name in enumerate(NAMES)}


def axis(name: str) -> Axis:
    """The axis of a name. ConfigError names the closest axis, or all axes."""
    if name not in INDEX:
        close = nearest(name, NAMES)
        hint = f"the closest is {close}" if close else f"it must be one of {', '.join(NAMES)}"
        raise ConfigError(f"axis {shown(name)} is unknown; {hint}")
    return AXES[INDEX[name]]


def describe(assignment: Iterable[tuple[str, str]]) -> str:
    """Axis values as text: `algorithm=eagle3 topk=4`."""
    return " ".join(f"{name}={value}" for name, value in assignment)
