"""Answers of SGLang's servers of several versions."""

from __future__ import annotations

import pytest

from specmatrix.matrix.subjects.http.sglang_engine import FORBIDDEN, by_token, canonical


@pytest.mark.parametrize("key", ["total_retractions", "num_retractions", "retraction_count"])
def test_retractions_are_read_whatever_the_version_calls_them(key: str):
    assert canonical({key: 3})["total_retractions"] == 3


def test_a_token_that_a_mask_forbids_has_the_least_log_probability_in_every_version():
    assert by_token([[None, 3, None], [-0.5, 4, None]]) == ((3, FORBIDDEN), (4, -0.5))
    assert by_token([[FORBIDDEN, 3, None]]) == ((3, FORBIDDEN),)
    assert by_token(None) == ()
