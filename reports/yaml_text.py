"""YAML as data: plain values, and nothing that a reader would miss."""

from __future__ import annotations

from typing import Any, Final

import yaml


class _Plain:
    """Dates as text, and no key twice in a mapping: YAML would take the last one."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as yaml has it
        first: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
        for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]} is there twice", node.start_mark)
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]  # of a loader
        return found


_SAFE: Final = type("_SafeLoader", (_Plain, yaml.SafeLoader), {})
# Ten times as fast, but a deep nesting ends the process.
_FAST: Final = type("_FastLoader", (_Plain, getattr(yaml, "CSafeLoader", yaml.SafeLoader)), {})


def parse_yaml(text: str, own: bool = False) -> Any:  # noqa: ANN401  # whatever YAML holds
    """The value of a text. ValueError, in one line, if it is no YAML. own: a file of this package."""
    try:
        return yaml.load(text, Loader=_FAST if own else _SAFE)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    except ValueError as error:
        large = "integer string conversion" in str(error)
        raise ValueError("it has a number of more than 4,300 digits" if large else str(error)) from None
