"""Numbers and names as words, the same in every output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from specmatrix.plain_text import visible
from specmatrix.reports.schema import REFERENCE, CellResult, Header, Waiver


def count(number: int, noun: str) -> str:
    """`1 cell`, `3 cells`, `12,000 cells`, `2 starts`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("ch") else "s")


def most_frequent(reasons: Counter[str]) -> str:
    """The most frequent of several reasons, the first of equals, and how many others there are."""
    [(first, times)] = reasons.most_common(1)
    if len(reasons) == 1:
        return first
    return f"{first} ({times:,} of {reasons.total():,}), and {count(len(reasons) - 1, 'other reason')}"


def shorten(text: str, most: int) -> str:
    """One visible line of at most `most` characters; an ellipsis says that there was more."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring numbers, first and last, in the given order."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def spans(pages: Sequence[int]) -> str:
    """Page numbers in order, with runs of neighbours as `5-8`."""
    return ", ".join("-".join(map(str, dict.fromkeys(run))) for run in ranges(pages)) or "none"


def shorten_pair(one: str, other: str, most: int) -> tuple[str, str]:
    """Two values on one line each of at most `most` characters; longer ones from shortly before their difference on."""
    lines = [" ".join(text.split()) for text in (one, other)]
    shared = next((i for i, pair in enumerate(zip(*lines, strict=False)) if len({*pair}) > 1), min(map(len, lines)))
    at = shared - most // 3
    cut = at > 0 and max(map(len, lines)) > most
    first, second = (shorten("…" * cut + line[at * cut :], most) for line in lines)
    return first, second


def shorten_rewrite(signature: str) -> str:
    """A rewrite on one line, `field: asked -> got`, with both of its values; a whole JSON file may be rewritten."""
    field, colon, values = " ".join(signature.split()).partition(": ")
    asked, arrow, got = values.rpartition(" -> ")
    return field + colon + arrow.join(shorten_pair(asked, got, 60))


def duration(seconds: float) -> str:
    """`0.42 s`, `38 s`, `12 min 5 s`."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def failure(cell: CellResult) -> str:
    """Why a cell does not pass, in one sentence: its red gates with their messages, or the error that stopped it."""
    texts = [f"{g.name}: {g.message or g.state}" for g in cell.gates if g.state != "PASS"]
    if cell.error:
        texts.insert(0, cell.error)
    return visible("; ".join(texts))


def accepting(cell: CellResult) -> str:
    """How to accept the finding of a cell's first red gate, or ""; other gates' findings may follow from it."""
    gate = next((gate for gate in cell.gates if gate.state != "PASS"), None)
    return f"if {gate.name} should change: {gate.accept}" if gate is not None and gate.accept else ""


def waiver_text(waiver: Waiver, most: int = 160) -> str:
    """The first words of a waiver's reason, its issue and its last day."""
    issue = f" ({shorten(waiver.issue, most)})" if waiver.issue else ""
    return f"{shorten(waiver.reason, most)}{issue}, until {waiver.expiry[:10]}"


def build(header: Header) -> str:
    """The commit for display: 12 digits, whether the checkout was dirty, and the planted fault."""
    return header.commit[:12] + " + changes" * header.dirty + f" + fault {header.fault}" * bool(header.fault)


def tested(header: Header) -> str:
    """The code that a side of a comparison tests: the commit, with a foreign engine's name and version, and the
    label."""
    engine = "" if header.subject.name == REFERENCE else f"{header.subject.name} {header.subject.version}".rstrip()
    text = f"{engine} at {build(header)}" if engine else build(header)
    return f"{text} ({shorten(header.label, 60)})" if header.label else text


def machine(header: Header) -> str:
    """The machine in a few words."""
    gpus = header.host.get("gpus") or []
    parts = [str(header.host.get("cpu") or "unknown CPU"), *(str(gpu) for gpu in gpus)]
    return ", ".join(parts)


def versions(header: Header) -> str:
    """`python 3.11.7, torch 2.13.0`."""
    return ", ".join(f"{name} {version}" for name, version in header.versions.items())


def provenance(header: Header) -> dict[str, str]:
    """The provenance of a run by name: code, machine and inputs."""
    return {
        "subject": f"{header.subject.name} {header.subject.version}".strip(),
        **({"label": header.label} if header.label else {}),
        **({"files of the user": ", ".join(header.files)} if header.files else {}),
        **({"planted fault": header.fault} if header.fault else {}),
        "commit": build(header),
        "created": header.created,
        "tier / stage / seed": f"{header.tier} / {header.stage} / {header.seed}",
        "machine": machine(header),
        "versions": versions(header),
        "lock / data / zoo": f"{header.lock_hash} / {header.data_hash} / {header.zoo_hash}",
    }
