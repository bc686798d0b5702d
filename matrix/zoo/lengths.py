"""Accept lengths measured with the engine: every algorithm of the zoo in common shapes, with intervals.

Each draft is also measured with random weights as a control: acceptance lengths up to the control's are chance.
"""

import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.defaults import SHAPE
from specmatrix.engine.core.config.rules.ngram import PREFIX
from specmatrix.engine.core.schedule.request import SamplingParams
from specmatrix.matrix.cells.start_settings import CORPUS
from specmatrix.matrix.zoo.oracle_drafts import DRAFTS, SINGLE
from specmatrix.matrix.zoo.recipes import RECIPES, LatentShape
from specmatrix.matrix.zoo.registry import resolve_path


@dataclass(frozen=True, slots=True)
class RequestedShape:
    """The requested shape of a draft; None: the engine's default.

    ngram: lookup options, by the names of NgramOptions.
    """

    steps: int | None = None
    topk: int | None = None
    nodes: int | None = None
    ngram: tuple[tuple[str, int | str], ...] = ()

    def flags(self) -> dict[str, Any]:
        """The explicitly set values, by the names of EngineConfig."""
        shape = zip(SHAPE, (self.steps, self.topk, self.nodes), strict=True)
        given = {name: value for name, value in shape if value is not None}
        return given | {f"{PREFIX}{name}": value for name, value in self.ngram}


def _grams(**options: int | str) -> RequestedShape:
    """An n-gram tree of default shape with other lookup options."""
    return RequestedShape(ngram=tuple(options.items()))


CHAINS: Final = tuple(RequestedShape(steps, 1, steps + 1) for steps in (1, 2, 3, 5, 7))
TREES: Final = tuple(
    RequestedShape(*shape) for shape in ((2, 2, 6), (3, 2, 8), (3, 4, 8), (5, 2, 8), (5, 4, 8), (5, 4, 16), (7, 4, 16))
)
OWN: Final = RequestedShape()
# One forward drafts a whole block or its first positions.
BLOCKS: Final = (*(RequestedShape(nodes=nodes) for nodes in (2, 3, 4, 5)), OWN)
# Chains, trees of increasing size, then the default tree with one option changed.
GRAMS: Final = (
    *CHAINS,
    *(RequestedShape(nodes=nodes) for nodes in (4, 8)),
    OWN,
    *(RequestedShape(nodes=nodes) for nodes in (16, 32)),
    *(RequestedShape(topk=topk) for topk in (2, 4)),
    _grams(match_type="PROB"),
    *(_grams(max_trie_depth=depth) for depth in (3, 6, 10)),
    *(_grams(external_corpus_path=CORPUS, external_sam_budget=budget) for budget in (3, 11)),
)
SHAPES: Final[dict[str, tuple[RequestedShape, ...]]] = {"dflash": BLOCKS, "ngram": GRAMS, SINGLE: CHAINS[:2]}
# Shapes of the controls with random weights.
CONTROL: Final = RequestedShape(3, 1, 4)
CONTROLS: Final[dict[str, RequestedShape]] = {"dflash": OWN}
RANDOM: Final = "random weights"
Z95: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens per verify round (bonus included) over all rounds, with its 95 % interval over prompts.

    `rates[j]`: acceptance of draft j+1 among rounds that accepted all drafts before it (chains only).
    ngram: lookup options that were set explicitly.
    """

    target: str
    algorithm: str
    draft: str
    steps: int
    topk: int
    draft_tokens: int
    prompts: int
    rounds: int
    length: float
    low: float
    high: float
    rates: tuple[float, ...]
    ngram: tuple[tuple[str, int | str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The machine-readable form."""
        return asdict(self) | {"ngram": dict(self.ngram)}


def ratio(tokens: Sequence[int], rounds: Sequence[int]) -> tuple[float, float, float]:
    """Sum of tokens over sum of rounds, with its 95 % interval over prompts.

    The variance is that of a ratio estimator, linearised (Cochran, Sampling Techniques, 1977, section 2.11).
    """
    count, whole = len(tokens), sum(rounds)
    value = sum(tokens) / whole
    spread = sum((t - value * r) ** 2 for t, r in zip(tokens, rounds, strict=True))
    half = Z95 * math.sqrt(count / max(count - 1, 1) * spread) / whole
    return value, value - half, value + half


def with_random_weights(name: str, folder: Path, seed: int = 0) -> Path:
    """A copy of zoo checkpoint `name` with random draft weights; in a target, only its MTP layers are random."""
    source, shape = resolve_path(name), RECIPES[name].shape
    folder = folder / name
    shutil.copytree(source, folder)
    bundled = shape.bundled if isinstance(shape, LatentShape) else 0
    at = tuple(f"model.layers.{shape.layers + index}." for index in range(bundled))
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        key: _random(tensor, generator) if key.startswith(at or "") else tensor
        for key, tensor in sorted(load_file(source / "model.safetensors").items())
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _random(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Normal numbers with the same standard deviation; scales, biases and id maps are kept."""
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return tensor
    drawn = torch.randn(tensor.shape, generator=generator) * tensor.float().std()
    return drawn.to(tensor.dtype)


def measure(
    target: str, algorithm: str, draft: str | None, shape: RequestedShape, prompts: Sequence[str], limit: int
) -> Length:
    """Measure one shape of one algorithm on the prompts: greedy, float32, at most `limit` new tokens each."""
    values = shape.flags()
    if algorithm == SINGLE:
        values["enable_multi_layer_eagle"] = False
    name = algorithm.partition(".")[0].upper()
    llm = LLM(EngineConfig(target, name, draft, dtype="float32", **values), resolve_path)
    outputs = llm.generate(prompts, SamplingParams(max_new_tokens=limit, temperature=0.0))
    spoken = [output.accept_lengths for output in outputs if output.accept_lengths]
    value, low, high = ratio([sum(each) for each in spoken], [len(each) for each in spoken])
    run = llm.resolved
    lengths = [length for each in spoken for length in each]
    depth = run.num_draft_tokens - 1 if run.topk == 1 else 0
    return Length(
        target,
        algorithm,
        draft or "-",
        run.num_steps,
        run.topk,
        run.num_draft_tokens,
        len(spoken),
        len(lengths),
        value,
        low,
        high,
        tuple(_rate(lengths, place) for place in range(1, depth + 1)),
        shape.ngram,
    )


def _rate(lengths: Sequence[int], place: int) -> float:
    """Among rounds that accepted drafts 1..place-1, the fraction that accepted draft `place`."""
    reached = sum(length >= place for length in lengths)
    return sum(length > place for length in lengths) / reached if reached else 0.0


@dataclass(frozen=True, slots=True)
class MeasurementPlan:
    """One row of the table; random: use random draft weights."""

    target: str
    algorithm: str
    draft: str | None
    shape: RequestedShape
    random: bool = False


def plans(targets: Sequence[str], algorithms: Sequence[str] = ()) -> list[MeasurementPlan]:
    """The rows of the table, for the named algorithms (default all); n-grams use no weights, so one target suffices."""
    made: list[MeasurementPlan] = []
    for place, target in enumerate(targets):
        for algorithm, draft in DRAFTS[target].items():
            named = None if draft == target else draft
            made += [
                MeasurementPlan(target, algorithm, named, shape) for shape in SHAPES.get(algorithm, CHAINS + TREES)
            ]
            if algorithm != SINGLE:
                made.append(MeasurementPlan(target, algorithm, named, CONTROLS.get(algorithm, CONTROL), random=True))
        if place == 0:
            made += [MeasurementPlan(target, "ngram", None, shape) for shape in SHAPES["ngram"]]
    return [plan for plan in made if not algorithms or plan.algorithm in algorithms]


def table(rows: Sequence[MeasurementPlan], prompts: Sequence[str], limit: int, scratch: Path) -> Iterator[Length]:
    """Measure the rows. `scratch`: an empty folder for checkpoints with random weights."""
    for plan in rows:
        if not plan.random:
            yield measure(plan.target, plan.algorithm, plan.draft, plan.shape, prompts, limit)
            continue
        control = str(with_random_weights(plan.draft or plan.target, scratch))
        where, named = (plan.target, control) if plan.draft else (control, None)
        row = measure(where, plan.algorithm, named, plan.shape, prompts, limit)
        yield replace(row, target=plan.target, draft=RANDOM)
