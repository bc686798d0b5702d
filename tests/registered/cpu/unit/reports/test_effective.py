import pytest

from specmatrix.reports.effective import effective, pair_text, word


def test_start_axes_take_the_resolved_value_and_request_axes_their_own():
    axes = {"algorithm": "eagle3", "steps": "auto", "prefill_chunk": "off", "prefix_cache": "on", "batch": "pair"}
    axes |= {"mixed_chunk": "on"}
    resolved = {"algorithm": "EAGLE3", "num_steps": 5, "chunked_prefill_size": None, "radix_cache": False}
    resolved |= {"enable_mixed_chunk": False}
    ran = {"algorithm": "eagle3", "steps": "5", "prefill_chunk": "off", "prefix_cache": "off", "batch": "pair"}
    assert effective(axes, resolved) == ran | {"mixed_chunk": "off"}


def test_a_cell_that_did_not_run_keeps_its_request():
    assert effective({"topk": "4"}, None) == {"topk": "4"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "off"), (False, "off"), (True, "on"), (0, "0"), (1, "1"), ("EAGLE3", "eagle3"), (0.5, "0.5")],
)
def test_values_read_as_words(value, text):
    assert word(value) == text


def test_a_pair_reads_as_text():
    assert pair_text((("spec_version", "v2"), ("topk", "4"))) == "(spec_version=v2, topk=4)"
