"""The axes of the matrix, from axes.yaml, each value with its cost.

The first value of an axis is its default. A value's token is its part of a cell's id (`eagle3.s3.k4.n8.v2.pair`);
defaults have no token, except on the first axis, so adding an axis leaves existing ids unchanged.
Each combination of start axis values needs its own engine start; one start serves all values of the request axes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from specmatrix.errors import ConfigError, nearest, shown


class Value(NamedTuple):
    """One value of an axis; seconds (CPU) and gpus are what it adds to a cell's cost."""

    name: str
    token: str
    seconds: float = 0.0
    gpus: int = 0


@dataclass(frozen=True)
class Axis:
    """One axis; the first value is the default."""

    name: str
    scope: Literal["start", "request"]
    summary: str
    values: list[Value]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(value.name for value in self.values)

    @property
    def default(self) -> str:
        return self.values[0].name

    def value(self, name: str) -> Value:
        """The value with this name. ConfigError lists the existing values."""
        for value in self.values:
            if value.name == name:
                return value
        raise ConfigError(f"{self.name} has no value {shown(name)}; it must be one of {', '.join(self.names)}")


AXES: Final = msgspec.yaml.decode(Path(__file__).with_name("axes.yaml").read_bytes(), type=tuple[Axis, ...])
NAMES: Final = tuple(axis.name for axis in AXES)
START_AXES: Final = tuple(axis.name for axis in AXES if axis.scope == "start")
INDEX: Final = {name: index for index, name in enumerate(NAMES)}


class OwnValue(NamedTuple):
    """A plug-in's definition of a value. like: the built-in value of a request axis that the package's gates treat it
    as. config: fields of the engine's configuration that it sets. requests: makes a cell's requests from those with
    `like`."""

    like: str
    config: Mapping[str, Any]
    requests: Callable[[tuple[Any, ...]], Iterable[Any]] | None


# By axis and value.
OWN_VALUES: Final[dict[tuple[str, str], OwnValue]] = {}


def axis(name: str) -> Axis:
    """The axis with this name. ConfigError names the closest axis, or all axes."""
    if name not in INDEX:
        close = nearest(name, NAMES)
        hint = f"the closest is {close}" if close else f"it must be one of {', '.join(NAMES)}"
        raise ConfigError(f"axis {shown(name)} is unknown; {hint}")
    return AXES[INDEX[name]]


def describe(assignment: Iterable[tuple[str, str]]) -> str:
    """Axis values as text: `algorithm=eagle3 topk=4`."""
    return " ".join(f"{name}={value}" for name, value in assignment)
