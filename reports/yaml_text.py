"""Strict YAML: plain values, without constructs that a human reader would miss."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

import yaml

# Limits of a user's file; a waiver has a dozen values and 300 characters.
MAX_CHARACTERS: Final = 2**18
MAX_VALUES: Final = 100_000


class _Plain:
    """Loader with dates as text and without duplicate keys, of which YAML would take the last."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as yaml has it
        first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key, number in Counter(keys).items() if number > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]} is there twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]  # of a loader
        return found


_SAFE: Final = type("_SafeLoader", (_Plain, yaml.SafeLoader), {})
# Ten times as fast, but deep nesting crashes the process.
_FAST: Final = type("_FastLoader", (_Plain, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})


def parse_yaml(text: str, own: bool = False) -> Any:  # noqa: ANN401  # whatever YAML holds
    """Parse a YAML text. One-line ValueError if it is not YAML, or too large, where an alias counts as all that it
    names. own: a file of this package."""
    if len(text) > MAX_CHARACTERS and not own:
        raise ValueError(f"it has {len(text):,} characters; allowed: at most {MAX_CHARACTERS:,}")
    try:
        if own:
            return yaml.load(text, Loader=_FAST)
        loader = _SAFE(text)
        node = loader.get_single_node()
        if node is not None and _expanded(node, {}) > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES:,} values, or its aliases repeat so many")
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        large = "integer string conversion" in str(error)
        raise ValueError("it has a number of more than 4,300 digits" if large else str(error)) from None


def _expanded(node: yaml.Node, known: dict[int, float]) -> float:
    """The number of values in a node, where each alias counts as all that it names; infinite if it names itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,)))
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]
