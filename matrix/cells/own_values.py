"""Values that plug-ins add to the axes, and users' algorithms as values of the axis `algorithm`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from specmatrix.engine.core.draft.algorithms import Traits, is_registered, known_algorithms
from specmatrix.errors import ConfigError, described, shown
from specmatrix.matrix.cells.axes import INDEX, OWN_VALUES, OwnValue, Value, axis
from specmatrix.matrix.cells.cell import DRAFT_FACTS, DRAFTS, GPUS, MEANINGS, RANKS, SECONDS, TOKENS, Cell
from specmatrix.user_file import DEFINED

WORD: Final = re.compile(r"[a-z0-9_]+")


def register_value(
    axis_name: str,
    name: str,
    token: str,
    *,
    seconds: float = 0.0,
    config: Mapping[str, Any] | None = None,
    like: str | None = None,
    requests: Callable[[tuple[Any, ...]], Iterable[Any]] | None = None,
) -> None:
    """Add a value to an axis.

    token: its part of a cell's id. seconds: what it adds to a cell's duration. config: for a start axis, fields of
    EngineConfig; sizes need none, as `8` of page_size. requests: for a request axis, a pure function that makes the
    RequestSpecs of such a cell from those with the value `like` (None: the default), which gates judge the cell as.
    ConfigError if the value or the token exists, or if the engine cannot be configured with it.
    """
    row, what = axis(axis_name), f"value {shown(name)} of axis {axis_name}"
    for given in (name, token):
        if not WORD.fullmatch(given):
            raise ConfigError(f"{what}: {shown(given)} must consist of small letters, digits and underscores")
    if name in row.names or token in MEANINGS:
        taken = "the axis has it already" if name in row.names else f"token {shown(token)} is taken"
        raise ConfigError(f"{what}: {taken}; choose another one")
    if (requests if row.scope == "start" else config) is not None:
        allowed = "config, not requests" if row.scope == "start" else "requests, not config"
        raise ConfigError(f"{what}: a {row.scope} axis takes {allowed}")
    own = OwnValue(row.value(like).name if like is not None else row.default, dict(config or {}), requests)
    index = INDEX[axis_name]
    OWN_VALUES[axis_name, name] = own
    row.values.append(Value(name, token, seconds))
    TOKENS[index][name], SECONDS[index][name], GPUS[index][name] = token, seconds, 0
    RANKS[index][name], MEANINGS[token] = len(row.values) - 1, (axis_name, name)
    DEFINED.append(what)
    try:
        Cell.of({axis_name: name}).config()
    except Exception as error:  # a user's own value
        raise ConfigError(f"{what} cannot be configured: {described(error)}; give config, or a number") from error


def add_algorithms() -> None:
    """Give each user's algorithm a value on the axis `algorithm`, with the zoo's drafts whose architecture it takes."""
    for traits in known_algorithms():
        name = traits.name.lower()
        if is_registered(traits.name) and name not in axis("algorithm").names:
            register_value("algorithm", name, name, seconds=0.5)
            DRAFTS.update({(model, name): draft for (model, _), draft in _drafts_for(traits).items()})


def _drafts_for(traits: Traits) -> dict[tuple[str, str], str]:
    if traits.draft_weights != "checkpoint":
        return {}
    ends = traits.draft_architectures or ("",)
    found = {pair: draft for pair, draft in DRAFTS.items() if DRAFT_FACTS[draft].architecture.endswith(ends)}
    return dict(reversed(found.items()))  # the first of a model is kept
