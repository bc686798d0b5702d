"""`specmatrix plan --matrix` for GitHub Actions: a job per shard."""

import json

from specmatrix.cli import main


def test_a_job_per_shard_with_its_runner_and_a_limit_of_minutes(capsys):
    assert main(["plan", "--tier", "cpu,gpu2", "--shards", "2", "--matrix", "cpu=ubuntu-latest,gpu2=h100"]) == 0
    jobs = json.loads(capsys.readouterr().out)["include"]
    assert [(job["tier"], job["runner"], job["gpus"], job["shard"], job["name"]) for job in jobs] == [
        ("cpu", "ubuntu-latest", 0, "1/2", "1-of-2"), ("cpu", "ubuntu-latest", 0, "2/2", "2-of-2"),
        ("gpu2", "h100", 2, "1/2", "1-of-2"), ("gpu2", "h100", 2, "2/2", "2-of-2"),
    ]  # fmt: skip
    assert all(job["minutes"] > 20 for job in jobs)
    assert jobs[0]["minutes"] > jobs[2]["minutes"]
