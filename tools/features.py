"""Prints the table of engines and features in the README: `python -m tools.features`.

A column is an engine's cells, a row a selector of them in features.yaml. The waivers in examples/ say which cells of a
lock file are not exact, as in the runs of reports/log/stages.md; of stored reports the red gates do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from packaging.specifiers import SpecifierSet

from specmatrix import HOME
from specmatrix.matrix.cells.cell import HYBRIDS, Cell
from specmatrix.matrix.cells.selector import parse_selector
from specmatrix.matrix.cover.lockfile import own_lock_file, read
from specmatrix.matrix.run.waivers import load_waivers
from specmatrix.reports.frames import load

ROWS: Final = Path(__file__).with_suffix(".yaml")
# What a red gate means; of any other, an answer is wrong.
MEANINGS: Final = {"acceptance": "slow", "rejection": "slow", "crash": "failing"}
WORST_FIRST: Final = ("wrong", "failing", "slow")
REPORTS: Final = HOME / "reports" / "baselines"


class Engine(NamedTuple):
    """A column. reports: stored runs of its cells; without any it has a lock file."""

    name: str
    subject: str
    version: str
    reports: tuple[str, ...] = ()

    def verdicts(self) -> dict[Cell, dict[str, str]]:
        """Each cell's red gates, with the address of its public issue, if any."""
        waivers = HOME / "examples" / f"{self.subject}-waivers.yaml"
        chosen = [
            (parse_selector(rule.cells), rule)
            for rule in (load_waivers(waivers) if waivers.exists() else ())
            if rule.subject == self.subject and self.version in SpecifierSet(rule.versions or "", prereleases=True)
        ]
        if not self.reports:
            cells = read(own_lock_file(self.subject)).upto("pr")
            return {cell: {rule.gate: rule.issue for fits, rule in chosen if fits(cell)} for cell in cells}
        gates = load(*(REPORTS / name for name in self.reports)).gates
        red = {text: sorted(part["gate"][part["verdict"] != "PASS"]) for text, part in gates.groupby("id")}
        return {
            (cell := Cell.from_id(text)): dict.fromkeys(names, "")
            | {rule.gate: rule.issue for fits, rule in chosen if rule.gate in names and fits(cell)}
            for text, names in red.items()
        }


ENGINES: Final = (
    Engine("transformers 5.17", "transformers", "5.17.0"),
    Engine("vLLM 0.32, CPU", "vllm", "0.32.0"),
    Engine(
        "SGLang 0.5.13, H200",
        "sglang",
        "0.5.13.post1",
        tuple(
            f"sglang/0.5.13.post1-{name}.jsonl.gz"
            for name in (
                *("plain", "v2-chain", "v2-tree", "chain", "tree-page16", "standalone", "ngram"),
                *("hybrid-plain", "hybrid-nextn", "hybrid-standalone", "hybrid-ngram"),
            )
        ),
    ),
    Engine("llama.cpp 11434, CPU", "llamacpp", "11434.0.0"),
    Engine("OpenVINO GenAI 2026.4, CPU", "openvino", "2026.4.1.0"),
    Engine("ONNX Runtime GenAI 0.18, CPU", "onnxruntime-genai", "0.18.0"),
    Engine("mlx-lm 0.32, CPU", "mlx-lm", "0.32.2"),
)


def table() -> str:
    """The table in Markdown."""
    rows: dict[str, str] = msgspec.yaml.decode(ROWS.read_bytes(), type=dict[str, str])
    columns = [engine.verdicts() for engine in ENGINES]
    lines = [["cells of", *(engine.name for engine in ENGINES)], ["---"] * (1 + len(ENGINES))]
    for name, text in rows.items():
        selector = parse_selector(text)
        hybrid = name.startswith("recurrent")
        chosen = (
            [gates for cell, gates in cells.items() if (cell.model in HYBRIDS) == hybrid and selector(cell)]
            for cells in columns
        )
        lines.append([name, *map(_verdict, chosen)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _verdict(cells: Sequence[Mapping[str, str]]) -> str:
    """What the red gates of some cells mean, and the issues."""
    worst = Counter(_meaning(gates) for gates in cells)
    said = [f"{worst[word]} {word}" for word in ("exact", *WORST_FIRST) if word in worst]
    issues = dict.fromkeys(issue for gates in cells for issue in gates.values() if issue)
    return ", ".join([*said, *(f"[#{issue.rpartition('/')[2]}]({issue})" for issue in issues)]) or "–"


def _meaning(gates: Iterable[str]) -> str:
    """The worst that a cell's red gates mean."""
    # Slower rounds end elsewhere than the oracle's, where a cell needs an end inside one.
    judged = {*gates} - {"finish"} if {*gates} == {"acceptance", "finish"} else gates
    found = {MEANINGS.get(gate, "wrong") for gate in judged}
    return next((word for word in WORST_FIRST if word in found), "exact")


if __name__ == "__main__":
    print(table(), end="")
