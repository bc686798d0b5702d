"""The lock file: the frozen list of cells that run, reviewed as a diff, extended and never regenerated.

    # comment
    tables <hash of axes and constraints>
    stage <name>
    # note on the next cell: the regression that it covers, or the constraint that it must trigger
    <cell id>

Each cell is listed once, under the first stage that runs it; a stage runs its own cells and those of earlier stages.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.reports.store import write_text

LOCK_FILE: Final = Path(__file__).with_name("cells.lock")
STAGES: Final = ("smoke", "pr", "nightly")
HEAD: Final = """\
# The cells of the matrix, schema 1. A stage runs its own cells and those of the stages above it.
# `specmatrix lock --check` verifies it, `specmatrix lock --extend` appends to it; it is never regenerated.
"""


@dataclass(slots=True)
class Lock:
    """A lock file in memory; only `extend` writes it.

    tables: hash of the axes and constraints for which the cells were chosen. cells: each stage's own cells, in file
    order. notes: purpose of a cell. unreadable: ids that are not cells of the current axes.
    """

    tables: str = ""
    cells: dict[str, list[Cell]] = field(default_factory=lambda: {stage: [] for stage in STAGES})
    notes: dict[Cell, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    def upto(self, stage: str) -> list[Cell]:
        """The cells that a stage runs: its own and those of earlier stages. ConfigError lists the stages."""
        if stage not in STAGES:
            raise ConfigError(f"stage {shown(stage)} is unknown; it must be one of {', '.join(STAGES)}")
        return [cell for name in STAGES[: STAGES.index(stage) + 1] for cell in self.cells[name]]


def read(path: Path = LOCK_FILE) -> Lock:
    """Read a lock file. ConfigError if it is missing or has an invalid line; invalid ids are kept as unreadable."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"lock file {path} is missing; restore it or run `specmatrix lock --extend`") from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"lock file {path} cannot be read ({why}); restore it from the repository") from None
    lock, stage, note = Lock(), "", ""
    for number, line in enumerate(text.splitlines(), start=1):
        word, _, rest = line.strip().partition(" ")
        if word == "#":
            note = rest if stage else ""
        elif word == "tables":
            lock.tables = rest
        elif word == "stage" and rest in STAGES:
            stage, note = rest, ""
        elif word and stage and not rest:
            _take(lock, stage, word, note)
            note = ""
        elif word:
            raise ConfigError(
                f"{path.name} line {number} is invalid: {line.strip()!r:.200}; run `specmatrix lock --check`"
            )
    return lock


def _take(lock: Lock, stage: str, text: str, note: str) -> None:
    try:
        cell = Cell.from_id(text)
    except ConfigError:
        lock.unreadable.append(text)
        return
    lock.cells[stage].append(cell)
    if note:
        lock.notes[cell] = note


def write(lock: Lock, path: Path) -> None:
    """Write the lock; an interrupted write leaves the old file."""
    lines = [f"tables {lock.tables}"]
    for stage in STAGES:
        lines += ["", f"stage {stage}"]
        for cell in lock.cells[stage]:
            lines += [f"# {lock.notes[cell]}"] if cell in lock.notes else []
            lines.append(cell.id)
    write_text(path, HEAD + "\n".join(lines) + "\n")


def own_lock_file(subject: str) -> Path:
    """The lock file of a subject's own cells, or the matrix's if it has none."""
    own = LOCK_FILE.with_name(f"{subject}.lock")
    return own if own.is_file() else LOCK_FILE


def stage_cells(stage: str, path: Path = LOCK_FILE) -> list[Cell]:
    """The cells that a stage runs. ConfigError on an unknown stage, an invalid file or an invalid id."""
    lock = read(path)
    if lock.unreadable:
        raise ConfigError(f"{path.name}: {lock.unreadable[0]!r} is not a cell; run `specmatrix lock --extend`")
    return lock.upto(stage)


def subject_cells(stage: str, subject: str) -> list[Cell]:
    """The cells that a stage runs on a subject: its own if it has any, and in the last stage all others too."""
    own = stage_cells(stage, own_lock_file(subject))
    return list(dict.fromkeys([*own, *stage_cells(stage)])) if stage == STAGES[-1] else own
