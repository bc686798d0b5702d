"""Batch-invariant products: the law, the implementations that are tried, and the error of a machine without any."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.api import LLM
from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.models import linear_ops as module
from specmatrix.engine.models.linear_ops import FAST, FORMS, MAX_ROWS, RowInvariantOps, holds, linear_ops
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import resolve_path

SHAPES = ((128, 256), (128, 768), (384, 128), (384, 96), (192, 160), (96, 320), (64, 768), (160, 64), (3, 14, 21))


@pytest.fixture(autouse=True)
def afresh():
    torch.set_num_threads(1)
    holds.cache_clear()
    yield
    holds.cache_clear()


@pytest.mark.parametrize("deterministic", [True, False])
def test_both_kinds_of_products_are_products(deterministic):
    form = linear_ops(deterministic)
    assert (form is FAST) is not deterministic
    out, x, weight = torch.randn(5, 8), torch.randn(5, 12), torch.randn(12, 8)
    torch.testing.assert_close(form.linear(x, form.hold(weight)), x @ weight)
    into = torch.empty(5, 8)
    assert form.linear(x, weight, into).data_ptr() == into.data_ptr()
    torch.testing.assert_close(into, x @ weight)
    wanted = out + x @ weight
    form.add(out, x, weight)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(form.each(x[None], weight[None])[0], x @ weight)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 25, MAX_ROWS, 2 * MAX_ROWS + 5])
def test_every_form_is_a_product(form, rows):
    for lead in ((), (3,)):
        x, weight = torch.randn(*lead, rows, 12), torch.randn(*lead, 12, 8)
        torch.testing.assert_close(form(x, weight), x @ weight)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_keep_their_bits_whatever_the_blas(shape):
    """Beyond the cases of the law: every number of rows, and split products."""
    held = linear_ops(True)
    weight = held.hold(torch.randn(shape))
    x = torch.randn(*shape[:-2], 2 * MAX_ROWS + 9, shape[-2])
    multiply = held.linear if len(shape) == 2 else held.each
    whole = multiply(x, weight)
    for rows in (*range(1, 80), MAX_ROWS, MAX_ROWS + 1, 2 * MAX_ROWS):
        assert torch.equal(multiply(x[..., :rows, :], weight), whole[..., :rows, :]), rows
    if len(shape) == 2:
        out = torch.randn(x.shape[0], shape[1])
        wanted = out + whole
        held.add(out, x, weight)
        assert torch.equal(out, wanted)


def uneven(blocks):
    """A matmul whose rows depend on their position, unless they come in one of `blocks`."""

    def matmul(x, weight):
        rows = x.shape[-2]
        fits = any(rows % block == 0 if block else rows == 1 for block in blocks)
        return x @ weight * (1.0 if fits else torch.arange(rows, 2.0 * rows)[:, None])

    return matmul


@pytest.mark.parametrize(
    ("blocks", "name"),
    [((1,), "plain"), ((8,), "padded to 8"), ((24,), "padded to 24"), ((64,), "padded to 64"), ((0,), FORMS[-1].name)],
)
def test_the_first_form_that_holds_is_taken(blocks, name, monkeypatch):
    monkeypatch.setattr(torch, "matmul", uneven(blocks))
    rows = RowInvariantOps()
    rows.hold(torch.zeros(6, 4))
    assert rows.names == name


def test_each_shape_of_a_model_has_its_form(monkeypatch):
    """The first weight needs more than the second."""
    tried = []

    def law(form, shape, dtype, threads):
        tried.append((form.name, shape))
        return form.block >= shape[0]

    monkeypatch.setattr(module, "holds", law)
    rows = RowInvariantOps()
    rows.hold(torch.zeros(24, 4))
    assert rows.names == "padded to 24"
    rows.hold(torch.zeros(8, 4))
    assert rows.names == "padded to 8 and padded to 24"
    assert ("padded to 24", (8, 4)) not in tried


def test_a_machine_without_such_products_is_refused(monkeypatch):
    monkeypatch.setattr(module, "holds", lambda *_: False)
    forms = ", ".join(form.name for form in FORMS)
    sentence = (
        rf"in products \[rows, in\] @ \[6, 4\] in float32, a row's bits .* \({forms}\); remove the flag, or set MKL"
    )
    with pytest.raises(ConfigError, match=f"^enable_deterministic_inference: on this machine, {sentence}"):
        RowInvariantOps().hold(torch.zeros(6, 4))


def test_a_shape_is_tried_once_in_a_process(monkeypatch):
    counted = []
    matmul = torch.matmul
    monkeypatch.setattr(torch, "matmul", lambda *given: counted.append(1) or matmul(*given))
    RowInvariantOps().hold(torch.zeros(6, 4))
    first = len(counted)
    RowInvariantOps().hold(torch.zeros(6, 4))
    assert 0 < first == len(counted)


def test_an_engine_shows_its_form():
    llm = LLM(EngineConfig("llama-mini", enable_deterministic_inference=True), resolve_path)
    layers, *head = llm.readback()["row_invariant_matmul"].split(" and ")
    assert layers == "compiled" and head and set(head) <= {form.name for form in FORMS}
    assert LLM(EngineConfig("llama-mini"), resolve_path).readback()["row_invariant_matmul"] is None


def test_the_law_can_fail(monkeypatch):
    assert holds(FORMS[-1], (6, 4), torch.float32, 1)
    monkeypatch.setattr(torch, "matmul", uneven(()))
    assert not holds(FORMS[1], (6, 4), torch.float32, 1)
