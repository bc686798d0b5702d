"""The golden translations: what each subject makes of the cells of `reviewed_cells.yaml`, reviewed as a diff.

`python -m pytest tests/registered/cpu/unit/matrix/subjects/test_translations.py --force-regen` writes them anew.
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from tests.support import tiny_subject
from tests.support.tiny_subject import ReplaySubject, TinySubject, fields

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


def test_a_table_lists_starts_asks_and_reasons():
    cells = [Cell.from_id(text) for text in ("eagle3.s3.k1", "eagle3.s3.k1.pair.abort_running", "eagle3.s3.k1.p4")]
    lines = translation_table(TinySubject(), cells).splitlines()
    assert lines[0] == '{"depth": 3, "drafter": "eagle3"} {"draft": "llama-mini-eagle3", "target": "llama-mini"}'
    assert lines[1] == "  eagle3.s3.k1: 1 ask" and lines[3] == "  eagle3.s3.k1.pair.abort_running: 2 asks"
    assert lines[5].endswith('{"after": [], "abort_after": 5}')
    assert lines[-2:] == ["UNSUPPORTED: it has no page_size", "  eagle3.s3.k1.p4"]


@dataclass
class Untranslated(ReplaySubject):
    """Translates a cell in a way that the contract forbids."""

    wrong: str = ""
    calls: int = 0

    def translate(self, prepared: PreparedCell) -> EngineCommand | Unsupported:
        self.calls += 1
        flags = {"calls": self.calls} if self.wrong == "impure" else {"set": {1}} if self.wrong == "data" else {}
        return Unsupported(" ") if self.wrong == "silent" else EngineCommand(flags, {})


def found(law: Law) -> str:
    """How the law is broken, "" if it holds."""
    return "; ".join(law.check() or ())


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ("impure", "; the same each time; two"),
        ("data", " as JSON; Object of type set is not JSON serializable"),
        ("silent", "; a reason if it is unsupported; ' '"),
        ("", "'q10', 'q5.again']; []"),
    ],
)
def test_the_contract_forbids(wrong: str, fault: str):
    law = next(check_contract(Untranslated(wrong=wrong)))
    assert law.name == "translations are pure data" and found(law).endswith(fault)


@pytest.mark.parametrize(
    "name", ["transformers", "transformers-dynamic", "transformers-early-exit", "vllm", "vllm-suffix"]
)
def test_own_foreign_subjects_translate_every_request_field(name: str):
    for law in islice(check_contract(load_subject(name)), 2):
        assert found(law) == "", law.name


def test_the_contract_names_what_translate_raised_and_forbids_to_ignore_a_field(monkeypatch):
    def faults(change) -> list[str]:
        monkeypatch.setattr(tiny_subject, "fields", change)
        return [found(law) for law in islice(check_contract(TinySubject()), 2)]

    for fault in faults(lambda request: 1 / 0):
        assert "; translate raised ZeroDivisionError: division by zero (" in fault and Path(__file__).name in fault
    for name, text in (
        ("nothing", ""),
        ("top_p", "the translation of a request with top_p "),
        ("stop", "the translation of a request with stop "),
    ):
        fault = faults(lambda request, name=name: {**fields(request), name: None})[1]
        assert fault.startswith(text) and bool(fault) == bool(text)


def test_every_request_field_is_in_the_contract_or_no_engines_affair():
    ours = {"own", "name", "prompt", "answer", "after", "session", "closes_after", "refused", "beside", "clock"}
    ours |= {"stream", "replaced", "renewal", "retract_after"}
    assert {each.name for each in dataclasses.fields(RequestSpec)} == ours | set(REQUESTED)


def test_a_subject_without_a_plain_cell_has_no_contract():
    checks = check_contract(Untranslated(wrong="silent"))
    assert [next(checks).name, next(checks).name] == ["translations are pure data", "no request field is ignored"]
    with pytest.raises(ConfigError, match=r"^subject 'replay' supports neither none.pair nor none$"):
        next(checks)
