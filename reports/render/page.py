"""The frame of every HTML page: one file with its style and script inside, which opens without a network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from specmatrix.reports.schema import CellResult, Header, Json
from specmatrix.reports.wording import build, failure, machine

_HERE: Final = Path(__file__).parent


def page(title: str, body: str, data: Json = None) -> str:
    """A whole page; `data` is what the script reads (details of table rows)."""
    style, script = (_HERE / "page.css").read_text(), (_HERE / "page.js").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>{body}</main>\n"
        f'<script type="application/json" id="data">{_inline_json(data)}</script>\n<script>{script}</script>'
        "</body></html>\n"
    )


def banner(verdict: str, title: str, lines: Iterable[str]) -> str:
    """The verdict, in colour and in words, and the sentences behind it."""
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<header class="banner {verdict}"><h1>{escape(title)}</h1><ul>{items}</ul></header>'


def tiles(rows: Iterable[tuple[str, str, str]]) -> str:
    """Counts as tiles: (label, number, tone)."""
    made = ""
    for label, number, kind in rows:
        shown = "none" if number == "0" else kind
        made += f'<div class="tile {shown}"><b>{escape(number)}</b><span>{escape(label)}</span></div>'
    return f'<section class="tiles">{made}</section>'


def section(title: str, body: str, note: str = "") -> str:
    """A titled part of the page, left out if `body` is empty."""
    if not body:
        return ""
    hint = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{hint}{body}</section>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table of plain texts, "" without rows. A column name that ends in `*` holds code."""
    body = "".join(
        "<tr>"
        + "".join(
            f"<td><code>{escape(cell)}</code></td>" if name.endswith("*") and cell else f"<td>{escape(cell)}</td>"
            for name, cell in zip(columns, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    if not body:
        return ""
    head = "".join(f"<th>{escape(name.rstrip('*'))}</th>" for name in columns)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def command(text: str) -> str:
    """A shell line with a button that copies it."""
    return f'<span class="command"><code>{escape(text)}</code><button type="button" class="copy">copy</button></span>'


def identity(cell: str) -> str:
    """A cell's id, which may break behind its dots."""
    return f'<code class="id">{escape(cell).replace(".", ".<wbr>")}</code>'


def reasons(cell: CellResult) -> str:
    """Why a cell is not green: what stopped it, and a line per red gate."""
    lines = [("", cell.error)] if cell.error else []
    lines += [(gate.name, gate.message or gate.state) for gate in cell.gates if gate.state != "PASS"]
    items = "".join(f"<li><b>{escape(name)}</b> {escape(text)}</li>" for name, text in lines or [("", failure(cell))])
    return f'<ul class="why">{items}</ul>'


def badge(state: str) -> str:
    """A state as a coloured word."""
    return f'<span class="badge {tone(state)}">{escape(state)}</span>'


def tone(state: str) -> str:
    """The style class of a state of a cell, a gate or a comparison."""
    if state in ("PASS", "IMPROVED", "green"):
        return "good"
    if state in ("FAIL", "REGRESSED", "LOST", "red"):
        return "bad"
    if state in ("NOT MEASURED", "INFRA", "UNSUPPORTED", "REWRITTEN", "NOT COMPARABLE", "UNKNOWN"):
        return "warn"
    return "calm"


def origin(header: Header) -> list[tuple[str, str]]:
    """What the run was, as rows of a small table."""
    return [
        ("commit", build(header)),
        ("created", header.created),
        ("tier / stage / seed", f"{header.tier} / {header.stage} / {header.seed}"),
        ("machine", machine(header)),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
        ("lock / data / zoo", f"{header.lock_hash} / {header.data_hash} / {header.zoo_hash}"),
    ]


def _inline_json(data: Json) -> str:
    # "</script>" or "<!--" inside a text would end the element.
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
