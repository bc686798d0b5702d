"""What only some uses of the package need: the extras of its installation."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from specmatrix.errors import ConfigError

# Package to the extra that brings it. Beside vLLM or SGLang an installation changes none of these.
EXTRA_OF: Final = {
    "torch": "engine",
    "transformers": "engine",
    "safetensors": "engine",
    "numba": "engine",
    "pandas": "pandas",
    "pytest": "pytest",
    "triton": "kernels",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "pyarrow": "history",
    "ruptures": "history",
    "lm_eval": "accuracy",
    "ray": "ray",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """One sentence that names the extra which brings the missing module; None if no extra does."""
    package = (error.name or "").partition(".")[0]
    return _sentence(package) if package in EXTRA_OF else None


def require(package: str) -> None:
    """ConfigError if `package` is not installed."""
    if find_spec(package) is None:
        raise ConfigError(_sentence(package))


def _sentence(package: str) -> str:
    return f"{package} is not installed; install the extra: pip install 'specmatrix[{EXTRA_OF[package]}]'"
