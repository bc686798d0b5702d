import pytest

from specmatrix.reports import wording
from specmatrix.reports.schema import GateResult, SubjectRecord, Waiver
from specmatrix.reports.wording import (
    build,
    count,
    duration,
    failure,
    machine,
    provenance,
    shorten,
    shorten_rewrite,
    waiver_text,
)  # fmt: skip
from tests.support.made_reports import made_header


def test_counts_agree_with_their_noun():
    assert [count(number, "cell") for number in (0, 1, 2, 12000)] == ["0 cells", "1 cell", "2 cells", "12,000 cells"]


@pytest.mark.parametrize(("text", "short"), [("a\n b", "a b"), ("12345", "12345"), ("123456", "1234…")])
def test_text_is_one_short_line(text, short):
    assert shorten(text, 5) == short


def test_a_long_rewrite_keeps_the_requested_and_the_resolved_value():
    assert shorten_rewrite("spec_version: v2 -> v1") == "spec_version: v2 -> v1"
    assert shorten_rewrite(f"file: {'a' * 90}\n-> {'b' * 90}") == f"file: {'a' * 59}… -> {'b' * 59}…"
    assert shorten_rewrite("no arrow") == "no arrow"


def test_a_waiver_is_told_in_its_first_words():
    assert waiver_text(Waiver("why", "2026-12-31")) == "why, until 2026-12-31"
    told = waiver_text(Waiver("why [/] " * 99, "2026-12-31", "https://" + "x" * 999))
    assert len(told) < 350 and "… (https://xxx" in told and told.endswith("x…), until 2026-12-31")


def test_long_values_are_shown_from_shortly_before_their_difference():
    head = "[" + "'same', " * 40
    assert shorten_rewrite(f"slots: {head}'one'] -> {head}'two', {'more ' * 40}]") == (
        "slots: …', 'same', 'same', 'one'] -> …', 'same', 'same', 'two', more more more more more more mo…"
    )
    short = "n: aaaaaaaaaaaaaaaaaaaaaaaaaa1 -> aaaaaaaaaaaaaaaaaaaaaaaaaa2"
    assert shorten_rewrite(short) == short


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.421, "0.42 s"), (38.4, "38 s"), (725, "12 min 5 s"), (59.7, "1 min 0 s")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_failure_names_its_red_gates_and_its_error(make_cell):
    gates = (GateResult("ledger", "PASS"), GateResult("lossless", "FAIL", {}, None, "3 tokens differ"),
             GateResult("accuracy", "NOT MEASURED"))  # fmt: skip
    assert failure(make_cell(state="FAIL", gates=gates)) == "lossless: 3 tokens differ; accuracy: NOT MEASURED"
    assert failure(make_cell(state="INFRA", gates=(), error="no memory")) == "no memory"


def test_build_and_machine(make_header):
    assert build(make_header(commit="0123456789abcdef", dirty=True)) == "0123456789ab + changes"
    assert machine(make_header(host={"cpu": "Xeon", "gpus": ["H100"]})) == "Xeon, H100"
    assert machine(make_header(host={})) == "unknown CPU"


def test_builds_of_one_version_are_told_apart_by_their_labels():
    base, head = (made_header(subject=SubjectRecord("sglang", "0.5.13"), label=label) for label in ("base", "pull 7"))
    assert wording.tested(base).endswith(" (base)") and wording.tested(head).endswith(" (pull 7)")
    assert (provenance(head)["label"], "label" in provenance(made_header())) == ("pull 7", False)
