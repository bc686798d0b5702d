"""Made-up reports with the shape of real ones: a small matrix, a few drafters, and defects on demand."""

import json
import random
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import replace

from specmatrix.reports.schema import (
    GATE_STATES,
    CellRecord,
    CellResult,
    GateResult,
    Header,
    ReasonRecord,
    RewriteRecord,
    StartRecord,
    WaiverRule,
)
from specmatrix.reports.store import ReportWriter

TOPK_ON_V1 = "trees run on v1 until the tree gates are green on v2"
DEFAULT_V2 = "the overlap schedule is on"


def header(**changes: object) -> Header:
    """A header of a clean pr run on the CPU tier."""
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
        waivers=(WaiverRule("algorithm=eagle3 and not batch in (single, pair)", "drafts leak on abort", "2026-12-31"),),
    )
    return replace(whole, **changes)


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
        id=name,
        state="PASS",
        start=start,
        axes={"algorithm": "eagle3", "topk": "4", "spec_version": "auto", "batch": "mixed_lengths"},
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
    if state != "PASS" and not {"gates", "error"} & changes.keys() and state in GATE_STATES:
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


class Specimen:
    """Draws a matrix of cells; equal arguments give equal cells.

    policy: "v2" (every drafter on v2), or "v1" (trees on v1 with a stated reason). stride: trees on v2 with several
    requests lose text. damage: cells whose id contains this text lose acceptance and accuracy.
    """

    def __init__(self, policy: str = "v2", stride: bool = False, damage: str = "", cells: int = 80) -> None:
        self.policy, self.stride, self.damage = policy, stride, damage
        self.wanted = cells

    def cells(self) -> list[CellResult]:
        draw = random.Random(7)
        found: dict[str, CellResult] = {}
        while len(found) < self.wanted:
            algorithm = draw.choice(("none", "standalone", "eagle3", "eagle3"))
            axes = {
                "algorithm": algorithm,
                "steps": "auto" if algorithm == "none" else draw.choice(("auto", "2", "3", "5")),
                "topk": "auto" if algorithm == "none" else draw.choice(("1", "1", "2", "4")),
                "spec_version": draw.choice(("auto", "auto", "v1", "v2")),
                "page_size": draw.choice(("1", "4", "16", "64")),
                "prefix_cache": draw.choice(("on", "on", "off")),
                "prefill_chunk": draw.choice(("off", "7", "32")),
                "batch": draw.choice(("single", "pair", "mixed_lengths", "burst")),
                "sampling": draw.choice(("greedy", "greedy", "temperature")),
                "abort": draw.choice(("none", "none", "running")),
            }
            each = self.cell(axes)
            found[each.id] = each
        return list(found.values())

    def cell(self, axes: dict[str, str]) -> CellResult:
        name = ".".join(
            value for axis, value in axes.items() if axis == "algorithm" or value not in ("auto", "off", "on")
        )
        draw = random.Random(name)
        topk = 0 if axes["algorithm"] == "none" else int(axes["topk"])
        steps = 0 if not topk else 3 if axes["steps"] == "auto" else int(axes["steps"])
        width = 1 if not topk else steps + 1 if topk == 1 else 8
        version, reasons = self.version(axes["spec_version"], topk)
        resolved = {
            "model_path": "/data/zoo/llama-mini", "draft_path": None, "algorithm": axes["algorithm"].upper(),
            "num_steps": steps, "topk": topk, "num_draft_tokens": width, "lag": int(version == "v2"),
            "spec_version": version, "page_size": int(axes["page_size"]), "radix_cache": axes["prefix_cache"] == "on",
            "chunked_prefill_size": None if axes["prefill_chunk"] == "off" else int(axes["prefill_chunk"]),
            "max_running_requests": 48, "dtype": "float32", "device": "cpu",
        }  # fmt: skip
        broken = self.stride and topk > 1 and version == "v2" and axes["batch"] != "single"
        waived = None
        gates = self.gates(draw, name, topk, steps, broken)
        state = "FAIL" if any(gate.state == "FAIL" for gate in gates) else "PASS"
        requested = {"model_path": "llama-mini", "speculative_algorithm": axes["algorithm"].upper()}
        start = StartRecord(requested, resolved, f"{draw.getrandbits(48):012x}", reasons)
        return CellRecord(
            id=name, state=state, start=start, axes=axes,
            repro=f"specmatrix run --tier cpu --cells id={name} --seed 0", waived=waived,
            evidence={"speculated": 40 * bool(topk), "tree_compacted": 12 * (topk > 1)}, gates=gates,
            seconds=round(draw.uniform(0.05, 0.9), 4),
        )  # fmt: skip

    def version(self, asked: str, topk: int) -> tuple[str, tuple[ReasonRecord, ...]]:
        if asked != "auto":
            return asked, ()
        if topk > 1 and self.policy == "v1":
            return "v1", (ReasonRecord("spec_version", "v1", TOPK_ON_V1),)
        return "v2", (ReasonRecord("spec_version", "v2", DEFAULT_V2),)

    def gates(self, draw: random.Random, name: str, topk: int, steps: int, broken: bool) -> tuple[GateResult, ...]:
        lossless = {"tokens": 1280, "divergent": 3 if broken else 0, "ties": draw.randrange(2), "first_divergence": ""}
        message = ""
        if broken:
            lossless["first_divergence"] = f"prompt 2, token {draw.randrange(9, 60)}: 417 instead of 88, margin 1.93"
            message = "3 of 1280 tokens differ from plain decoding"
        rows = [
            GateResult("ledger", "PASS", {"verbs": draw.randrange(200, 900)}),
            GateResult("lossless", "FAIL" if broken else "PASS", lossless, None, message),
            GateResult("finish", "PASS", {"finished": 9}),
            GateResult("config", "PASS"),
            GateResult("effective", "PASS", {"counters": 4}),
        ]
        if topk:
            rows += [self.acceptance(draw, name, topk, steps, broken), self.accuracy(draw, name, broken)]
        return tuple(rows)

    def acceptance(self, draw: random.Random, name: str, topk: int, steps: int, broken: bool) -> GateResult:
        rate = (0.55 if "standalone" in name else 0.72) + 0.05 * (topk > 1)
        plain = rate
        rate *= 0.85 if broken else 0.9 if self.damage and self.damage in name else 1.0
        per_position = [round(rate * 0.97**depth, 4) for depth in range(steps)]
        mean = 1 + sum(rate ** (depth + 1) for depth in range(steps))
        reference = 1 + sum(plain ** (depth + 1) for depth in range(steps))
        emitted = [draw.randrange(60, 128) for _ in range(24)]
        rounds = [max(1, round(count / (mean * draw.uniform(0.93, 1.07)))) for count in emitted]
        length = sum(emitted) / sum(rounds)
        numbers = {
            "length": round(length, 4), "reference": round(reference, 4), "per_position": per_position,
            "emitted": emitted, "rounds": rounds,
        }  # fmt: skip
        low, high = length * 0.97, length * 1.03
        if broken:
            return GateResult("acceptance", "FAIL", numbers, (low, high), "acceptance fell below its reference")
        return GateResult("acceptance", "PASS", numbers, (low, high))

    def accuracy(self, draw: random.Random, name: str, broken: bool) -> GateResult:
        right = 0.66 if broken else 0.78
        outcomes = "".join("1" if draw.random() < right else "0" for _ in range(200))
        if self.damage and self.damage in name:
            outcomes = "".join("0" if index % 9 == 0 else bit for index, bit in enumerate(outcomes))
        share = outcomes.count("1") / 200
        lost = 25 if broken else 1
        numbers = {
            "accuracy": share,
            "baseline": share + (lost - 1) / 200,
            "n": 200,
            "lost": lost,
            "won": 1,
            "outcomes": outcomes,
        }
        interval = (round(share - 0.058, 4), round(share + 0.055, 4))
        return GateResult(
            "accuracy", "FAIL" if broken else "PASS", numbers, interval, "25 lost, 1 won" if broken else ""
        )


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
def specimen() -> type[Specimen]:
    return Specimen


@pytest.fixture
def rewritten() -> Callable[..., CellResult]:
    """A cell whose six draft tokens were rewritten to four."""

    def make(
        name: str = "eagle3.n6", reason: str = "a chain verifies steps + 1 tokens", **changes: object
    ) -> CellResult:
        rewrite = RewriteRecord("speculative_num_draft_tokens", 6, 4, reason)
        return cell(name, rewrites=(rewrite,), **changes)

    return make
