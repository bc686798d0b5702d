"""Paths and checksums of the zoo's checkpoints and data. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.zoo.recipes import RECIPES

if TYPE_CHECKING:  # an engine in an environment of its own has no msgspec
    from specmatrix.matrix.cells.cell import Cell

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
