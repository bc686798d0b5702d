"""The words of which a name is made."""

import re


def words(name: str) -> set[str]:
    """snake_case and CamelCase parts, lower case."""
    return {w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)}
