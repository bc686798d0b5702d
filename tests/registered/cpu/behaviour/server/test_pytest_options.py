"""Cells on a server as pytest items: the plugin's options name it, its baseline and its key."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from specmatrix.engine.server import native
from tests.support.served import RunningServer, served

PAIR = "eagle3.s3.k1.n4.p4.pair"
DEEPER = "eagle3.s5.k1.p4"


class Seen:
    """The outcome of every cell of a session, and what it says of those that did not pass."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.said: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.said["collection"] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            name = report.nodeid.rpartition("::")[2]
            self.outcomes[name], self.said[name] = report.outcome, str(report.longrepr)


def session(folder: Path, *words: str) -> tuple[int, Seen]:
    """pytest over cells of a file outside this repository, as another project has them."""
    path = folder / "test_cells.py"
    path.write_text("from specmatrix.matrix.plugin import MatrixCells\ncells = MatrixCells()\n", encoding="utf-8")
    seen = Seen()
    alone = ("-p", "no:cacheprovider", "--import-mode", "importlib", "--rootdir", str(folder), "-c", "/dev/null", "-q")
    return pytest.main([str(path), *alone, "--specmatrix-stage", "product", *words], plugins=[seen]), seen


def test_cells_run_on_the_server_that_the_options_name(server: RunningServer, tmp_path: Path):
    with served(
        speculative_algorithm="NONE", speculative_draft_model_path=None, speculative_num_steps="auto",
        speculative_eagle_topk="auto",
    ) as plain:  # fmt: skip
        status, seen = session(
            tmp_path,
            *("--specmatrix-subject", "sglang", "--specmatrix-cells", f"{PAIR} or {DEEPER}"),
            *("--specmatrix-url", server.url, "--specmatrix-baseline-url", plain.url),
        )
    assert (status, seen.outcomes) == (pytest.ExitCode.OK, {PAIR: "passed", DEEPER: "skipped"}), seen.said
    assert "the server runs speculative_num_steps 3, not 5" in seen.said[DEEPER]


def test_the_repro_of_a_red_cell_names_the_server_but_not_its_key(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    true = native.meta_info
    monkeypatch.setattr(native, "meta_info", lambda *given: true(*given) | {"spec_verify_ct": 1})
    words = ("--specmatrix-url", server.url, "--specmatrix-api-key", "secret")
    status, seen = session(tmp_path, "--specmatrix-subject", "sglang", "--specmatrix-cells", PAIR, *words)
    assert (status, seen.outcomes) == (pytest.ExitCode.TESTS_FAILED, {PAIR: "failed"})
    last = seen.said[PAIR].splitlines()[-1]
    assert f"--subject sglang --cells {PAIR} --url {server.url} --seed 0" in " ".join(shlex.split(last)), last
    assert "identities: FAIL" in seen.said[PAIR] and "secret" not in seen.said[PAIR]
