"""Made-up reports with the shape of real ones: a small matrix, a few drafters, and defects on demand."""

import json
import random
from collections.abc import Callable
from hashlib import sha256
from io import StringIO
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from specmatrix.reports import schema
from specmatrix.reports.schema import CellRecord, CellResult, GateResult, Header, ReasonRecord, StartRecord, WaiverRule
from specmatrix.reports.store import ReportWriter

TOPK_ON_V1 = "trees run on v1 until the tree gates are green on v2"
DEFAULT_V2 = "the overlap schedule is on"


def header(**changes: object) -> Header:
    """A header of a clean pr run on the CPU tier."""
    rule = WaiverRule("algorithm=eagle3 and not batch in (single, pair)", "drafts leak on abort", "2026-12-31")
    whole = Header(
        tier="cpu",
        stage="pr",
        seed=0,
        created="2026-09-01T10:00:00+00:00",
        commit="0f3c2a9d41b7",
        dirty=False,
        versions={"python": "3.11.7", "torch": "2.13.0", "specmatrix": "0.1.0"},
        host={"cpu": "Xeon 2 cores", "gpus": []},
        lock_hash="5d1c7e90",
        data_hash="a81f22c4",
        zoo_hash="77be0913",
        thresholds={"acceptance": {"tripwire": 1.05}, "accuracy": {"alpha": 0.01}},
        waivers=(rule,),
    )
    return replace(whole, **changes)


def printed(show: Callable[..., None], what: object, width: int = 300) -> str:
    """What is printed on a terminal of this width."""
    console = Console(file=StringIO(), width=width)
    show(what, console)
    return console.file.getvalue()


def changed(cell: CellResult, **changes: object) -> CellResult:
    """A cell with changed values, its own or those of its start."""
    started = {name: changes.pop(name) for name in StartRecord.__struct_fields__ if name in changes}
    return replace(cell, start=replace(cell.start, **started), **changes)


def cell(name: str = "eagle3.k4", **changes: object) -> CellResult:
    """A passing cell with a little of everything; changes may also apply to its start. Its state follows from its gates
    and its error; a red state without a cause makes its lossless gate red, or adds an error."""
    start = StartRecord(
        requested={"model_path": "llama-mini", "speculative_algorithm": "EAGLE3", "speculative_eagle_topk": 4},
        resolved={"algorithm": "EAGLE3", "topk": 4, "spec_version": "v2", "lag": 1, "page_size": 1},
        resolved_hash="0123456789ab",
        reasons=(ReasonRecord("spec_version", "v2", DEFAULT_V2),),
    )
    whole = CellRecord(
        name,
        "PASS",
        start,
        {"algorithm": "eagle3", "topk": "4", "spec_version": "auto", "batch": "mixed_lengths"},
        repro=f"specmatrix run --cells id={name}",
        evidence={"speculated": 12},
        gates=(GateResult("ledger", "PASS", {"verbs": 40}), GateResult("lossless", "PASS", {"tokens": 256})),
        seconds=0.25,
    )
    found = {gate.state for gate in changes.get("gates", ())}
    worst = next(
        (state for state in ("FAIL", "NOT MEASURED") if state in found), "FAIL" if "error" in changes else "PASS"
    )
    state = changes.setdefault("state", worst)
    if state != "PASS" and not {"gates", "error"} & changes.keys() and state in schema.GATE_STATES:
        changes["gates"] = (whole.gates[0], GateResult("lossless", state, {"tokens": 256}))
    elif state != "PASS" and state not in found:
        changes = {"gates": (), "error": f"a reason for {state}"} | changes
    return changed(whole, **changes)


def write_cells(directory: Path, cells: list[CellResult], **header_changes: object) -> Path:
    """A finished report with these cells."""
    with ReportWriter(directory, header(**header_changes)) as writer:
        for each in cells:
            writer.write(each)
    return directory


AXES = {
    "algorithm": ("none", "standalone", "eagle3", "eagle3"),
    "steps": ("auto", "2", "3", "5"),
    "topk": ("1", "1", "2", "4"),
    "spec_version": ("auto", "auto", "v1", "v2"),
    "page_size": ("1", "4", "16", "64"),
    "prefix_cache": ("on", "on", "off"),
    "prefill_chunk": ("off", "7", "32"),
    "batch": ("single", "pair", "mixed_lengths", "burst"),
    "sampling": ("greedy", "greedy", "temperature"),
    "abort": ("none", "none", "running"),
}


def drawn_cells(policy: str = "v2", stride: bool = False, damage: str = "") -> list[CellResult]:
    """80 cells of a matrix; equal arguments give equal cells.

    policy: "v2" (every drafter on v2), or "v1" (trees on v1 with a stated reason). stride: trees on v2 with several
    requests lose text. damage: cells whose id contains this text lose acceptance and accuracy.
    """
    draw = random.Random(7)
    found: dict[str, CellResult] = {}
    while len(found) < 80:
        axes = {"algorithm": draw.choice(AXES["algorithm"])}
        for axis, values in [*AXES.items()][1:]:
            plain = axes["algorithm"] == "none" and axis in ("steps", "topk")
            axes[axis] = "auto" if plain else draw.choice(values)
        words = [text for axis, text in axes.items() if axis == "algorithm" or text not in ("auto", "off", "on")]
        found[".".join(words)] = drawn_cell(".".join(words), axes, policy, stride, damage)
    return list(found.values())


def drawn_cell(name: str, axes: dict[str, str], policy: str, stride: bool, damage: str) -> CellResult:
    """The cell of these axes, with numbers that its name decides."""
    draw = random.Random(name)
    topk = 0 if axes["algorithm"] == "none" else int(axes["topk"])
    steps = 0 if not topk else 3 if axes["steps"] == "auto" else int(axes["steps"])
    version, reasons = axes["spec_version"], ()
    if version == "auto":
        held = topk > 1 and policy == "v1"
        version = "v1" if held else "v2"
        reasons = (ReasonRecord("spec_version", version, TOPK_ON_V1 if held else DEFAULT_V2),)
    resolved = {
        "model_path": "/data/zoo/llama-mini", "algorithm": axes["algorithm"].upper(), "num_steps": steps, "topk": topk,
        "lag": int(version == "v2"), "spec_version": version, "page_size": int(axes["page_size"]),
        "radix_cache": axes["prefix_cache"] == "on", "dtype": "float32",
        "chunked_prefill_size": None if axes["prefill_chunk"] == "off" else int(axes["prefill_chunk"]),
    }  # fmt: skip
    requested = {"model_path": "llama-mini", "speculative_algorithm": axes["algorithm"].upper()}
    broken = stride and topk > 1 and version == "v2" and axes["batch"] != "single"
    lossless = GateResult("lossless", "PASS", {"tokens": 1280, "ties": draw.randrange(2)})
    if broken:
        message = "3 of 1280 tokens differ from plain decoding"
        lossless = GateResult("lossless", "FAIL", {"tokens": 1280, "divergent": 3}, None, message)
    gates = [GateResult("ledger", "PASS", {"verbs": draw.randrange(200, 900)}), lossless, GateResult("config", "PASS")]
    if topk:
        worse = broken or bool(damage and damage in name)
        gates += [drawn_acceptance(draw, steps, worse, broken), drawn_accuracy(draw, worse, broken)]
    return cell(
        name, gates=tuple(gates), axes=axes, requested=requested, resolved=resolved, reasons=reasons,
        resolved_hash=f"{draw.getrandbits(48):012x}", repro=f"specmatrix run --tier cpu --cells id={name} --seed 0",
        evidence={"speculated": 40 * bool(topk), "tree_compacted": 12 * (topk > 1)}, seconds=0.5,
    )  # fmt: skip


def drawn_acceptance(draw: random.Random, steps: int, worse: bool, broken: bool) -> GateResult:
    rate = 0.72 * (0.9 if worse else 1.0)
    mean, reference = (1 + sum(each ** (depth + 1) for depth in range(steps)) for each in (rate, 0.72))
    emitted = [draw.randrange(60, 128) for _ in range(24)]
    rounds = [max(1, round(count / (mean * draw.uniform(0.93, 1.07)))) for count in emitted]
    length = sum(emitted) / sum(rounds)
    rates = [round(rate * 0.97**depth, 4) for depth in range(steps)]
    numbers = {"length": length, "reference": reference, "per_position": rates, "emitted": emitted, "rounds": rounds}
    state, message = ("FAIL", "acceptance fell below its reference") if broken else ("PASS", "")
    return GateResult("acceptance", state, numbers, (length * 0.97, length * 1.03), message)


def drawn_accuracy(draw: random.Random, worse: bool, broken: bool) -> GateResult:
    outcomes = "".join("1" if draw.random() < 0.78 else "0" for _ in range(200))
    if worse:
        outcomes = "".join("0" if index % 9 == 0 else bit for index, bit in enumerate(outcomes))
    share = outcomes.count("1") / 200
    numbers = {"accuracy": share, "baseline": share, "n": 200, "lost": 1, "won": 1, "outcomes": outcomes}
    return GateResult("accuracy", "FAIL" if broken else "PASS", numbers, (share - 0.058, share + 0.055))


@pytest.fixture
def make_header() -> Callable[..., Header]:
    return header


@pytest.fixture
def make_cell() -> Callable[..., CellResult]:
    return cell


@pytest.fixture
def change_cell() -> Callable[..., CellResult]:
    return changed


@pytest.fixture
def write_report() -> Callable[..., Path]:
    return write_cells


def reseal(path: Path, *changes: tuple[str, str]) -> None:
    """Replace texts in a report and write the digest of the result in its end line, as another writer would."""
    *lines, end = path.read_text().splitlines(keepends=True)
    text = "".join(lines)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text + json.dumps(json.loads(end) | {"digest": sha256(text.encode()).hexdigest()}) + "\n")


@pytest.fixture(scope="session")
def resealed() -> Callable[..., None]:
    return reseal


@pytest.fixture
def specimen() -> Callable[..., list[CellResult]]:
    return drawn_cells


@pytest.fixture
def rewritten() -> Callable[..., CellResult]:
    """A cell whose six draft tokens were rewritten to four."""

    def make(
        name: str = "eagle3.n6", reason: str = "a chain verifies steps + 1 tokens", **changes: object
    ) -> CellResult:
        rewrite = schema.RewriteRecord("speculative_num_draft_tokens", 6, 4, reason)
        return cell(name, rewrites=(rewrite,), **changes)

    return make
