"""HTML, Markdown and rich's markup from `templates/`. Every value that a template prints is escaped."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup
from markupsafe import escape as escape_html
from rich.markup import escape as escape_rich

from specmatrix.plain_text import ACTIVE, visible
from specmatrix.reports import wording as text
from specmatrix.reports.compare.rewrites import signature
from specmatrix.reports.effective import pair_text
from specmatrix.reports.render import failing_request
from specmatrix.reports.render.console import as_called
from specmatrix.reports.schema import Header
from specmatrix.reports.speed import speed_text

# Importing Jinja2 takes 0.1 s.
if TYPE_CHECKING:
    from jinja2 import Environment

# GitHub refuses comments above 65,536 characters; a text never has fewer bytes.
LIMIT: Final = 64_000
# Row limits of Markdown tables, tried in order until the text fits.
ROWS: Final = (60, 30, 15, 8, 4, 2, 1, 0)
_HERE: Final = Path(__file__).parent
_SPECIAL: Final = re.compile(r"([\\`*_\[\]|#~])")
# What GitHub turns into links: users, issue numbers (their `#` already escaped) and URLs.
_LINKED: Final = re.compile(r"@(?=\w)|\\#(?=\d)|\bGH-(?=\d)|:(?=//)", re.IGNORECASE)

# A traceback location; paths inside the packages are relative.
_PLACE: Final = re.compile(r'(File "(\w+(?:/\w+)*\.py)", line (\d+))')


def html(template: str, **values: object) -> str:
    """A page as one self-contained HTML file."""
    return _html().get_template(template).render(values)


def macro(template: str, name: str) -> Callable[..., str]:
    """A macro of an HTML template."""
    made: Callable[..., str] = getattr(_html().get_template(template).module, name)
    return made


def markdown(template: str, **values: object) -> str:
    """Markdown of at most `LIMIT` bytes. Tables drop whole rows until it fits, and say how many."""
    page = _markdown().get_template(template)
    for most in ROWS:
        # Optional parts of a template leave blank lines behind.
        found = visible(re.sub(r"\n{3,}", "\n\n", page.render(values, most=most)).strip()) + "\n"
        if len(found.encode()) <= LIMIT:
            break
    return found


def rich(template: str, most: int, **values: object) -> str:
    """Lines for a terminal, in rich's markup. most: how many entries of a list are shown."""
    return _rich().get_template(template, globals={"most": most}).render(values).removesuffix("\n")


def escape(value: object, most: int = 240) -> Markup:
    """Escaped text on one line of at most `most` characters that notifies no GitHub user."""
    plain = text.shorten(str(value), most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # GitHub finds mentions in rendered text; a zero-width space prevents them. Two dollar signs would be a formula.
    return Markup(_LINKED.sub(r"\g<0>&#8203;", _SPECIAL.sub(r"\\\1", plain)).replace("$", "&#36;"))


def code(value: object, most: int = 160) -> Markup:
    """Text as Markdown code inside a sentence or a table cell."""
    plain = text.shorten(str(value), most)
    if "|" in plain:
        # Renderers disagree on a backslash before a bar inside code.
        return Markup(f"<code>{escape(plain, most)}</code>")
    fence = "`" * (max((len(run) for run in re.findall(r"`+", plain)), default=0) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return Markup(f"{fence}{pad}{plain}{pad}{fence}")


def at_commit(header: Header) -> Markup | str:
    """A run's commit, linked if its repository is known."""
    if not header.repository:
        return text.build(header)
    address = f"{header.repository}/commit/{header.commit}"
    return Markup('<a href="{}">{}</a>').format(address, text.build(header))


def sources(traceback: str, header: Header) -> Markup:
    """A traceback whose locations in the repository are links, if its address is known."""
    parts = _PLACE.split(traceback) if header.repository else [traceback]
    found = [escape_html(parts[0])]
    for place, path, line, rest in zip(*(parts[first::4] for first in (1, 2, 3, 4)), strict=True):
        address = f"{header.repository}/blob/{header.commit}/{path}#L{line}"
        found += [Markup('<a href="{}">{}</a>').format(address, place), escape_html(rest)]
    return Markup("").join(found)


def script_json(value: object) -> str:
    """JSON for a page's script, with control characters in strings escaped."""
    written = dumps(value, ensure_ascii=False, separators=(",", ":"))
    return ACTIVE.sub(lambda found: f"\\{ascii(found[0])[1:-1]}", written)


def tone(state: str) -> str:
    """The CSS class of a cell, gate or comparison state."""
    if state in ("PASS", "IMPROVED", "green"):
        return "good"
    if state in ("FAIL", "REGRESSED", "LOST", "red"):
        return "bad"
    return "warn" if state in ("NOT MEASURED", "INFRA", "REWRITTEN", "NOT COMPARABLE", "UNKNOWN") else "calm"


COLOURS: Final = {"good": "green", "bad": "red", "warn": "yellow", "calm": "cyan"}
WORDS: Final = {"PASS": "passed", "FAIL": "failed", "INFRA": "with infrastructure errors"}


def _shell(command: str) -> Markup:
    """A command for a fenced block, without fences or newlines of its own."""
    return Markup(command.replace("```", "` ` `").replace("\n", " "))


def _provenance(header: Header) -> dict[str, str]:
    return {**text.provenance(header), "commit": at_commit(header)}


def _breakable(cell: str) -> Markup:
    """A cell's id with break opportunities after its dots."""
    return Markup(str(escape_html(cell)).replace(".", ".<wbr>"))


def _environment(**settings: object) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader(_HERE / "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        **settings,  # type: ignore[arg-type]  # passed on as they are
    )
    words = (text.accepting, text.build, text.duration, text.failure, text.machine, text.provenance, text.shorten)
    others = (text.tested, text.versions, failing_request.columns, failing_request.place, repr, signature, tone)
    made.filters |= {function.__name__: function for function in (*words, *others)}
    made.filters |= {"pages": failing_request.pages_text, "pair": pair_text}
    made.filters["arrows"] = lambda said: str(said).replace("->", "→")  # no line break before an arrow
    made.globals |= {"count": text.count, "min": min}
    return made


@cache
def _html() -> Environment:
    made = _environment()
    made.policies |= {"json.dumps_function": script_json, "json.dumps_kwargs": {}}
    made.filters |= {"breakable": _breakable, "provenance": _provenance, "sources": sources}
    made.filters["red_gate"] = lambda gate: f"{gate.name}: {gate.message or gate.state}"
    files = {"style": "page.css", "script": "page.js", "steps": "steps.js"}
    made.globals |= {name: Markup((_HERE / file).read_text(encoding="utf-8")) for name, file in files.items()}
    return made


@cache
def _markdown() -> Environment:
    made = _environment(finalize=lambda value: value if isinstance(value, Markup) else escape(value))
    made.filters |= {"code": code, "text": escape, "shell": _shell}
    return made


def _one_line(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape_rich(str(value).replace("\n", " ")))


@cache
def _rich() -> Environment:
    made = _environment(finalize=_one_line)
    made.filters |= {"called": as_called, "speed": speed_text}
    made.filters |= {"shorten_rewrite": text.shorten_rewrite, "waiver": text.waiver_text}
    made.globals |= {"colours": COLOURS, "words": WORDS}
    return made
