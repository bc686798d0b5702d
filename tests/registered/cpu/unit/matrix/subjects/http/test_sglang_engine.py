"""Answers of SGLang's servers of several versions."""

from __future__ import annotations

import pytest

from specmatrix.matrix.subjects.http.sglang_engine import canonical


@pytest.mark.parametrize("key", ["total_retractions", "num_retractions", "retraction_count"])
def test_retractions_are_read_whatever_the_version_calls_them(key: str):
    assert canonical({key: 3})["total_retractions"] == 3
