"""Optional dependencies: the extras of the package."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from specmatrix.errors import ConfigError

# What each extra installs. Installing specmatrix beside vLLM or SGLang changes none of these.
PACKAGES: Final = {
    "engine": ("torch", "transformers", "safetensors", "numba"),
    "pandas": ("pandas",),
    "pytest": ("pytest",),
    "kernels": ("triton",),
    "serve": ("fastapi", "uvicorn", "prometheus_client"),
    "history": ("pyarrow",),
    "accuracy": ("lm_eval",),
    "grammar": ("xgrammar",),
    "ray": ("ray",),
}
EXTRA_OF: Final = {package: extra for extra, packages in PACKAGES.items() for package in packages}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """The error message naming the extra that installs the missing module; None if no extra does."""
    package = (error.name or "").partition(".")[0]
    return _sentence(package) if package in EXTRA_OF else None


def require(package: str) -> None:
    """Raise ConfigError if `package` is not installed."""
    if missing := lacking(package):
        raise ConfigError(missing)


def lacking(package: str) -> str:
    """How to install `package`, "" if it is installed."""
    return _sentence(package) if find_spec(package) is None else ""


def _sentence(package: str) -> str:
    return f"{package} is not installed; install the extra: pip install 'specmatrix[{EXTRA_OF[package]}]'"
