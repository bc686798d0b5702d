from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.golden.products import EVERY, products, where_of

AXES = ("model", "spec_version", "overlap")
POINTS = list(product(*(axis(name).names for name in AXES)))


def cell_of(values):
    return Cell(**dict(zip(AXES, values, strict=True)))


@given(st.lists(st.sampled_from(["a", "b", None]), min_size=len(POINTS), max_size=len(POINTS)))
def test_each_combination_is_only_in_products_of_its_outcome(outcomes):
    table = dict(zip(POINTS, outcomes, strict=True))
    found = [(outcome, where_of(text)) for outcome, text in products(AXES, table)]
    for values, outcome in table.items():
        within = {name for name, where in found if where(cell_of(values))}
        assert outcome is None or within == {outcome}


def test_what_never_matters_is_not_spelt_out():
    table = {values: "a" if values[0] == "qwen3" else None if values[2] == "off" else "b" for values in POINTS}
    others = ",".join(name for name in axis("model").names if name != "qwen3")
    assert list(products(AXES, table)) == [("b", f"model={others}"), ("a", "model=qwen3")]
    assert list(products(AXES, dict.fromkeys(POINTS, "a"))) == [("a", EVERY)]
    assert list(products((), {(): "a"})) == [("a", EVERY)]
    assert where_of(EVERY)(Cell())


def test_a_renamed_outcome_moves_nothing():
    table = {values: "a" if values[1] == "v2" else "b" for values in POINTS}
    renamed = {values: "z" if outcome == "a" else outcome for values, outcome in table.items()}
    assert [where for _, where in products(AXES, table)] == [where for _, where in products(AXES, renamed)]


def test_a_product_within_others_is_dropped():
    """Two overlapping products contain everything that a third would."""
    names = axis("spec_version").names
    table = {values: "a" if values[1] != names[0] or values[2] == "on" else "b" for values in POINTS}
    wheres = [where for outcome, where in products(AXES, table) if outcome == "a"]
    assert wheres == ["overlap=on", "spec_version=v1,v2"]
