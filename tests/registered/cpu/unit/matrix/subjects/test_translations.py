"""The golden translations: what each subject makes of the cells of `reviewed_cells.yaml`, reviewed as a diff.

`python -m pytest tests/registered/cpu/unit/matrix/subjects/test_translations.py --force-regen` writes them anew.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.contract import REQUESTED, Law, check_contract
from specmatrix.matrix.subjects.protocol import EngineCommand, Subject, SubjectRequest, Unsupported
from specmatrix.matrix.subjects.registry import BUILT_IN, load_subject
from specmatrix.matrix.subjects.translations import translated
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.reports.wording import count
from tests.support.tiny_subject import ReplaySubject, TinySubject

SUBJECTS = [*(subject for name in BUILT_IN if not (subject := load_subject(name)).profile.in_process), TinySubject()]
REVIEWED = msgspec.yaml.decode(Path(__file__).with_name("reviewed_cells.yaml").read_bytes(), type=dict[str, list[str]])
# Of a cell's asks, and each other one with fields of its own; the rest differ from these in prompt, seed and length.
SHOWN = 3


def translation_table(subject: Subject, cells: Iterable[Cell]) -> str:
    """Each start once with the cells that share it and their asks, then the unsupported cells by reason."""
    starts: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for cell in cells:
        command = translated(subject, prepare(cell, workload=subject.requests, subject=subject.name))
        if isinstance(command, Unsupported):
            reasons.setdefault(command.reason, []).append(cell.id)
            continue
        models = {**command.checkpoints, **({"variant": command.variant} if command.variant else {})}
        words = [dict(command.flags), models, dict(command.environment)]
        lines = starts.setdefault(" ".join(json.dumps(word, sort_keys=True) for word in words if word), [])
        lines.append(f"  {cell.id}: {count(len(command.asks), 'ask')}")
        lines += [
            f"    {_ask_text(ask)}" for ask in _shown([ask for ask in command.asks if isinstance(ask, SubjectRequest)])
        ]
    rows = [line for start, lines in starts.items() for line in (start, *lines)]
    rows += [line for reason, ids in reasons.items() for line in (f"UNSUPPORTED: {reason}", *(f"  {id}" for id in ids))]
    return "\n".join(rows) + "\n"


def _shown(asks: Sequence[SubjectRequest]) -> list[SubjectRequest]:
    """The first asks, and the first of those after them with other fields."""
    others = {frozenset(ask.fields): ask for ask in reversed(asks)}
    return [ask for place, ask in enumerate(asks) if place < SHOWN or others[frozenset(ask.fields)] is ask]


def _ask_text(ask: SubjectRequest) -> str:
    """An ask in one line: tokens of its prompt, fields, and what else it has."""
    plain = dataclasses.replace(ask, id="", input_ids=(), fields={})
    more = {} if plain == SubjectRequest("", (), {}) else {"after": ask.after, "abort_after": ask.abort_after}
    text = f"{ask.id} after {count(len(ask.input_ids), 'token')}: {json.dumps(dict(ask.fields), sort_keys=True)}"
    return text + (f" {json.dumps(more)}" if more else "")


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_cells_are_translated_as_reviewed(subject: Subject, file_regression):
    cells = map(Cell.from_id, REVIEWED[subject.name])
    file_regression.check(translation_table(subject, cells), extension=".txt")


class Untranslated(ReplaySubject):
    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        return Unsupported(" ")


def found(law: Law) -> str:
    """How the law is broken, "" if it holds."""
    return "; ".join(law.check() or ())


@pytest.mark.parametrize(
    "name",
    [
        *("transformers", "transformers-dynamic", "transformers-early-exit", "vllm", "vllm-suffix", "llamacpp"),
        *("openvino", "onnxruntime-genai", "mlx-lm"),
    ],
)
def test_own_foreign_subjects_translate_every_request_field(name: str):
    for law in islice(check_contract(load_subject(name)), 2):
        assert found(law) == "", law.name


def test_every_request_field_is_in_the_contract_or_no_engines_affair():
    ours = {"own", "name", "prompt", "answer", "after", "session", "closes_after", "refused", "beside", "clock"}
    ours |= {"stream", "replaced", "renewal", "retract_after", "stuck", "ours", "loose"}
    assert {each.name for each in dataclasses.fields(RequestSpec)} == ours | set(REQUESTED)


def test_a_subject_without_a_plain_cell_has_no_contract():
    checks = check_contract(Untranslated())
    assert [next(checks).name, next(checks).name] == ["translations are pure data", "no request field is ignored"]
    with pytest.raises(ConfigError, match=r"^subject 'replay' supports neither none.pair nor none$"):
        next(checks)
