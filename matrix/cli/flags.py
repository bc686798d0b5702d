"""Engine flags among the words of a command line: `--page-size 4 "How many?" --disable-radix-cache`."""

from __future__ import annotations

from textwrap import fill
from typing import Final

from specmatrix.engine.core.config.asked import KINDS, field_of
from specmatrix.errors import ConfigError

FLAGS: Final = tuple(f"--{name.replace('_', '-')}" for name in KINDS)
TRUTHS: Final = ("true", "false")


def epilog() -> str:
    """The end of the help of commands that take engine flags; `\b` disables rewrapping."""
    return "\b\n" + fill(f"Engine flags are accepted too: {', '.join(FLAGS)}", 78, break_on_hyphens=False)


def flags_of(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The words that are not flags, in order, and the value of each field set by a flag (`true` for a switch).

    ConfigError on an unknown flag, a flag without its value, and a flag given twice. A word with blanks is not a flag.
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
