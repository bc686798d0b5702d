"""The test registry: each test file declares its cost in literals that are read without importing it:

    pytestmark = pytest.mark.register(est_seconds=2, stage="pr")

alone or in a list of marks; its folder determines the tier. A test file without the mark is an error, as CI would never
run it.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, described, shown
from specmatrix.matrix.cover.lockfile import STAGES
from specmatrix.matrix.run.tiers import TIERS

FOLDER: Final = Path("tests/registered")
EXAMPLE: Final = 'pytestmark = pytest.mark.register(est_seconds=2, stage="pr")'


@dataclass(frozen=True, slots=True)
class Registration:
    """The registration of one test file; path is relative to the repository."""

    path: Path
    est_seconds: float
    tier: str
    stage: str


def read_registry(root: Path) -> list[Registration]:
    """The registrations of all test_*.py under tests/registered, by path. ConfigError on the first invalid file."""
    return [read_registration(root, path) for path in sorted((root / FOLDER).rglob("test_*.py"))]


def read_registration(root: Path, path: Path) -> Registration:
    """The registration of one file. ConfigError names the file and the expected mark."""
    name = path.relative_to(root)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"{name} is not valid Python: {error.msg} in line {error.lineno or 1}") from None
    except (OSError, ValueError, MemoryError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be read as Python: {described(error)}") from None
    marks = [call for node in tree.body for call in _marks(node)]
    if len(marks) != 1:
        raise ConfigError(f"{name} must have exactly one register mark, got {len(marks)}; write: {EXAMPLE}")
    return _registration(name, _literals(name, marks[0]))


def _marks(node: ast.stmt) -> list[ast.Call]:
    """The register marks in one statement, if it assigns pytestmark."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if not isinstance(node, ast.Assign) or not any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in targets):
        return []
    values = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return [
        value for value in values if isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.mark.register"
    ]


def _literals(name: Path, call: ast.Call) -> dict[str, object]:
    """The keyword arguments of a mark; ConfigError unless each is a literal."""
    values: dict[str, object] = {}
    if call.args:
        raise ConfigError(f"{name}: the register mark accepts keyword arguments only; write: {EXAMPLE}")
    for keyword in call.keywords:
        if not isinstance(keyword.value, ast.Constant):
            raise ConfigError(f"{name}: register arguments must be literals, got {ast.unparse(keyword)}")
        values[keyword.arg or "**"] = keyword.value.value
    return values


def _registration(name: Path, values: dict[str, object]) -> Registration:
    if set(values) != {"est_seconds", "stage"}:
        given = ", ".join(values) or "none"
        raise ConfigError(f"{name}: register arguments must be est_seconds and stage, got {given}")
    seconds, stage = values["est_seconds"], values["stage"]
    if type(seconds) not in (int, float) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigError(f"{name}: est_seconds must be a positive number, got {shown(seconds)}")
    folder = next((row.name for row in TIERS if name.is_relative_to(row.folder)), None)
    if folder is None:
        raise ConfigError(f"{name} is not in a tier's folder; move it to one of {', '.join(t.folder for t in TIERS)}")
    if stage not in STAGES:
        raise ConfigError(f"{name}: stage must be one of {', '.join(STAGES)}, got {shown(stage)}")
    return Registration(name, float(seconds), folder, str(stage))
