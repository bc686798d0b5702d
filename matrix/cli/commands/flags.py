"""Engine flags among the words of a command line: `--page-size 4 "How many?" --disable-radix-cache`."""

from __future__ import annotations

from textwrap import fill
from typing import Final

from specmatrix.engine.core.config.asked import KINDS, field_of
from specmatrix.errors import ConfigError

FLAGS: Final = tuple(f"--{name.replace('_', '-')}" for name in KINDS)
TRUTHS: Final = ("true", "false")
# Below the help of every command that takes them; `\b` keeps its lines as they are.
EPILOG: Final = "\b\n" + fill(f"Engine flags are taken too: {', '.join(FLAGS)}", 78, break_on_hyphens=False)


def flags_of(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """What is no flag, in order, and the value of each field that a flag sets (`true` for a switch without one).

    ConfigError on an unknown flag, a flag without its value, and a flag given twice. A name with blanks in it is no
    flag.
    """
    others: list[str] = []
    flags: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not _is_flag(name):
            others.append(word)
            continue
        field = field_of(name)
        switch = KINDS[field] is bool
        if not equals and switch:
            value = rest.pop(0) if rest and rest[0] in TRUTHS else "true"
        elif not equals:
            if not rest or _is_flag(rest[0].partition("=")[0]):
                raise ConfigError(f"{name} needs a value")
            value = rest.pop(0)
        if field in flags:
            raise ConfigError(f"{name} is given twice; give it once")
        flags[field] = value
    return others, flags


def _is_flag(name: str) -> bool:
    return name.startswith("--") and len(name) > 2 and not any(letter.isspace() for letter in name)
