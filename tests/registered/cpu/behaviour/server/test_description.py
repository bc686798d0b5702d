"""The OpenAPI description and the server agree: schemathesis makes requests from the one and checks the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from schemathesis.cli import schemathesis

from tests.support.served import RunningServer

pytestmark = pytest.mark.register(est_seconds=1, stage="pr")

# A body may be right by its schema and wrong by its values: a token outside the vocabulary, a prompt over the context.
LEFT_OUT = "positive_data_acceptance"
# It makes every other endpoint answer 503.
STOPS_ALL = "/release_memory_occupation"
DAILY = ("--phases", "fuzzing", "--max-examples", "1")
NIGHTLY = ("--max-examples", "50")


@pytest.mark.parametrize("more", [DAILY, pytest.param(NIGHTLY, marks=pytest.mark.nightly)], ids=["few", "many"])
def test_schemathesis_finds_nothing(
    server: RunningServer, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options = (
        "--seed",
        "1",
        "--generation-database",
        "none",
        "--exclude-checks",
        LEFT_OUT,
        "--exclude-path",
        STOPS_ALL,
    )
    done = CliRunner().invoke(schemathesis, ["run", f"{server.url}/openapi.json", "--no-color", *options, *more])
    assert done.exit_code == 0, done.output
    assert "Tested: 18" in done.output
    assert server.held() == 0
