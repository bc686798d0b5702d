"""The cell lines of a report file, and what can be read off them without parsing them whole.

The shortcuts hold for lines in the order of keys that the writer keeps; any other line is parsed whole. Quotes inside a
JSON text are escaped, so `"gates":` is always a key; where it is one of a nested object, what is cut there is no JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from mmap import mmap
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from specmatrix.reports.codec import Launch, Own, decode_cell, decode_gate, decode_launch, decode_own, joined
from specmatrix.reports.schema import CELL_STATES, CellResult, CellState, GateResult, Json, ReportError

_FRONT: Final = re.compile(
    rb'\{\s*"kind"\s*:\s*"cell"\s*,\s*"id"\s*:\s*"([^"\\]+)"\s*,\s*'
    rb'"state"\s*:\s*"(PASS|FAIL|NOT MEASURED|INFRA)"\s*,\s*"axes"\s*:\s*(?=\{)'
)
# The keys from the first to before the second are what the cells of a launch share.
_LAUNCH: Final = re.compile(rb'\s*,\s*(?="resolved")')
_WAIVED: Final = b'"waived":'
_WITNESS: Final = b'"witness":'
_STATES: Final[Mapping[bytes, CellState]] = {state.encode(): state for state in CELL_STATES}
_GATES: Final = b'"gates":['
_GATES_END: Final = b'],"error":'
_NEXT_GATE: Final = b"},{"
_NEXT_ENTRY: Final = b'","'
_GREEN: Final = b'"state":"PASS"'
_TIME: Final = b'"seconds"'
_TO_TIME: Final = len(_TIME + b":")
_SECONDS: Final = re.compile(rb'"seconds"\s*:\s*[0-9.eE+-]+')
# A running time as the writer leaves it, behind everything else.
_TIMED: Final = re.compile(rb'"seconds":((?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\}')
_NOTHING: Final = b"{}"
_BRACE: Final = ord("}")
_READ: Final = json.JSONDecoder().raw_decode


# What a report is read as.
Text: TypeAlias = bytes | mmap


class Span(NamedTuple):
    """A part of the file, in bytes, and its text."""

    start: int
    end: int
    text: bytes


class Line(NamedTuple):
    """Where a cell's line lies in the file, in bytes; `axes` is the offset of its axes, or -1 in another order of
    keys."""

    start: int
    end: int
    axes: int
    state: CellState | None


def front(data: Text, start: int, end: int) -> tuple[str, Line] | None:
    """The id of the cell whose line is data[start:end], and its line; None if only a full parse can tell."""
    match = _FRONT.match(data, start, end)
    if match is None or data[end - 1] != _BRACE:
        return None
    return match[1].decode(), Line(start, end, match.end(), _STATES[match[2]])


def without_time(line: bytes) -> bytes:
    """A line up to its running time, which the writer leaves at its end."""
    return line[: line.rfind(_TIME)]


class Launches:
    """Where the lines of a file say what the cells of one launch share.

    A report is written launch by launch, so a line is first held against what the last one said.
    """

    def __init__(self, data: Text) -> None:
        self._data = data
        # Like the text, but from the end of the axes to behind the next key. No line holds a newline.
        self._around = b"\n"
        self._skipped = 0
        self._text = b""

    def text(self, line: Line) -> bytes | None:
        """What a line says of its launch, or None if only a full parse can tell."""
        return self._text if self._axes_end(line) else None

    def span(self, line: Line) -> Span | None:
        """The same with its place."""
        start = self._axes_end(line) + self._skipped
        return Span(start, start + len(self._text), self._text) if start > self._skipped else None

    def _axes_end(self, line: Line) -> int:
        """Offset behind the axes once the launch that follows them is taken, 0 if only a full parse can tell."""
        brace = _axes_end(self._data, line)
        known = self._data[brace : brace + len(self._around)] == self._around
        return brace if known or self._read(brace, line.end) else 0

    def _read(self, brace: int, stop: int) -> bool:
        """Take the launch that follows the axes; they end at `brace`, 0 if that is unknown."""
        after = _LAUNCH.match(self._data, brace, stop) if brace else None
        end = -1 if after is None else self._data.find(_WAIVED, after.end(), stop)
        if after is None or end < 0:
            return False
        self._around = self._data[brace : end + len(_WAIVED)]
        self._skipped = after.end() - brace
        self._text = self._data[after.end() : end]
        return True


def axes_text(data: Text, line: Line) -> bytes | None:
    """What should be the JSON of the axes, or None if only a full parse can tell."""
    brace = _axes_end(data, line)
    return data[line.axes : brace] if brace and _LAUNCH.match(data, brace, line.end) else None


def plain_entries(text: bytes) -> frozenset[bytes] | None:
    """The entries of axes that are all lower-case strings as the writer leaves them, each as `entry` has it; None for
    any other JSON."""
    entries = frozenset(text[2:-2].split(_NEXT_ENTRY))
    plain = text.islower() and b"\\" not in text and b" " not in text and text.count(b'"') == 4 * len(entries)
    return entries if plain else None


def entry(axis: str, value: str) -> bytes:
    """An axis and its value as `plain_entries` has them."""
    return f'{axis}":"{value}'.encode()


def _axes_end(data: Text, line: Line) -> int:
    """Offset behind the axes, 0 if only a full parse can tell. Axis values are plain, so the first brace closes
    them."""
    return data.find(b"}", line.axes, line.end) + 1 if line.axes >= 0 else 0


def same_but_for_time(data: Text, lines: Iterable[Line], other: Text, other_lines: Iterable[Line]) -> Iterator[bool]:
    """Of each pair of lines, true if both have the same bytes around their running times."""
    find, there_find, value = data.rfind, other.rfind, _SECONDS.match
    for (start, end, _, _), (there, other_end, _, _) in zip(lines, other_lines, strict=True):
        at, there_at = find(_TIME, start, end), there_find(_TIME, there, other_end)
        if at < 0 or there_at < 0:
            yield data[start:end] == other[there:other_end]
        elif at - start != there_at - there or data[start:at] != other[there:there_at]:
            yield False
        else:
            # As the writer leaves it, nothing but the brace follows the time.
            try:
                float(data[at + _TO_TIME : end - 1]), float(other[there_at + _TO_TIME : other_end - 1])
                yield True
            except ValueError:
                mine, theirs = value(data, at, end), value(other, there_at, other_end)
                behind, there_behind = mine.end() if mine else at, theirs.end() if theirs else there_at
                yield data[behind:end] == other[there_behind:other_end]


@lru_cache(maxsize=1 << 14)
def parse_launch(text: bytes) -> Launch | None:
    """The launch of a `Span`, or None if that is no launch by itself: then the whole line has to be parsed."""
    try:
        return decode_launch(parse_json(b"{%s}" % text.rstrip(b" ,")), "the launch")
    except ReportError:
        return None


class Parts(NamedTuple):
    """A line cut up: what is the cell's own, its launch, and the texts of its witness and of its gates."""

    own: bytes
    launch: Launch
    witness: bytes
    gates: list[bytes]


def parse_cell(file: Path, data: Text, line: Line, span: Span | None) -> CellResult:
    """The record of a line whose launch is `span`. Raises ReportError with the file and the number of the line."""
    parts = cut(data, line, span)
    try:
        return (parts and assembled(parts)) or _whole(data[line.start : line.end])
    except ReportError as error:
        raise ReportError(f"{place(file, data, line.start)}: {error}") from error


def cut(data: Text, line: Line, span: Span | None) -> Parts | None:
    """The parts of a line whose launch is `span`; None if only a full parse can tell."""
    if span is None:
        return None
    text = data[span.end : line.end]
    seen = text.find(_WITNESS)
    first = text.find(_GATES, seen)
    last = text.rfind(_GATES_END, first)
    launch = None if min(seen, first, last) < 0 else parse_launch(span.text)
    if launch is None:
        return None
    seen += len(_WITNESS)
    own = b"%s%s{},%s%s" % (data[line.start : span.start], text[:seen], _GATES, text[last:])
    witness, first = text[seen:first], first + len(_GATES)
    gates = text[first + 1 : last - 1].split(_NEXT_GATE) if first < last else []
    return Parts(own, launch, witness.rstrip(b" ,"), gates)


def assembled(parts: Parts) -> CellResult | None:
    """The record of parts that many lines share, each parsed once; None if only a full parse can tell."""
    try:
        at = parts.own.rfind(_TIME)
        time = _TIMED.fullmatch(parts.own, at)
        witness = part(parts.witness) if parts.witness != _NOTHING else {}
        if time is None or not isinstance(witness, dict):
            return None
        gates = tuple(map(_parse_gate, parts.gates))
        return joined(_untimed(parts.own[:at]), parts.launch, witness, gates, float(time[1]))
    except ReportError:
        return None


def apart(mine: Parts, theirs: Parts) -> tuple[Parts, Parts]:
    """The parts of two lines without the witness and the green gates that both tell in the same bytes, these if as many
    gates stand in both lines and they in the same places."""
    one, other = mine.gates, theirs.gates
    if len(one) == len(other):
        differing = [each for each in zip(one, other, strict=True) if each[0] != each[1] or _GREEN not in each[0]]
        one, other = [text for text, _ in differing], [text for _, text in differing]
    both = mine.witness == theirs.witness
    return (
        Parts(mine.own, mine.launch, _NOTHING if both else mine.witness, one),
        Parts(theirs.own, theirs.launch, _NOTHING if both else theirs.witness, other),
    )


@lru_cache(maxsize=1 << 16)
def _untimed(text: bytes) -> Own:
    """What is a cell's own, up to its running time, which is 0 here: two reports have it in common."""
    return decode_own(part(text + b'"seconds":0}'))


@lru_cache(maxsize=1 << 16)
def _parse_gate(text: bytes) -> GateResult:
    """Numbers differ from cell to cell, and what stands around them hardly ever does."""
    first, last = text.find(b"{"), text.rfind(b"}") + 1
    around = _around_numbers(text[:first], text[last:])
    numbers = part(text[first:last])
    if not isinstance(numbers, dict):
        raise ReportError("the line has to be parsed whole")
    return GateResult(around.name, around.state, numbers, around.interval, around.message)


@lru_cache(maxsize=1 << 10)
def _around_numbers(front: bytes, back: bytes) -> GateResult:
    """A gate without its numbers, from what stands before and behind them."""
    return decode_gate(part(b"{%s{}%s}" % (front, back)), "a gate")


def part(text: bytes) -> Json:
    """The JSON of a part that was cut out of a line. ReportError if it is none: the whole line says why."""
    try:
        characters = text.decode()
        value, end = _READ(characters)
    except ValueError as error:
        raise ReportError("the line has to be parsed whole") from error
    if end != len(characters):
        raise ReportError("the line has to be parsed whole")
    return value


def _whole(text: bytes) -> CellResult:
    body = parse_json(text)
    if not isinstance(body, dict) or body.get("kind") != "cell":
        raise ReportError("the line is not a cell")
    return decode_cell(body)


def parse_json(text: bytes) -> Json:
    """Parsed JSON. Raises ReportError, which leaves out the file and the line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise ReportError(f"broken at column {error.colno}: {what}") from error
    except UnicodeDecodeError as error:
        raise ReportError("broken, it is not UTF-8 text") from error


def place(file: Path, data: Text, start: int) -> str:
    """The file and the number of the line that begins at `start`, for people."""
    newlines = data[:start].count(b"\n")
    return f"{file}, line {newlines + 1}"
