"""The published checkpoints of `matrix/zoo/data/published.yaml`, which explains its fields: targets, the drafters that
the GPU tiers run with them, and what others measured with them on GSM8K. Imports no torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.errors import ConfigError, nearest, shown

# The head of a repository, where no commit is known.
TIP: Final = "main"
_FILE: Final = Path(__file__).parents[1] / "data" / "published.yaml"
TABLE: Final[dict[str, Any]] = msgspec.yaml.decode(_FILE.read_bytes())


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint on a hub."""

    repo: str
    revision: str
    config: Mapping[str, Any]
    agreement: bool = False
    unverified: tuple[str, ...] = ()


MODELS: Final = msgspec.convert(TABLE["models"], dict[str, Published])

# Paths of GSM8K's questions and few-shot examples in its repository.
QUESTIONS: Final = "grade_school_math/data/test.jsonl"
EXAMPLES: Final = "grade_school_math/data/train.jsonl"
FEWSHOT: Final = 5
# GSM8K with few-shot examples takes about 1,200 prompt tokens and 256 new ones.
START_FLAGS: Final[Mapping[str, Any]] = {"context_length": 4096, "max_running_requests": 32, "dtype": "bfloat16"}


class ModelPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target and its drafter.

    algorithm: the engine's name for it; draft: a name in MODELS, None if the drafter needs no weights or the target's
    checkpoint contains them. flags: engine flags besides START_FLAGS. tier: where it runs.
    """

    name: str
    target: str
    algorithm: str
    draft: str | None = None
    flags: Mapping[str, Any] = {}
    tier: str = "gpu1"

    @property
    def models(self) -> Mapping[str, Published]:
        """The required checkpoints, the target first."""
        return {name: MODELS[name] for name in (self.target, self.draft) if name is not None}

    @property
    def config(self) -> EngineConfig:
        """The engine configuration with the drafter. Model paths are names in MODELS."""
        drafter: dict[str, Any] = {"speculative_algorithm": self.algorithm, "speculative_draft_model_path": self.draft}
        return EngineConfig(self.target, **START_FLAGS, **drafter, **self.flags)

    @property
    def baseline(self) -> EngineConfig:
        """The same configuration without a drafter."""
        return EngineConfig(self.target, **START_FLAGS)

    @property
    def gsm8k(self) -> str:
        """The command that runs GSM8K on the pair, in a checkout of the data set."""
        return (
            f"specmatrix accuracy --checkpoint {self.name} --data {QUESTIONS} --train {EXAMPLES} "
            f"--num-fewshot {FEWSHOT} --out out/{self.name}"
        )


PAIRS: Final = {name: msgspec.convert({"name": name, **pair}, ModelPair) for name, pair in TABLE["pairs"].items()}


def pair_of(name: str) -> ModelPair:
    """The pair of a name. ConfigError with the closest name, or all names."""
    if name in PAIRS:
        return PAIRS[name]
    close = nearest(name, PAIRS)
    raise ConfigError(
        f"checkpoint {shown(name)} is unknown; "
        + (f"the closest is {close}" if close else f"it must be one of {', '.join(PAIRS)}")
    )


# The probability of a share as low as measured, if the figure is true, below which it is a collapse. At 74 % and 1,319
# questions that is a share 4.5 points lower; other examples move it by less.
COLLAPSE: Final = 1e-4


class ExpectedAccuracy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of right answers of plain decoding, the mean over both extractors of lm-eval, of `questions`."""

    share: float
    questions: int
    source: str


ACCURACY: Final = msgspec.convert(TABLE["accuracy"], dict[str, ExpectedAccuracy])


def collapsed(target: str, right: float, questions: int) -> str:
    """A sentence if so few right answers contradict the published figure, "" if not or without one.

    right: of plain decoding, the mean over both extractors.
    """
    expected = ACCURACY.get(target)
    if expected is None:
        return ""
    from scipy.special import bdtr

    if float(bdtr(int(right), questions, expected.share)) >= COLLAPSE:
        return ""
    return (
        f"plain decoding answers {right:g} of {questions:,} questions correctly ({right / questions:.1%}), where "
        f"{expected.source} has {expected.share:.1%}"
    )


def locate(pair: ModelPair, models: Path | None = None) -> Mapping[str, Path]:
    """The folder of each of a pair's models. ConfigError without a GPU, or on the first missing folder.

    Whether a folder is complete and fits is for the engine that loads it.
    """
    if lacking := missing(pair, models):
        raise ConfigError(lacking[0])
    return {name: find(model, models) for name, model in pair.models.items()}


def missing(pair: ModelPair, models: Path | None = None) -> list[str]:
    """What this machine lacks to run a pair: a GPU, and each model that is not there."""
    import torch

    found = [] if torch.cuda.is_available() else [f"checkpoint {pair.name} needs a GPU but this machine has none"]
    for model in pair.models.values():
        try:
            find(model, models)
        except ConfigError as error:
            found.append(str(error))
    return found


def find(model: Published, models: Path | None = None) -> Path:
    """The folder of a checkpoint: `models`/organisation/name or `models`/name, or its commit in the hub's cache.

    ConfigError says how to fetch it. Does not check whether it is complete.
    """
    if models is not None:
        if not models.is_dir():
            raise ConfigError(f"folder {models} of checkpoints does not exist")
        folder = models / model.repo
        if (alone := models / model.repo.rpartition("/")[2]).is_dir():
            return alone
        if not folder.is_dir():
            raise ConfigError(f"{model.repo} is not in {models} (expected {folder}); {fetch(model, folder)}")
        return folder
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model.repo, revision=model.revision, local_files_only=True))
    except LocalEntryNotFoundError:
        wanted = "" if model.revision == TIP else f" at {model.revision}"
        raise ConfigError(f"{model.repo}{wanted} is not in {constants.HF_HUB_CACHE}; {fetch(model)}") from None


def fetch(model: Published, folder: Path | None = None) -> str:
    """How to fetch a checkpoint, as a clause for an error message."""
    revision = "" if model.revision == TIP else f" --revision {model.revision}"
    place = "" if folder is None else f" --local-dir {folder}"
    licence = " after its licence is accepted" if model.agreement else ""
    return f"`hf download {model.repo}{revision}{place}` fetches it{licence}"
