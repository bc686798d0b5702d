"""Engine flags among the words of a command line: `--page-size 4 "How many?" --disable-radix-cache`."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path
from typing import Final

import msgspec

from specmatrix.engine.core.config.asked import KINDS, UNASKED, field_of, respelled, spellings_of
from specmatrix.errors import ConfigError

# What each flag is for, in one line.
HELP: Final = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=dict[str, str])
FLAGS: Final = tuple(f"--{name.replace('_', '-')}" for name in KINDS)
TRUTHS: Final = ("true", "false")


def rows() -> list[tuple[str, str]]:
    """(flag with its kind of value, description with its default) of each flag."""
    found = []
    for flag, (name, kind) in zip(FLAGS, KINDS.items(), strict=True):
        default = "" if kind is bool or UNASKED[name] in (None, "", MISSING) else f"  [default: {UNASKED[name]}]"
        found.append((flag if kind is bool else f"{flag} <{kind.__name__}>", HELP[name] + default))
    return found


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
        spellings = spellings_of(name)
        switch = KINDS[field] is bool or TRUTHS[0] in spellings
        if not equals and switch:
            value = rest.pop(0) if rest and rest[0] in TRUTHS else "true"
        elif not equals:
            if not rest or _is_flag(rest[0].partition("=")[0]):
                raise ConfigError(f"{name} needs a value")
            value = rest.pop(0)
        if field in flags:
            raise ConfigError(f"{name} is given twice; give it once")
        flags[field] = respelled(name, value, spellings) if spellings else value
    return others, flags


def _is_flag(name: str) -> bool:
    return name.startswith("--") and len(name) > 2 and not any(letter.isspace() for letter in name)
