"""The reference engine: speculative decoding with explicit accounting of every step.

    from specmatrix.engine import LLM, EngineConfig, SamplingParams

These names are imported on first use, because configuration and errors must work without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from specmatrix.errors import ConfigError as ConfigError
from specmatrix.errors import EngineBug as EngineBug
from specmatrix.errors import EngineError as EngineError
from specmatrix.errors import RequestError as RequestError

if TYPE_CHECKING:
    from specmatrix.engine.api import LLM as LLM
    from specmatrix.engine.api import Output as Output
    from specmatrix.engine.core.config.asked import EngineConfig as EngineConfig
    from specmatrix.engine.core.schedule.request import SamplingParams as SamplingParams
    from specmatrix.engine.core.schedule.session import SessionParams as SessionParams
    from specmatrix.engine.parallel.client import RankedLLM as RankedLLM
    from specmatrix.engine.plugin import register_algorithm as register_algorithm

HOMES: Final = {
    "LLM": "api",
    "Output": "api",
    "EngineConfig": "core.config.asked",
    "SamplingParams": "core.schedule.request",
    "SessionParams": "core.schedule.session",
    "RankedLLM": "parallel.client",
    "register_algorithm": "plugin",
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
