"""`bench`: the JSON form, the table, the files and the exit status."""

import json

from specmatrix.benchmarks.command import bench


def test_json_has_the_stable_form_and_is_written_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPECMATRIX_VLLM", str(tmp_path / "absent"))
    status = bench(json_=True, out=tmp_path, groups=["vllm"])
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "bench.json").read_text())
    assert len(shown["metrics"]) == 4
    for metric in shown["metrics"]:
        assert {"name", "ratio", "min", "max", "goal", "pairs"} <= metric.keys()
        assert metric["state"] == "not measured" and metric["note"].startswith("vLLM is not installed; ")
    assert status == 0
    assert (tmp_path / "bench.md").read_text().startswith(f"{shown['machine']['cores']}-core ")
