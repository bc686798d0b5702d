"""A damaged zoo stops every command that uses it, with one sentence, before anything runs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.matrix.faults.plant import planted

QUESTIONS = HOME / "matrix" / "zoo" / "data" / "test.jsonl"
CONSOLE = ("-c", "import sys; from specmatrix.cli import main; sys.exit(main())")
CELLS = "from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n"
COMMANDS = {
    "run": (*CONSOLE, "run", "--cells", "none.length", "--out", "out"),
    "faults": (*CONSOLE, "faults", "bonus-stride"),
    "accuracy": (*CONSOLE, "accuracy", "--data", str(QUESTIONS), "--limit", "1"),
    "generate": (*CONSOLE, "generate", "Sam walks."),
    "contract": (*CONSOLE, "contract", "none"),
    "pytest of two workers": ("-m", "pytest", "-p", "no:cacheprovider", "-q", "-n", "2", "test_cells.py"),
    "pytest": ("-m", "pytest", "-p", "no:cacheprovider", "-q", "test_cells.py", "--specmatrix-cells", "none.length"),
}


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A copy of the packages, with a file that collects cells."""
    with planted(None) as folder:
        (folder / "test_cells.py").write_text(CELLS)
        yield folder


@pytest.fixture
def weights(tree: Path) -> Iterator[Path]:
    """The weights of the copy's first target, whole again afterwards."""
    path = tree / "matrix" / "zoo" / "checkpoints" / "llama-mini" / "model.safetensors"
    whole = path.read_bytes()
    yield path
    path.write_bytes(whole)


def run(tree: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run([sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True)


# Each command starts a process; these two stand for both ways to the weights, the command line and pytest.
EVERY_TIME = ("run",)
EACH = [pytest.param(name, marks=() if name in EVERY_TIME else pytest.mark.nightly) for name in COMMANDS]


@pytest.mark.parametrize("command", EACH)
def test_a_changed_byte_stops_the_command(command: str, tree: Path, weights: Path):
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    done = run(tree, COMMANDS[command])
    sentence = f"zoo file {weights} is changed: its sha256 is not the recorded one; restore it"
    assert sentence in done.stdout + done.stderr
    # xdist counts what its workers cannot collect as failures.
    assert done.returncode == (1 if "two workers" in command else 2) and not (tree / "out").exists()
    if "pytest" not in command:
        assert (done.stdout, done.stderr) == ("", f"specmatrix: {sentence}\n")


@pytest.mark.parametrize(
    ("size", "words"),
    [pytest.param(None, "is missing", marks=pytest.mark.nightly), (1000, "is truncated: 1000 bytes of ")],
)
def test_a_run_with_damaged_weights_does_not_blame_the_engine(size: int | None, words: str, tree: Path, weights: Path):
    whole = weights.read_bytes()
    weights.unlink() if size is None else weights.write_bytes(whole[:size])
    done = run(tree, COMMANDS["run"])
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"zoo file {weights} {words}" in done.stderr and not (tree / "out").exists()


@pytest.mark.nightly
def test_a_model_that_no_cell_uses_is_not_verified(tree: Path, weights: Path):
    weights.unlink()
    done = run(tree, (*COMMANDS["pytest"][:-1], "none.qwen3.length", "--collect-only"))
    assert done.returncode == 0, done.stdout
