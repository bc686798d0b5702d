"""`bench`: the JSON form, the table, the files and the exit status."""

import json

from specmatrix.benchmarks import gpu
from specmatrix.benchmarks.command import bench
from specmatrix.benchmarks.metric import Metric


def test_json_has_the_stable_form_and_is_written_too(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu, "measure", lambda: iter([Metric("share", [0.5, 0.7], 0.9, note="of a floor")]))
    assert bench(json_=True, out=tmp_path) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "bench.json").read_text())
    (metric,) = shown["metrics"]
    assert {"name", "ratio", "min", "max", "goal", "pairs"} <= metric.keys()
    assert metric["state"] == "missed" and metric["pairs"] == 2
    table = (tmp_path / "bench.md").read_text()
    assert table.startswith(f"{shown['machine']['cores']}-core ")
    assert "| `share` | 0.6 | 0.5 to 0.7 | >= 0.9 | 2 | 0% | missed |\n\n- `share`: of a floor.\n" in table
