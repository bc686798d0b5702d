"""Tables of cases, each in a YAML file beside its test."""

from pathlib import Path
from typing import Any

import yaml


def table(file: str) -> Any:  # noqa: ANN401 - whatever YAML holds
    """The table of a test file: the YAML file of its name."""
    return yaml.safe_load(Path(file).with_suffix(".yaml").read_text(encoding="utf-8"))
