"""Every target on the Triton forms, in the interpreter: near those of torch, and a row keeps its bits."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.models.loader import load_target
from specmatrix.kernels.backend import check_interpreter, interpreted

check_interpreter()

TOKENS = torch.randint(0, 97, (2, 8), generator=torch.Generator().manual_seed(5))
DTYPE = torch.bfloat16


# Qwen3 is Llama with head norms and windows.
@pytest.fixture(params=["qwen3", pytest.param("deepseek", marks=pytest.mark.nightly)])
def model(request, target_folder):
    return load_target(target_folder(request.param), "cpu", DTYPE)


@pytest.mark.nightly
@torch.inference_mode()
def test_both_forms_agree(model, paged):
    torch_form = paged(model, 2, 16).run(TOKENS[:, :5], [0, 0])
    with interpreted():
        ours = paged(model, 2, 16).run(TOKENS[:, :5], [0, 0])
    # As for half precision against float32: a token may take another expert where two score alike.
    off = (ours - torch_form).abs().amax(-1).flatten().sort().values
    assert 0 < off[int(0.7 * len(off))] < 24 * torch.finfo(DTYPE).eps * torch_form.abs().max()


@pytest.mark.nightly
@torch.inference_mode()
def test_a_token_has_the_same_bits_alone_in_a_batch_and_in_a_chunk(model, paged):
    with interpreted():
        whole = paged(model, 2, 16).run(TOKENS, [0, 0])
        driver = paged(model, 1, 24, page_size=8)
        parts = [driver.run(TOKENS[:1, at:end], [at], reach=24) for at, end in ((0, 4), (4, 5), (5, 8))]
    assert torch.equal(torch.cat(parts, 1), whole[:1])
