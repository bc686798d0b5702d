"""The first failing request as text, for terminal, Markdown and HTML."""

from __future__ import annotations

from itertools import zip_longest
from typing import Final, NamedTuple

from specmatrix.reports.schema import AskPages, FailingRequest, Token
from specmatrix.reports.wording import count, shorten, spans

MAX_SPANS: Final = 8
PROMPT: Final = 70


class Column(NamedTuple):
    """One output position of both sides; `apart`: the tokens differ."""

    place: int
    expected: str
    got: str
    apart: bool


def columns(ask: FailingRequest) -> list[Column]:
    """Tokens around the first difference, side by side; "" after a side's end."""
    pairs = zip_longest(ask.expected_tokens, ask.got_tokens)
    return [Column(ask.first + i, _shown(one), _shown(other), one != other) for i, (one, other) in enumerate(pairs)]


def place(ask: FailingRequest) -> str:
    """Where the request first went wrong: `q6 at token 2, verify round 2, lag 1`; its end if no token is at fault."""
    where = " at its end (its tokens are right)" * bool(ask.got_tokens)
    words = [ask.request + (where if ask.token is None else f" at token {ask.token}")]
    if ask.round is not None:
        words.append(f"verify round {ask.round}" if ask.round else "prefill")
    words += [] if ask.lag is None else [f"lag {ask.lag}"]
    return ", ".join(words)


def ask_lines(ask: FailingRequest) -> list[str]:
    """The request for a terminal, at most six lines."""
    lines = [f"{place(ask)}: {shorten(ask.prompt, PROMPT)}" if ask.prompt else place(ask)]
    rows = columns(ask)
    if any(row.apart for row in rows):
        for side in ("expected", "got"):
            marks = [">" if row.place == ask.token else "" for row in rows]
            widths = [max(len(row.expected), len(row.got)) for row in rows]
            words = [mark + getattr(row, side).ljust(wide) for mark, row, wide in zip(marks, rows, widths, strict=True)]
            line = " ".join(words)
            lines.append(f"  {side:<8}  {line}".rstrip())
    if ask.note:
        lines.append(f"  {ask.note}")
    if ask.pages is not None:
        lines.append(f"  {pages_text(ask.pages)}")
    if ask.journal:
        lines.append(f"  journal: {'; '.join(ask.journal[-5:])}")
    return lines


def pages_text(table: AskPages) -> str:
    """`pages 1-10, 22 (4 positions each), 10 cached; 47 positions committed, 6 in flight`."""
    cached = f", {table.cached} cached" if table.cached else ""
    flying = f", {' + '.join(map(str, table.in_flight))} in flight" if table.in_flight else ""
    of = count(table.page_size, "position")
    runs = spans(table.pages).split(", ")
    pages = ", ".join((["…"] if len(runs) > MAX_SPANS else []) + runs[-MAX_SPANS:])
    return f"pages {pages} ({of} each){cached}; {table.committed} positions committed{flying}"


def _shown(token: Token | None) -> str:
    return "" if token is None else repr(token.text)
