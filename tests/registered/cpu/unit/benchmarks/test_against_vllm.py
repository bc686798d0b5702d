"""The benchmark beside vLLM says where it cannot measure; with vLLM it runs outside of the daily tests."""

from specmatrix.benchmarks.against_vllm import measure
from specmatrix.matrix.subjects.vllm import environment


def test_without_vllm_nothing_is_measured_and_nothing_is_red(tmp_path, monkeypatch):
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "none"))
    found = list(measure())
    assert [metric.name for metric in found] == [
        "plain_decoding_batch_1_vs_vllm",
        "plain_decoding_batch_8_vs_vllm",
        "speculative_decoding_k3_batch_1_vs_vllm",
        "speculative_decoding_k3_batch_8_vs_vllm",
    ]
    assert {(metric.state, metric.goal) for metric in found} == {("not measured", None)}
    assert "specmatrix subjects install vllm" in found[0].note
