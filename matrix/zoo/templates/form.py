"""The form of a problem template, and the small notation its texts are written in.

`numbers`   "a:T b:S": each letter is drawn from the range of its class (see ranges.py).
`given`     "n=a*b": numbers computed before the question is asked (so that a division comes out even).
`questions` phrasings; `{a}` is a number, `{P}` `{Q}` people, `{he}` `{his}` pronouns of P, `{thing}` `{other}` plurals.
`work`      one line per step; `[c=a+b]` renders as `12+30=<<12+30=42>>42`, `[$c=a+b]` puts `$` before the result.
The last bracket is the answer. Draws for which a step is not a positive whole number are drawn again.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """One kind of problem: what is drawn, how it is asked, how it is worked."""

    name: str
    numbers: str
    given: str
    questions: tuple[str, ...]
    work: tuple[str, ...]


def template(name: str, numbers: str, questions: list[str], work: list[str], given: str = "") -> Template:
    """A Template from lists; `given` defaults to nothing computed beforehand."""
    return Template(name, numbers, given, tuple(questions), tuple(work))
