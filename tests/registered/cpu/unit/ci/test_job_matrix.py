"""`specmatrix plan` for GitHub Actions: a job per shard, and a budget of GPU minutes."""

import json
import re

from specmatrix.cli import main

WORDS = ("plan", "--tier", "cpu,gpu2", "--shards", "2")
RUNNERS = "cpu=ubuntu-latest,gpu2=h100"


def test_a_job_a_shard_with_its_runner_and_its_share_of_the_gpu_minutes(capsys):
    assert main([*WORDS, "--max-gpu-minutes", "30", "--matrix", RUNNERS]) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert [(job["tier"], job["runner"], job["shard"], job["name"]) for job in jobs] == [
        ("cpu", "ubuntu-latest", "1/2", "1-of-2"), ("cpu", "ubuntu-latest", "2/2", "2-of-2"),
        ("gpu2", "h100", "1/2", "1-of-2"), ("gpu2", "h100", "2/2", "2-of-2"),
    ]  # fmt: skip
    assert sum(job["gpus"] * job["minutes"] for job in jobs) <= 30
    assert all(job["minutes"] >= 20 for job in jobs if not job["gpus"])


def test_a_longer_job_gets_a_longer_part_of_the_gpu_minutes(capsys):
    """21 minutes divided equally over 9 GPUs are 2 minutes each, but the cells of gpu1 take more than 8."""
    words = ["plan", "--tier", "gpu1,gpu8", "--shards", "1", "--max-gpu-minutes", "120", "--matrix", "gpu1=a,gpu8=b"]
    assert main(words) == 0
    one, eight = json.loads(capsys.readouterr().out)["include"]
    assert one["minutes"] > eight["minutes"] >= 1 and one["minutes"] + 8 * eight["minutes"] <= 120
    assert main([*words[:6], "21", *words[7:]]) == 2
    said = r"--max-gpu-minutes 21 leaves 5 minutes for a job of 1 GPU whose cells take about \d+ min \d+ s; use fewer"
    assert re.search(said, capsys.readouterr().err)
    words = ["plan", "--tier", "gpu8", "--shards", "2", "--max-gpu-minutes", "12"]
    assert main([*words, "--matrix", "gpu8=b"]) == 2
    assert "--max-gpu-minutes 12 leaves 0 minutes for a job of 8 GPUs" in capsys.readouterr().err
