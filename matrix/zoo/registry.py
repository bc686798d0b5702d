"""Paths and checksums of the zoo's checkpoints and data. Imports no torch.

Frozen recipes: all settings that determine a checkpoint, from data/recipes.json.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from specmatrix.errors import ConfigError, shown

if TYPE_CHECKING:
    from specmatrix.matrix.cells.cell import Cell

# The fields of a model's config.json as attributes.
Shape: TypeAlias = SimpleNamespace


@dataclass(frozen=True, slots=True)
class Data:
    """gsm-mini: seed, weights of the levels in training and test splits, sizes of the splits."""

    seed: int = 20260
    mix: tuple[float, ...] = (0.08, 0.17, 0.25, 0.25, 0.15, 0.10)
    test_mix: tuple[float, ...] = (0.05, 0.10, 0.10, 0.25, 0.35, 0.15)
    train_problems: int = 700_000
    distill_problems: int = 120_000
    test_problems: int = 1000
    heldout_problems: int = 200
    level_problems: int = 250
    answer_limit: int = 320


@dataclass(frozen=True, slots=True)
class Fit:
    """One optimisation: ends at `steps` or when its share of the wall-clock budget is spent, whichever comes first."""

    steps: int
    share: float
    batch_tokens: int
    peak_rate: float
    warmup: int = 100
    weight_decay: float = 0.05
    prompt_weight: float = 0.1


@dataclass(frozen=True, slots=True)
class Dflash2Parts:
    """DFLASH2's part of `dflash_config`: taps of the convolutions, channels of a group; rank of the selector,
    candidates of a draft."""

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int


@dataclass(frozen=True, slots=True)
class BlockHeads:
    """DSPARK's heads: the Markov head's kind ("vanilla", "gated", "rnn") and rank; whether a block's known token
    predicts the first draft."""

    kind: str
    rank: int
    from_anchor: bool = True


@dataclass(frozen=True, slots=True)
class Recipe:
    """A checkpoint of the zoo.

    kind: "target", "standalone", "eagle", "eagle3", "dflash" or "dspark". config: the fields of its config.json, but
    for those of a draft (`config_json.config_of`).
    aux_layers: target layers whose outputs a draft reads. draft_vocab: 0 for the target's own head and embedding.
    unroll: draft steps of the training-time test. block: of DFLASH and DSPARK, one more than the drafts; dflash2: of
    DFLASH2; heads: of DSPARK; mask_id: their mask token, and of a draft that is `parallel` (P-EAGLE, PARD). base: the
    draft whose weights a fit starts from. problems: how many of the distillation problems it uses, 0 for all.
    bundled_fit: second optimisation of a target with MTP layers, which trains these on the target's own answers with
    the target frozen. form: of the answers, GSM8K's "worked" lines or "json" (`gsm_mini.in_form`); a draft has its
    target's.
    """

    name: str
    kind: str
    config: dict[str, Any]
    fit: Fit
    seed: int
    target: str | None = None
    aux_layers: tuple[int, ...] = ()
    draft_vocab: int = 0
    unroll: int = 0
    block: int = 0
    dflash2: Dflash2Parts | None = None
    heads: BlockHeads | None = None
    mask_id: int = 0
    bundled_fit: Fit | None = None
    form: str = "worked"
    parallel: bool = False
    base: str = ""
    problems: int = 0

    @property
    def shape(self) -> Shape:
        """What a net is built from."""
        return Shape(**self.config)


DATA: Final = Data()


def _built(kind: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any dataclass of this file
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})


# Plain JSON, so that an engine in an environment of its own reads it too.
_TABLE: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("data").joinpath("recipes.json").read_text(encoding="utf-8")
)


def _recipe(name: str, layout: str, config: dict[str, Any], **given: Any) -> Recipe:  # noqa: ANN401 - of any field
    kinds = {"fit": Fit, "bundled_fit": Fit, "dflash2": Dflash2Parts, "heads": BlockHeads}
    parts = {part: _built(kind, given[part]) for part, kind in kinds.items() if part in given}
    found: Recipe = _built(Recipe, {**given, **parts, "name": name, "config": _TABLE["layouts"][layout] | config})
    return found


RECIPES: Final[dict[str, Recipe]] = {name: _recipe(name, **given) for name, given in _TABLE["recipes"].items()}


def smoke(recipe: Recipe) -> Recipe:
    """The same recipe cut down to a few optimiser steps, for tests on a CPU."""
    short = {"steps": 6, "batch_tokens": 2048, "warmup": 2}
    again = None if recipe.bundled_fit is None else replace(recipe.bundled_fit, **short)
    return replace(recipe, fit=replace(recipe.fit, **short), bundled_fit=again, problems=0)


SMOKE_DATA: Final = replace(DATA, **_TABLE["smoke_data"])


HERE: Final = Path(__file__).parent
CHECKPOINTS: Final = HERE / "checkpoints"
CHECKSUMS: Final = CHECKPOINTS / "SHA256SUMS"
TEST: Final = HERE / "data" / "test.jsonl"
HELDOUT: Final = HERE / "data" / "heldout.jsonl"
# The corpus that an n-gram drafter may search besides the requests' texts, by the name that cells give it.
CORPUS: Final = "gsm-mini-train"
CORPUS_FILE: Final = HERE / "data" / "corpus.jsonl"
# A token that leads by less nats has its margin in the file of margins.
CLOSE: Final = 0.5
NAMES: Final = tuple(RECIPES)
TARGETS: Final = tuple(name for name, recipe in RECIPES.items() if recipe.target is None)


def oracle_file(target: str) -> Path:
    """The oracle file of a target: greedy continuations, and acceptance lengths of its drafts."""
    return HERE / "data" / ("oracle.json" if target == TARGETS[0] else f"oracle-{target}.json")


def margins_file() -> Path:
    """The file of small margins: {target: [prompt][[index in the oracle's continuation, nats below CLOSE]]}."""
    return HERE / "data" / "margins.json"


@cache
def eos_ids(target: str) -> frozenset[int]:
    """EOS ids of a zoo target, from its generation_config.json."""
    found = json.loads((CHECKPOINTS / target / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"]
    return frozenset(found if isinstance(found, list) else [found])


def resolve_path(name_or_path: str | Path) -> Path:
    """The path of a zoo model, an existing folder, or the zoo's corpus; otherwise ConfigError lists the zoo names."""
    if str(name_or_path) == CORPUS:
        return CORPUS_FILE
    if str(name_or_path) in NAMES:
        return CHECKPOINTS / str(name_or_path)
    if os.path.isdir(name_or_path):  # noqa: PTH112 - raises nothing for a name that is too long
        return Path(name_or_path)
    raise ConfigError(f"model {shown(str(name_or_path))} is neither a folder nor in the zoo ({', '.join(NAMES)})")


def checksums() -> dict[str, tuple[str, int]]:
    """File name (relative to the checkpoints) to (sha256, bytes). ConfigError on a missing list or a broken line."""
    try:
        lines = CHECKSUMS.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(f"the zoo's checksum file {CHECKSUMS} is missing; restore it from the repository") from None
    known: dict[str, tuple[str, int]] = {}
    for number, line in enumerate(lines, start=1):
        parts = line.split()
        if len(parts) != 3 or len(parts[0]) != 64 or not parts[1].isdigit():
            raise ConfigError(f"{CHECKSUMS} line {number} is {line!r}; it must be a sha256, a size and a file name")
        known[parts[2]] = (parts[0], int(parts[1]))
    return known


def verify_cells(cells: Iterable[Cell]) -> None:
    """Verify the checkpoints of every target and draft in the cells, which takes milliseconds."""
    verify_models(name for cell in cells for name in (cell.target, cell.draft))


def verify_models(names: Iterable[str | None]) -> None:
    """Verify the checkpoints of zoo names; other names and None are ignored."""
    for name in dict.fromkeys(name for name in names if name in NAMES):
        verify(name)


def verify(name: str, root: Path = CHECKPOINTS) -> None:
    """ConfigError names the first file of a zoo checkpoint that is missing, truncated or changed."""
    if name not in NAMES:
        raise ConfigError(f"zoo model {shown(name)} is unknown; the zoo has {', '.join(NAMES)}")
    for file, (digest, size) in checksums().items():
        if not file.startswith(f"{name}/"):
            continue
        path = root / file
        found = _measured(path)
        if found is None:
            raise ConfigError(f"zoo file {path} is missing; restore it from the repository")
        if found[1] < size:
            raise ConfigError(
                f"zoo file {path} is truncated: {found[1]} bytes of {size}; restore it from the repository"
            )
        if found[0] != digest:
            raise ConfigError(f"zoo file {path} is changed: its sha256 is not the recorded one; restore it")


def zoo_hash(root: Path = CHECKPOINTS) -> str:
    """Twelve hex digits over the checkpoint files, which identify a report's weights."""
    found = {file: _measured(root / file) for file in checksums()}
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]


def _measured(path: Path) -> tuple[str, int] | None:
    """(sha256, size in bytes) of a file, None if it is missing."""
    if not path.is_file():
        return None
    data = path.read_bytes()
    return hashlib.sha256(data).hexdigest(), len(data)


def record(root: Path = CHECKPOINTS) -> None:
    """Write the checksum file for the checkpoints under `root`."""
    lines = []
    for path in sorted(path for name in NAMES for path in (root / name).iterdir()):
        data = path.read_bytes()
        lines.append(f"{hashlib.sha256(data).hexdigest()} {len(data)} {path.relative_to(root).as_posix()}")
    (root / CHECKSUMS.name).write_text("\n".join(lines) + "\n", encoding="utf-8")
