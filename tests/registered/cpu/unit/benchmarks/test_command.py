"""`bench`: the JSON form, the table, the files and the exit status."""

import json

from specmatrix.benchmarks import decoding
from specmatrix.benchmarks.command import bench


def test_json_has_the_stable_form_and_is_written_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(decoding, "PAIRS", 1)
    monkeypatch.setattr(decoding, "TRANSFORMERS", {1: 1000.0})
    assert bench(json_=True, out=tmp_path) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "bench.json").read_text())
    (metric,) = shown["metrics"]
    assert {"name", "ratio", "min", "max", "goal", "pairs"} <= metric.keys()
    assert metric["state"] == "missed" and metric["pairs"] == 1
    assert (tmp_path / "bench.md").read_text().startswith(f"{shown['machine']['cores']}-core ")
