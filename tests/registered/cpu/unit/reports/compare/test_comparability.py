import pytest
from msgspec import structs

from specmatrix.reports.compare.comparability import incomparable_gates, mismatches, threshold_changes, waiver_changes
from specmatrix.reports.schema import GATES, SubjectRecord, WaiverRule


def test_equal_headers_match(make_header):
    assert mismatches(make_header(), make_header(commit="other", created="2027-01-01T00:00:00+00:00")) == ()


@pytest.mark.parametrize(
    ("change", "name", "gates"),
    [
        ({"subject": SubjectRecord("tiny", "1")}, "subject", set(GATES)),
        ({"data_hash": "x"}, "data", {"lossless", "distribution", "finish", "acceptance", "accuracy", "speed"}),
        ({"zoo_hash": "x"}, "zoo", {"lossless", "distribution", "finish", "acceptance", "accuracy", "speed"}),
        ({"host": {"cpu": "Xeon 2 cores", "gpus": ["H100"]}}, "gpus", {"acceptance", "accuracy"}),
        ({"seed": 5}, "seed", {"acceptance", "accuracy", "distribution", "speed"}),
        ({"lock_hash": "x"}, "lock", set()),
        ({"tier": "gpu1"}, "tier", set()),
        ({"stage": "nightly"}, "stage", set()),
        ({"host": {"cpu": "EPYC", "gpus": []}}, "cpu", set()),
        ({"versions": {"python": "3.11.7", "torch": "2.12.0", "specmatrix": "0.1.0"}}, "torch", set()),
        ({"files": ("mine.py 0f3c2a9d41b7",)}, "files", set()),
        ({"dirty": True}, "head checkout", set()),
        ({"fault": "bonus-stride"}, "head fault", set()),
    ],
)
def test_each_changed_input_is_named_with_what_it_affects(make_header, change, name, gates):
    found = mismatches(make_header(), make_header(**change))
    assert [mismatch.name for mismatch in found] == [name]
    assert incomparable_gates(found) == gates
    assert found[0].why
    assert found[0].base != found[0].head


def test_more_gpus_of_one_kind_are_the_same_hardware(make_header):
    one, eight = (make_header(host={"cpu": "x", "gpus": ["H100"] * count}) for count in (1, 8))
    assert mismatches(one, eight) == ()
    [found] = mismatches(eight, make_header(host={"cpu": "x", "gpus": ["H200"]}))
    assert (found.base, found.head) == ('["H100"]', '["H200"]')


def test_thresholds_that_moved(make_header):
    head = make_header(thresholds={"acceptance": {"tripwire": 1.01}, "lossless": {"ties": 2}})
    assert [(rule.name, rule.base, rule.head) for rule in threshold_changes(make_header(), head)] == [
        ("acceptance.tripwire", "1.05", "1.01"),
        ("accuracy.alpha", "0.01", ""),
        ("lossless.ties", "", "2"),
    ]


def test_waivers_that_changed(make_header):
    rule = make_header().waivers[0]
    longer = structs.replace(rule, expiry="2027-06-30")
    other = WaiverRule("topk=4", "new", "2026-10-01", "lossless", "flaky", "tiny", ">=1", "", "q1")
    changes = waiver_changes(make_header(), make_header(waivers=(longer, other)))
    old, new = (f"known until {day}: drafts leak on abort" for day in ("2026-12-31", "2027-06-30"))
    assert [(change.name, change.base, change.head) for change in changes] == [
        (f"crash of {rule.cells}", old, new),
        ("lossless of topk=4, 'q1' (tiny >=1)", "", "flaky until 2026-10-01: new"),
    ]


def test_another_version_of_a_subject_is_part_of_the_comparison(make_header):
    old, new = (make_header(subject=SubjectRecord("tiny", version)) for version in ("1", "2"))
    (found,) = mismatches(old, new)
    assert (found.name, found.base, found.head, found.gates) == ("tiny", "1", "2", ())
