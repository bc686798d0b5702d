"""On a GPU: no launch makes the host wait, and the tokens equal those of a CPU."""

from __future__ import annotations

import pytest
import torch

from specmatrix.engine.device.staging import StagingRing, StepOutput
from tests.support.engines import RUNS, answer, engine, waits_for_nothing

pytestmark = pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("algorithm", "topk"), RUNS)
def test_no_launch_waits_and_the_tokens_are_those_of_a_cpu(algorithm, topk, version):
    timing = {} if algorithm in ("NGRAM", "SUFFIX") else {"spec_version": version}
    expected = answer(engine(algorithm, topk, device="cpu", **timing))
    llm = engine(algorithm, topk, device="cuda", dtype="float32", kv_stamps=True, disable_cuda_graph=True, **timing)
    assert llm.readback()["device"] == "cuda"
    answer(llm)  # Kernels are compiled and tables made at their first use.
    waits_for_nothing(llm)
    assert answer(llm) == expected
    assert llm.counters["stamp.checked"] and not llm.counters["stamp.wrong"]


def test_the_detector_sees_a_read():
    llm = engine("NONE", 1, device="cuda", dtype="float32")
    extend = llm.loop.executor.kv.extend
    llm.loop.executor.kv.extend = lambda rows: (extend(rows), llm.loop.executor.relay.length.max().item())
    waits_for_nothing(llm)
    (output,) = llm.generate(["a prompt"])
    assert "called a synchronizing CUDA operation" in output.finish.message


def test_results_are_read_after_their_copy():
    numbers = torch.arange(2**26, device="cuda")  # copied in milliseconds
    ring = StagingRing(0, numbers.device)
    assert ring.take(ring.put(StepOutput(numbers, numbers[:1]))).tokens[-1] == 2**26 - 1


def test_a_gpu_is_the_automatic_device_and_halves_the_precision():
    llm = engine("EAGLE3", 3)
    shown = llm.readback()
    assert (shown["device"], shown["dtype"]) == ("cuda", "bfloat16")
    assert [len(tokens) for tokens in answer(llm)][1] == 12
