"""The start that a running server has, from what it reports of itself."""

from __future__ import annotations

from typing import Any

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.http.launch_flags import NO_V1, mismatches, running_start, unjudged_sizes

SERVER: dict[str, Any] = {
    "version": "0.5.13.post1",
    "model_path": "/models/llama-mini",
    "dtype": "float32",
    "tp_size": 1,
    "page_size": 1,
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
    "disable_overlap_schedule": False,
    "disable_radix_cache": False,
    "chunked_prefill_size": 8192,
    "max_running_requests": 48,
    "max_total_tokens": None,
    "context_length": None,
}
PLAIN = {name: None for name in SERVER if name.startswith("speculative_")}


@pytest.mark.parametrize(
    ("reports", "start"),
    [
        ({}, "eagle3.s3.k1.n4.v2"),
        (PLAIN, "none.v2"),
        ({"page_size": 16, "chunked_prefill_size": 32, "max_running_requests": 4}, "eagle3.s3.k1.n4.v2.p16.c32.m4"),
        ({"speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8}, "eagle3.s3.k4.n8.v2"),
        # Sizes that no cell has, or that tests leave to others, are whatever runs.
        ({"speculative_num_steps": 4, "speculative_num_draft_tokens": 5}, "eagle3.v2"),
        ({"speculative_eagle_topk": 4}, "eagle3.s3.k4.v2"),
        ({"speculative_algorithm": "EAGLE"}, "eagle.s3.k1.n4.v2"),
        ({"speculative_algorithm": "EAGLE", "model_path": "deepseek-mini"}, "nextn.deepseek.s3.k1.n4.v2"),
        ({"model_path": "qwen3-mini", "disable_radix_cache": True}, "eagle3.qwen3.s3.k1.n4.v2.nocache"),
        ({"disable_overlap_schedule": True}, "eagle3.s3.k1.n4.sync"),
        ({"disable_overlap_schedule": True, "version": "0.5.12.post1"}, "eagle3.s3.k1.n4.v1"),
        ({"disable_overlap_schedule": True, "spec_version": "v1", "version": "0.1.0"}, "eagle3.s3.k1.n4.v1"),
        ({"max_total_tokens": 192, "tp_size": 2, **PLAIN}, "none.tp2.v2.tight"),
        ({"dtype": "float"}, "eagle3.s3.k1.n4.v2"),
    ],
    ids=str,
)
def test_the_start_of_a_server_has_each_of_its_values(reports: dict[str, Any], start: str):
    found = running_start(SERVER | reports)
    assert found.id == start and not list(mismatches(found, SERVER | reports))


@pytest.mark.parametrize(
    ("reports", "why"),
    [
        ({"model_path": "Qwen/Qwen3-8B"}, "the server runs the model Qwen3-8B, not llama-mini"),
        ({"model_path": None}, "the server does not name its model"),
        ({"page_size": 32}, "the server runs page_size 32, not 1"),
        ({"dtype": "auto"}, "the server runs dtype auto, not float32"),
        ({"dtype": "half"}, "the server runs dtype half, not float32"),
        ({"chunked_prefill_size": 512}, "the server runs chunked_prefill_size 512, which splits prompts"),
        ({"speculative_adaptive": True}, "the server does not report the table of its adaptive steps"),
        ({"speculative_algorithm": "NEXTN"}, "nextn: the drafter's layers are in the target's checkpoint"),
    ],
)
def test_a_configuration_that_no_cell_has_is_refused_by_its_first_value(reports: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match="no cell has the server's configuration: ") as refused:
        running_start(SERVER | reports)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("version", "reasons"), [("0.5.12.post1", []), ("0.5.13", [NO_V1]), ("0.6.0.dev3", [NO_V1]), ("main", [NO_V1])]
)
def test_v1_is_of_versions_that_have_it(version: str, reasons: list[str]):
    cell = Cell.from_id("eagle3.s3.k1.n4.v1")
    server = SERVER | {"version": version, "disable_overlap_schedule": True}
    assert list(mismatches(cell, server)) == reasons


@pytest.mark.parametrize(
    ("sizes", "judged"),
    [
        *(((None, None, None), True), ((3, 1, 4), True), ((1, 1, 2), True), ((5, 4, 16), True), ((1, 1, 6), True)),
        *(((4, 1, 5), False), ((5, 8, 64), False), ((3, 4, 12), False)),
    ],
)
def test_acceptance_is_judged_for_sizes_that_cells_have(sizes: tuple[int | None, ...], judged: bool):
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    assert (unjudged_sizes(SERVER | dict(zip(names, sizes, strict=True))) == "") == judged


def test_a_cell_needs_a_server_of_its_own_precision():
    cell = Cell.from_id("eagle3.s3.k1.n4")
    for dtype in ("auto", "half", "bfloat16"):
        assert list(mismatches(cell, SERVER | {"dtype": dtype})) == [f"the server runs dtype {dtype}, not float32"]
    unsaid = {name: value for name, value in SERVER.items() if name != "dtype"}
    assert list(mismatches(cell, unsaid)) == ["the server does not report dtype"]
