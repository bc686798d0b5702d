"""The format of a problem template and the notation of its texts.

`numbers`   "a:T b:S": each letter is drawn from the range of its class (see ranges.py).
`given`     "n=a*b": numbers computed beforehand (for example so that a division has no remainder).
`questions` phrasings; `{a}` is a number, `{P}` `{Q}` people, `{he}` `{his}` pronouns of P, `{thing}` `{other}` plurals.
`work`      one line per step; `[c=a+b]` renders as `12+30=<<12+30=42>>42`, `[$c=a+b]` puts `$` before the result.
The last bracket is the answer. A draw is repeated if a step is not a positive whole number.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem: its numbers, phrasings and worked steps."""

    name: str
    numbers: str
    given: str
    questions: tuple[str, ...]
    work: tuple[str, ...]


def template(name: str, numbers: str, questions: list[str], work: list[str], given: str = "") -> Template:
    """A Template from lists; by default no numbers are computed beforehand."""
    return Template(name, numbers, given, tuple(questions), tuple(work))
