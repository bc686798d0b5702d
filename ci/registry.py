"""The registry of tests: each file says what it costs, in literals that are read without running it.

    pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")

alone or in a list of marks. A test file without it is an error: it would run nowhere.
"""

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError
from specmatrix.matrix.cover.lockfile import STAGES
from specmatrix.matrix.run.tiers import TIERS

FOLDER: Final = Path("tests/registered")
EXAMPLE: Final = 'pytestmark = pytest.mark.register(est_seconds=2, tier="cpu", stage="pr")'


@dataclass(frozen=True, slots=True)
class Registration:
    """What one test file says of itself; path relative to the repository."""

    path: Path
    est_seconds: float
    tier: str
    stage: str


def read_registry(root: Path) -> list[Registration]:
    """The registrations of every test_*.py under tests/registered, by path. ConfigError on the first bad file."""
    return [read_registration(root, path) for path in sorted((root / FOLDER).rglob("test_*.py"))]


def read_registration(root: Path, path: Path) -> Registration:
    """The registration of one file. ConfigError names the file and what to write."""
    name = path.relative_to(root)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        raise ConfigError(f"{name} is not Python: {error.msg} in line {error.lineno}") from None
    marks = [call for node in tree.body for call in _marks(node)]
    if len(marks) != 1:
        count = "is not registered" if not marks else "is registered twice"
        raise ConfigError(f"{name} {count}; write once, at the top: {EXAMPLE}")
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
        raise ConfigError(f"{name} registers without keywords; write {EXAMPLE}")
    for keyword in call.keywords:
        if not isinstance(keyword.value, ast.Constant):
            raise ConfigError(f"{name} registers {ast.unparse(keyword)}, which is no literal; write {EXAMPLE}")
        values[keyword.arg or "**"] = keyword.value.value
    return values


def _registration(name: Path, values: dict[str, object]) -> Registration:
    if set(values) != {"est_seconds", "tier", "stage"}:
        raise ConfigError(f"{name} registers {', '.join(values) or 'nothing'}; write est_seconds, tier and stage")
    seconds, tier, stage = values["est_seconds"], values["tier"], values["stage"]
    if type(seconds) not in (int, float) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise ConfigError(f"{name} registers est_seconds={seconds!r}; it must be a number above 0")
    folder = next((row.name for row in TIERS if name.is_relative_to(row.folder)), None)
    if folder is None:
        raise ConfigError(f"{name} lies in no tier's folder; move it to one of {', '.join(t.folder for t in TIERS)}")
    if tier != folder:
        raise ConfigError(f"{name} registers tier={tier!r} but lies in the folder of {folder!r}")
    if stage not in STAGES:
        raise ConfigError(f"{name} registers stage={stage!r}; it must be one of {', '.join(STAGES)}")
    return Registration(name, float(seconds), folder, str(stage))
