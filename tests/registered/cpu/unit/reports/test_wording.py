from specmatrix.reports import wording
from specmatrix.reports.schema import SubjectRecord
from specmatrix.reports.wording import (
    provenance,
    shorten_rewrite,
)  # fmt: skip
from tests.support.made_reports import made_header


def test_a_long_rewrite_keeps_the_requested_and_the_resolved_value():
    assert shorten_rewrite("spec_version: v2 -> v1") == "spec_version: v2 -> v1"
    assert shorten_rewrite(f"file: {'a' * 90}\n-> {'b' * 90}") == f"file: {'a' * 59}… -> {'b' * 59}…"
    assert shorten_rewrite("no arrow") == "no arrow"


def test_long_values_are_shown_from_shortly_before_their_difference():
    head = "[" + "'same', " * 40
    assert shorten_rewrite(f"slots: {head}'one'] -> {head}'two', {'more ' * 40}]") == (
        "slots: …', 'same', 'same', 'one'] -> …', 'same', 'same', 'two', more more more more more more mo…"
    )
    short = "n: aaaaaaaaaaaaaaaaaaaaaaaaaa1 -> aaaaaaaaaaaaaaaaaaaaaaaaaa2"
    assert shorten_rewrite(short) == short


def test_builds_of_one_version_are_told_apart_by_their_labels():
    base, head = (made_header(subject=SubjectRecord("sglang", "0.5.13"), label=label) for label in ("base", "pull 7"))
    assert wording.tested(base).endswith(" (base)") and wording.tested(head).endswith(" (pull 7)")
    assert (provenance(head)["label"], "label" in provenance(made_header())) == ("pull 7", False)
