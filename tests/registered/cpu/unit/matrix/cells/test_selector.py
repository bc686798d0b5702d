import pytest

from specmatrix.errors import shown
from specmatrix.matrix.cells.axes import NAMES, START_AXES
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.cells.selector import HELP, parse_selector
from tests.support.refusals import refusal
from tests.support.tables import table

IDS = {"tree": "eagle3.s3.k4.n8.v2.mixed_lengths", "chain": "eagle3.s3.k1.p16", "plain": "none.tight.pair"}
TABLE = table(__file__)
CELLS = {name: Cell.from_id(text) for name, text in IDS.items()}


@pytest.mark.parametrize(("text", "names"), TABLE["selected"].items())
def test_selects(text, names):
    selector = parse_selector(text)
    assert [name for name, cell in CELLS.items() if selector(cell)] == names


def test_a_selector_knows_the_axes_that_it_reads():
    assert parse_selector("not (topk=1 or algorithm!=none and topk in (2, 4))").axes == ("algorithm", "topk")
    assert parse_selector("topk=1 or none").axes == NAMES


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *(
            (text, f"selector {shown(text)} is incomplete, or has something out of place; {HELP}")
            for text in TABLE["incomplete"]
        ),
        ("topk=4 & batch=pair", f"selector 'topk=4 & batch=pair' has the invalid character '&'; {HELP}"),
        ("not " * 101 + "topk=4", f"selector '{'not ' * 101}topk=4"[:209] + "... nests more than 100 levels deep"),
        ("topk in (4, 3)", "topk has no value '3'; it must be one of auto, 1, 2, 4"),
        ("width=3", f"axis 'width' is unknown; it must be one of {', '.join(NAMES)}"),
        ("eagl3", "cell id 'eagl3' has an unknown part 'eagl3'; the closest is eagle3"),
        ("topq", "axis 'topq' is unknown; the closest is topk"),
        ("eagle3.k5", "cell id 'eagle3.k5' has an unknown part 'k5'; the closest are k1, k2, k4"),
        ("width", f"'width' is neither a cell id nor a selector; {HELP}"),
    ],
)
def test_a_bad_selector_is_refused_in_one_sentence(text, sentence):
    assert refusal(parse_selector, text) == sentence


@pytest.mark.parametrize("text", TABLE["starts"])
def test_a_start_is_ruled_out_or_let_in_only_if_all_of_its_cells_are(text):
    selector = parse_selector(text)
    starts = [Cell.from_id(start) for start in ("eagle3", "eagle3.p4", "eagle3.s3.k4.n8", "none", "none.p16")]
    for start in starts:
        picked = [selector(start._replace(batch=batch)) for batch in ("single", "pair", "mixed_lengths", "burst")]
        for known in (start[: len(START_AXES)], start[:4], ()):
            assert selector.may(known) or not any(picked)
            assert not selector.must(known) or all(picked)
    # The two bounds decide what they can: a condition on the start alone leaves nothing open.
    if "batch" not in text and "." not in text:
        assert all(
            selector.may(start[: len(START_AXES)]) == selector.must(start) == selector(start) for start in starts
        )


@pytest.mark.parametrize("word", ["or", "and"])
def test_a_selector_may_join_thousands(word):
    selector = parse_selector(f" {word} ".join(["topk=4"] * 5_000))
    assert selector(Cell.from_id("eagle3.s3.k4.n8")) and not selector(Cell.from_id("none"))
