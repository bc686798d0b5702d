"""The wheel and a checkout that is not installed: what they contain, and that every kind of command runs from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from safetensors.torch import load_file, save_file

from specmatrix import HOME
from tests.support.engines import CHECKPOINTS
from tests.support.served import served

ROOT = HOME
TOP = ("engine", "kernels", "matrix", "ci", "reports", "benchmarks")
# Records of the repository, which no command reads.
RECORDS = ("reports/log/", "reports/baselines/")
HOST = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
Run = Callable[..., subprocess.CompletedProcess[str]]
# The baseline of the server that `served` starts.
PLAIN: dict[str, object] = {
    "speculative_algorithm": "NONE",
    "speculative_draft_model_path": None,
    "speculative_num_steps": "auto",
    "speculative_eagle_topk": "auto",
}

# These need seconds each; `run` in a checkout and without extras stands for them.
SLOW = {
    ("run", "--stage", "smoke", "--cells", "tp=2 or model=deepseek", "--workers", "2"): "green: 2 of 2 cells passed",
    ("generate", "Tom has 2 apples and buys 3 more. How many has he?"): "#### 5",
    ("contract", "none"): "NONE satisfies the contract in 3 engine starts",
    ("faults", "bonus-stride"): "1 of 1 fault killed",
    ("lock", "--check"): "",
}
COMMANDS = SLOW | {("zoo", "verify"): "llama-mini-eagle3: whole", ("explain", "eagle3.qwen3"): ""}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources, without files of a build or an installation."""
    copy = tmp_path_factory.mktemp("checkout")
    for folder in (*TOP, "specmatrix"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "log", "baselines"))
    shutil.copytree(ROOT / ".lint", copy / ".lint", symlinks=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = shutil.copytree(checkout, folder / "source")
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--target", str(target), str(wheel))
    return target


def pip(command: str, *words: str) -> None:
    line = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([*line, *words], check=True)


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """Python with the host's packages, in an empty folder; only `path` holds ours. Without `site` no editable
    installation is found."""

    def run(path: Path, *words: str, host: Sequence[str] = HOST) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *host]), "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [sys.executable, "-S", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def test_the_wheel_holds_every_file_and_one_name_at_the_top(wheel: Path, checkout: Path):
    packed = zipfile.ZipFile(wheel).infolist()
    names = {info.filename for info in packed if ".dist-info/" not in info.filename}
    found = [path for folder in TOP for path in (checkout / folder).rglob("*") if path.is_file()]
    own = {f"specmatrix/{path.name}" for path in (checkout / "specmatrix").iterdir()}
    assert names == own | {f"specmatrix/{path.relative_to(checkout).as_posix()}" for path in found}
    assert all(any(f"specmatrix/{folder}/" in name for name in names) for folder in TOP)
    sizes, rest = Counter[str](), 0
    for info in packed:
        _, zoo, path = info.filename.partition("/checkpoints/")
        sizes[path.partition("/")[0]] += info.compress_size if zoo else 0
        rest += 0 if zoo else info.compress_size
    assert rest < 2 << 20 and max(sizes.values()) < 3 << 20


def test_an_installation_adds_no_name_but_its_own(installed: Path):
    assert sorted(path.name.partition("-")[0] for path in installed.iterdir()) == ["bin", "specmatrix", "specmatrix"]
    assert [path.name for path in (installed / "bin").iterdir()] == ["specmatrix"]


@pytest.mark.parametrize(
    "words", [pytest.param(words, marks=[pytest.mark.nightly] * (words in SLOW)) for words in COMMANDS]
)
def test_a_command_runs_installed(words: tuple[str, ...], installed: Path, python: Run):
    done = python(installed, "-m", "specmatrix", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMANDS[words] in done.stdout
    assert str(ROOT) not in done.stdout


@pytest.mark.parametrize("folder", [pytest.param(".", marks=pytest.mark.nightly), ".lint"])
def test_a_checkout_runs_by_its_path_alone(folder: str, checkout: Path, python: Run, tmp_path: Path):
    words = (
        ("run", "--cells", "none.length", "--workers", "1", "--out", "out") if folder == "." else ("explain", "eagle3")
    )
    done = python(checkout / folder, "-m", "specmatrix", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder == ".lint" or (tmp_path / "out" / "report.html").is_file()
    version = python(checkout / folder, "-m", "specmatrix", "--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "specmatrix")


def test_the_links_hide_no_package_of_the_host(checkout: Path, python: Run, tmp_path: Path):
    """A foreign top-level package, such as Hugging Face's `kernels`, which transformers imports."""
    (tmp_path / "kernels.py").write_text("theirs = True\n")
    code = "import specmatrix.kernels, kernels; print(specmatrix.HOME, kernels.theirs)"
    done = python(checkout / ".lint", "-c", code, host=[str(tmp_path)])
    assert done.stdout.split() == [str(checkout), "True"], done.stderr


@pytest.fixture(scope="module")
def required(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel requires, without its extras."""
    folder = tmp_path_factory.mktemp("required")
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    seen: set[str] = set()
    while wanted:
        found = distribution(Requirement(wanted.pop()).name)
        if found.name in seen:
            continue
        seen.add(found.name)
        wanted += [text for text in found.requires or () if _always(Requirement(text))]
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (folder / name).exists():
                (folder / name).symlink_to(found.locate_file(name))
    return folder


@pytest.fixture
def bare(required: Path, tmp_path: Path) -> list[str]:
    """A search path without extras for workers too, which find the host's packages otherwise."""
    assert not (required / "torch").exists()
    code = "import sys\nsys.path[:] = [path for path in sys.path if not path.endswith('-packages')]\n"
    (tmp_path / "sitecustomize.py").write_text(code, encoding="utf-8")
    return [str(tmp_path), str(required)]


def _always(wanted: Requirement) -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": ""})


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("run", "--cells", "none"), 2, "torch is not installed; install the extra: pip install 'specmatrix[engine]'"),
        (("generate", "hello"), 2, "torch is not installed; install the extra: pip install 'specmatrix[engine]'"),
        (("cells", "list", "--stage", "smoke"), 0, "standalone.pair"),
        (("run", "--subject", "sglang", "--url", "http://127.0.0.1:9"), 2, "http://127.0.0.1:9 cannot be reached"),
        (("accuracy", "--data", "none.jsonl"), 2, "lm-eval is not installed; install specmatrix with the extra `acc"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_without_extras_a_command_runs_or_names_the_missing_package(
    words: tuple[str, ...], status: int, sentence: str, installed: Path, required: Path, python: Run, tmp_path: Path
):
    (tmp_path / "none.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    done = python(installed, "-m", "specmatrix", *words, host=[str(required)])
    assert done.returncode == status, done.stdout + done.stderr
    assert sentence in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_cells_of_a_server_are_judged_without_extras(installed: Path, bare: list[str], python: Run):
    """As beside a foreign engine: no torch, no transformers, in this process and in its workers."""
    words = ["run", "--subject", "sglang", "--cells", "eagle3.s3.k1.n4.p4.pair", "--workers", "1", "--out", "out"]
    with served() as server, served(**PLAIN) as baseline:
        urls = "--url", server.url, "--baseline-url", baseline.url
        done = python(installed, "-m", "specmatrix", *words, *urls, host=bare)
    assert "green: 1 of 1 cell passed" in done.stdout, done.stdout + done.stderr
    assert "oracle ok, identities ok, lossless ok" in done.stdout


@pytest.mark.parametrize("subject", ["sglang", "openai"])
def test_a_red_cell_of_a_server_is_judged_without_extras(
    subject: str, installed: Path, bare: list[str], python: Run, tmp_path: Path
):
    folder = tmp_path / "llama-mini"
    shutil.copytree(CHECKPOINTS / "llama-mini", folder)
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.roll(1, 0) for name, tensor in weights.items()}, folder / "model.safetensors")
    with served(folder=folder, **PLAIN) as server:
        words = ("run", "--subject", subject, "--url", server.url, "--stage", "smoke", "--limit", "1", "--workers", "1")
        done = python(installed, "-m", "specmatrix", *words, host=bare)
    assert "0 passed, 1 failed" in done.stdout and "torch" not in done.stdout + done.stderr, done.stdout + done.stderr


FOREIGN = {
    "engine/__init__.py": "speed = 3\n",
    "kernels.py": "count = 4\n",
    "conftest.py": """
import gc, sys
def pytest_addoption(parser):
    for name in ("stage", "cells", "limit", "seed"):
        parser.addoption(f"--{name}", default="theirs")
def pytest_unconfigure(config):
    ours = {"specmatrix", "specmatrix.matrix", "specmatrix.matrix.plugin"}
    loaded = {name for name in sys.modules if name.split(".")[0] in ("specmatrix", "torch", "numpy", "transformers")}
    assert config.pluginmanager.has_plugin("specmatrix") and loaded == ours, loaded
    assert gc.isenabled() and not gc.get_freeze_count()
    print("nothing else was loaded")
""",
    "test_engine.py": """
import engine, kernels
def test_speed(request):
    assert (engine.speed, kernels.count, request.config.getoption("--stage")) == (3, 4, "mine")
    assert request.config.getoption("--cells") == "theirs"
""",
}


def test_a_project_with_an_engine_and_options_of_its_own_sees_no_plugin(installed: Path, python: Run, tmp_path: Path):
    for name, text in FOREIGN.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = python(installed, "-m", "pytest", "-q", "-W", "error", "--strict-markers", "--stage", "mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "nothing else was loaded" in done.stdout


@pytest.mark.nightly
def test_a_project_that_holds_cells_runs_them(installed: Path, python: Run, tmp_path: Path):
    (tmp_path / "test_cells.py").write_text(
        "from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n", encoding="utf-8"
    )
    done = python(installed, "-m", "pytest", "-q", "--specmatrix-cells", "none.length")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
