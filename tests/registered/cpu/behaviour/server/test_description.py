"""The OpenAPI description and the server agree: schemathesis makes requests from the one and checks the other."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from schemathesis.cli import schemathesis

from tests.support.served import RunningServer

# A body of these may be right by its schema and wrong by its values: a token outside the vocabulary, a session that is
# not open, memory that is not released. And 400.0 is an integer by JSON Schema, but not here.
CONFIGURATION = """[[operations]]
include-path-regex = "^/(generate|v1/.*completions|.*_session|resume_memory_occupation|update_weights_from_disk)$"
checks.positive_data_acceptance.enabled = false
"""
# It makes every other endpoint answer 503.
STOPS_ALL = "/release_memory_occupation"
DAILY = ("--phases", "fuzzing", "--max-examples", "20")
NIGHTLY = ("--max-examples", "50")


@pytest.mark.parametrize("more", [DAILY, pytest.param(NIGHTLY, marks=pytest.mark.nightly)], ids=["few", "many"])
def test_schemathesis_finds_nothing(
    server: RunningServer, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")  # the command sets it and leaves it so
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION, encoding="utf-8")
    options = ("--seed", "1", "--generation-database", "none", "--exclude-path", STOPS_ALL)
    done = CliRunner().invoke(schemathesis, ["run", f"{server.url}/openapi.json", "--no-color", *options, *more])
    assert done.exit_code == 0, done.output
    assert "Tested: 18" in done.output
    assert server.held() == 0
