"""`bench`: the JSON form, the table, the files and the exit status."""

import json

from specmatrix.benchmarks.command import bench, markdown
from specmatrix.benchmarks.metric import Metric, wrong


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


def test_the_table_shows_no_figure_for_a_red_cell():
    machine = {"processor": "x", "cores": 2, "python": "3", "torch": "2", "transformers": "5"}
    metrics = [wrong("r", 3.0, "tokens differ"), Metric("share", [0.2, 0.3, 0.25], 0.25, 0.1, "lower")]
    metrics.append(Metric("rate", [31234.5, 9876.54], 20_000.0, 0.1))
    text = markdown({"metrics": [metric.as_dict() for metric in metrics], "machine": machine})
    assert "| r |  |  | >= 3 | 0 | 0% | red |" in text
    assert "| share | 0.25 | 0.2 to 0.3 | <= 0.25 | 3 | 10% | met |" in text
    assert "| rate | 20,556 | 9877 to 31,234 | >= 20,000 | 2 | 10% | met |" in text
    assert "- r: tokens differ." in text
