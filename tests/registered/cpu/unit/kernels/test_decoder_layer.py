"""A compiled decoder layer: a row depends on itself and on the keys that it sees, and bad arguments are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from specmatrix.engine.models.layers import Norm
from specmatrix.errors import KernelError
from specmatrix.kernels.decoder_layer import (
    MAX_WIDTH,
    CompiledLayer,
    KVArrays,
    as_array,
    cases,
    compiled,
    decoder_layer,
)
from tests.support.engines import engine

CASES = [case for case in cases.CASES if case.arguments()[0].numel()]
NAMES = tuple(decoder_layer.__code__.co_varnames[: decoder_layer.__code__.co_argcount])


def given(case=CASES[2], **changes: object):
    return dict(zip(NAMES, case.arguments(), strict=True)) | changes


def requests_of(values, chosen):
    """The arguments of some requests, in this order."""
    width = values["bias"].shape[2]
    rows = (torch.tensor(chosen)[:, None] * width + torch.arange(width)).flatten()
    by_row = {
        name: values[name][rows].contiguous() for name in ("x", "h", "rotation", "write") if values[name] is not None
    }
    return values | by_row | {name: values[name][chosen].contiguous() for name in ("read", "bias")}, rows


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_row_has_the_same_bits_alone_and_in_any_order(case):
    whole = decoder_layer(**given(case))
    count = len(given(case)["read"])
    for chosen in (*([one] for one in range(count)), list(range(count))[::-1]):
        values, rows = requests_of(given(case), chosen)
        assert torch.equal(decoder_layer(**values), whole[rows])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_masked_keys_and_the_place_of_slots_change_no_bit(case):
    whole = decoder_layer(**given(case))
    values = given(case)
    far = torch.cat((values["read"][:, :1].expand(-1, 33), values["read"]), 1).contiguous()
    hidden = torch.cat((torch.full((*values["bias"].shape[:3], 33), float("-inf")), values["bias"]), 3)
    order = torch.randperm(len(values["cache"]), generator=torch.Generator().manual_seed(1))
    moved = torch.empty_like(values["cache"])
    moved[order] = values["cache"]
    elsewhere = {"cache": moved, "write": order[values["write"]], "read": order[far], "bias": hidden}
    assert torch.equal(decoder_layer(**values | elsewhere), whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_reach_the_output_of_their_row_alone(bad):
    values = given(CASES[-2])
    whole = decoder_layer(**given(CASES[-2]))
    values["x"][0, 3] = bad
    found = decoder_layer(**values)
    assert not found[0].isfinite().all()
    width = values["bias"].shape[2]
    assert torch.equal(found[width:], whole[width:])


def test_exp_is_within_two_units_in_the_last_place():
    x = torch.cat((torch.linspace(-87, 88, 100_001), torch.tensor([0.0, -0.0, 1e-8, -1e-8])))
    found = torch.tensor([float(compiled.exp(number)) for number in x.numpy()], dtype=torch.float64)
    wanted = x.double().exp()
    assert ((found - wanted).abs() / wanted).max() <= 2 * torch.finfo(torch.float32).eps
    assert torch.tensor(float(compiled.exp(x.numpy()[0] * 0 + float("nan")))).isnan()


def test_without_a_folder_for_its_cache_a_process_compiles_anew():
    names: dict[str, object] = {}
    exec("def twice(x):\n    return 2 * x", names)  # numba keeps nothing of a function without a file
    assert compiled.jit("i8(i8)")(names["twice"])(21) == 42


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        ("sys.modules['numba'] = None", "numba, which is not installed; run: pip install 'specmatrix[engine]'"),
        ("os.environ['NUMBA_DISABLE_JIT'] = '1'", "numba's compiler; unset NUMBA_DISABLE_JIT"),
    ],
)
@pytest.mark.parametrize(
    ("model", "users"), [("llama-mini", "float32 models"), ("qwen3next-mini", "models with recurrent states")]
)
def test_without_numba_or_its_compiler_a_model_is_refused_when_it_is_loaded(model, users, before, sentence):
    script = (
        f"import os, sys; {before}\n"
        "from specmatrix.cli import main\n"
        f"sys.exit(main(['generate', 'a', '--model-path', '{model}', '--device', 'cpu']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"specmatrix: {users} on a CPU require {sentence}\n")


REFUSED = {
    "qkv": ({"qkv": torch.zeros(18, 5)}, r"decoder_layer: qkv has shape \[18, 5\], must be \[18, 72\]"),
    "gate_up": ({"gate_up": torch.zeros(18, 15)}, r"decoder_layer: gate_up has shape \[18, 15\], must be \[18, 14\]"),
    "down": ({"down": torch.zeros(7, 4)}, r"decoder_layer: down has shape \[7, 4\], must be \[7, 18\]"),
    "dtype": ({"out": torch.zeros(24, 18).double()}, "decoder_layer: out is float64, must be float32"),
    "weight": ({"out": torch.zeros(18, 24).t()}, r"decoder_layer: out is not contiguous \(strides \[1, 24\]\)"),
    "x": ({"x": torch.zeros(18, 6).t()}, r"decoder_layer: x is not contiguous \(strides \[1, 6\]\)"),
    "bias": (
        {"bias": torch.full((2, 1, 3, 9), float("-inf"))},
        "decoder_layer: bias masks every key of a query; each query needs at least one 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name):
    changes, sentence = REFUSED[name]
    with pytest.raises(KernelError, match=f"^{sentence}$"):
        decoder_layer(**given(**changes))


def test_a_tensor_of_another_dtype_or_stride_is_refused_by_the_compiled_signature():
    values = given()
    layer = CompiledLayer(*(values[name] for name in ("qkv", "out", "gate_up", "down", "heads", "kv_heads", "eps")))
    kv = KVArrays(*(as_array(values[name]) for name in ("cache", "write", "read", "bias")))
    for x in (values["x"].double(), values["x"].t().contiguous().t()):
        with pytest.raises(TypeError, match="No matching definition"):
            layer.attention(x, None, values["rotation"], kv)


def test_small_float32_layers_on_a_cpu_are_compiled_and_no_others():
    def small(width, dtype, deterministic=True):
        return Norm(width, 1e-5, dtype, torch.device("cpu"), deterministic).compiled

    assert small(64, torch.float32) and small(MAX_WIDTH, torch.float32, False)
    assert not small(MAX_WIDTH + 1, torch.float32) and not small(64, torch.bfloat16)
    assert all(layer.compiled is not None for layer in engine("NONE", 1).loop.executor.target.layers)
