"""Lookup of subjects by name: those of this package, and those of installed packages by entry point."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.subjects.environment import ENVIRONMENTS
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.protocol import Profile, Subject
from specmatrix.reports.schema import REFERENCE
from specmatrix.user_file import load_name

GROUP: Final = "specmatrix.subjects"
# Name to module and class.
BUILT_IN: Final[Mapping[str, str]] = {
    REFERENCE: "specmatrix.matrix.subjects.tensor_parallel:RankedSubject",
    "sglang": "specmatrix.matrix.subjects.http.sglang:SglangSubject",
    "openai": "specmatrix.matrix.subjects.http.openai:OpenAISubject",
    "openai-chat": "specmatrix.matrix.subjects.http.openai:OpenAIChatSubject",
    "transformers": "specmatrix.matrix.subjects.transformers.subject:TransformersSubject",
    "transformers-dynamic": "specmatrix.matrix.subjects.transformers.subject:DynamicSubject",
    "transformers-heuristic": "specmatrix.matrix.subjects.transformers.subject:HeuristicSubject",
    "transformers-early-exit": "specmatrix.matrix.subjects.transformers.subject:EarlyExitSubject",
    "transformers-universal": "specmatrix.matrix.subjects.transformers.subject:UniversalSubject",
    "llamacpp": "specmatrix.matrix.subjects.llamacpp.subject:LlamaCppSubject",
    "openvino": "specmatrix.matrix.subjects.openvino.subject:OpenVinoSubject",
    "onnxruntime-genai": "specmatrix.matrix.subjects.onnxruntime_genai.subject:GenaiSubject",
    "mlx-lm": "specmatrix.matrix.subjects.mlx_lm.subject:MlxSubject",
    "vllm": "specmatrix.matrix.subjects.vllm.subject:VllmSubject",
    "vllm-suffix": "specmatrix.matrix.subjects.vllm.subject:SuffixSubject",
}
PARTS: Final = ("version", "python", "translate", "start")
HINT: Final = "define the class of a subject, such as `specmatrix subjects new FILE` writes"
# Subjects loaded from a file or module, by their own names.
_FROM_PLACES: Final[dict[str, str]] = {}


def known_subjects() -> dict[str, EntryPoint]:
    """Every subject by name: this package's first, then other packages' in the order of their names, and those loaded
    from a file or module. ConfigError if two have the same name."""
    found = {name: EntryPoint(name, place, GROUP) for name, place in BUILT_IN.items()}
    for point in (*sorted(entry_points(group=GROUP)), *(EntryPoint(*row, GROUP) for row in _FROM_PLACES.items())):
        if found.setdefault(point.name, point).value != point.value:
            places = f"{found[point.name].value} and {point.value}"
            raise ConfigError(f"subject {shown(point.name)} is registered twice, by {places}; each needs its own name")
    return found


def installed_subject(name: str, endpoint: Endpoint | None = None) -> Subject:
    """As `load_subject`, and ConfigError if its engine's package is not installed, or if a server is needed and no
    endpoint is given."""
    subject = load_subject(name, endpoint)
    if endpoint is None and hasattr(subject, "at"):
        raise ConfigError(f"subject {shown(name)} is a server; give --url URL or --launch COMMAND")
    if subject.version() is None:
        advice = f" install {name}` installs it" if name in ENVIRONMENTS else "` says what is"
        raise ConfigError(f"subject {shown(name)} is not installed; `specmatrix subjects{advice}")
    return subject


def foreign_subject(name: str, endpoint: Endpoint | None = None) -> Subject | None:
    """As `installed_subject`, but None for the reference engine, whose module imports torch."""
    if name != REFERENCE:
        return installed_subject(name, endpoint)
    if endpoint is not None:
        raise ConfigError("--url and --launch need --subject sglang, openai or openai-chat")
    return None


def load_subject(name: str, endpoint: Endpoint | None = None) -> Subject:
    """The subject of a name, or of `path.py:Class` or `package.module:Class`, at an endpoint if one is given.
    ConfigError if there is none, or if it is no Subject."""
    from_place = ":" in name
    if not from_place and name not in (known := known_subjects()):
        raise ConfigError(f"subject {shown(name)} is unknown; it must be FILE.py:CLASS or one of {', '.join(known)}")
    place = name if from_place else known[name].value
    try:
        subject: Subject = load_name(place, "subject", HINT)()
    except ConfigError:
        raise
    except Exception as error:  # a user's own code
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"subject {shown(name)} cannot be loaded from {place}: {text}") from error
    own = getattr(subject, "name", None)
    if own != name and not (from_place and isinstance(own, str)):
        raise ConfigError(f"subject {shown(name)} of {place} has the name {shown(own)}")
    if from_place:
        _FROM_PLACES[subject.name] = place
        try:
            known_subjects()
        except ConfigError:
            del _FROM_PLACES[subject.name]
            raise
    if not isinstance(getattr(subject, "profile", None), Profile):
        raise ConfigError(f"subject {shown(name)} of {place} must have a profile, which is a Profile")
    for part in PARTS:
        if not callable(getattr(subject, part, None)):
            raise ConfigError(f"subject {shown(name)} of {place} has no {part}; it needs {', '.join(PARTS)}")
    if endpoint is None:
        return subject
    if not hasattr(subject, "at"):
        raise ConfigError(f"subject {shown(name)} is no server; --url and --launch are for those that are")
    found: Subject = subject.at(endpoint)
    return found
