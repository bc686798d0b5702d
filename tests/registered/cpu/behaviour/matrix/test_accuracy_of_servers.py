"""`accuracy --url`: two servers, asked by turns through lm-eval's local-completions until the answers decide."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.accuracy.compared import of_cell, of_launch, of_servers
from specmatrix.matrix.subjects.http.connection import flag_words
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.http.launch_flags import spec_version
from tests.support.completions import completion, completions

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `accuracy` is not installed")
QUESTIONS = 150


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(QUESTIONS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def number(body) -> int:
    """The question that a prompt ends with."""
    return int(body["prompt"].rpartition("What is ")[2].split()[0])


def right(body):
    return completion(f" It is {2 * number(body)}.\n#### {2 * number(body)}")


def every(nth: int):
    """Wrong at every nth question."""
    return lambda body: completion(" I give up.", "length") if number(body) % nth == 0 else right(body)


def accuracy(data: Path, *words: str):
    command = [sys.executable, "-m", "specmatrix", "accuracy", "--data", str(data), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=HOME, timeout=120)


@pytest.mark.nightly
def test_a_loss_ends_the_run_early_and_says_where(data, tmp_path):
    with (
        completions(right) as (base, asked),
        completions(every(7), info={"speculative_algorithm": "EAGLE3", "model_path": "m"}, drafts=(9, 4)) as (url, _),
    ):
        words = ("--url", url, "--baseline-url", base, "--num-fewshot", "2", "--out", str(tmp_path))
        done = accuracy(data, *words)
    assert (done.returncode, done.stderr) == (1, "")
    record = json.loads((tmp_path / "accuracy.json").read_text())
    assert (record["task"]["questions"], record["task"]["asked"]) == (128, QUESTIONS - 2), "12 losses decide"
    assert record["state"] == "FAIL" and "The first 128 of 148 questions of " in done.stdout
    assert record["starts"]["cell"]["evidence"] == {"spec.drafted": 9 * 128, "spec.accepted": 4 * 128}
    assert record["runs"]["cell"]["ended_by_length"] == record["tests"][0]["lost"] == 18
    assert "tokens per round" not in done.stdout, "a server shows no rounds"
    assert len(asked) == 128, "the baseline is asked by turns, and no further either"
    body = asked[0]
    assert body["prompt"].count("Question:") == 3, "two examples and the question"
    assert (body["temperature"], body["max_tokens"], body["model"]) == (0.0, 256, "m")
    assert "Question:" in body["stop"]


@pytest.mark.nightly
def test_equal_servers_pass_and_what_they_do_not_show_is_said(data):
    with completions(every(7)) as (base, _), completions(every(7)) as (url, _):
        done = accuracy(data, "--url", url, "--baseline-url", base, "--limit", "30")
    assert (done.returncode, done.stderr) == (0, "")
    assert "- the server does not show whether drafts were accepted." in done.stdout
    assert f"`{url}` against `{base}`: PASS" in done.stdout


def failing(body):
    return 400, {"error": {"message": "no"}}


def odd(body):
    return 200, {"choices": []}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (failing, "answers a request with status 400, Bad Request; see its log"),
        (odd, "does not answer as OpenAI's completions do: ValueError("),
    ],
)
def test_an_error_of_a_server_is_no_wrong_answer(data, reply, said):
    with completions(right) as (base, _), completions(reply) as (url, _):
        done = accuracy(data, "--url", url, "--baseline-url", base, "--limit", "30")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"specmatrix: {url} {said}")


@pytest.mark.nightly
def test_a_server_that_never_drafted_proves_nothing(data):
    with completions(right) as (base, _), completions(right, drafts=(9, 0)) as (url, _):
        done = accuracy(data, "--url", url, "--baseline-url", base, "--limit", "30")
    assert done.returncode == 1 and "NOT MEASURED" in done.stdout
    assert "the cell requests speculation, but spec.accepted stayed 0, so its answers prove nothing" in done.stdout


def refused(url: str, base: str) -> str:
    with pytest.raises(ConfigError) as caught:
        of_servers(Endpoint(url, base))
    return str(caught.value)


def test_servers_that_cannot_be_compared_are_refused():
    eagle, plain = ({"speculative_algorithm": one, "model_path": "m"} for one in ("EAGLE", None))
    with (
        completions(right, info=eagle) as (first, _),
        completions(right, info=plain) as (second, _),
        completions(right, model="other") as (third, _),
        completions(right, model="") as (fourth, _),
    ):
        assert of_servers(Endpoint(first, second)).algorithm == "eagle"
        assert refused(second, first) == "--baseline-url runs EAGLE; allowed: no speculation"
        assert (
            refused(second, f"{second}/v1/..") == f"--url runs no speculation; there is nothing to compare at {second}"
        )
        assert refused(third, second) == f"{third} serves 'other' and {second} 'm'"
        assert refused(fourth, second) == f"{fourth} serves no model"
    assert refused(first, second).startswith(f"{second} cannot be reached: ")


@pytest.mark.parametrize(
    ("cell", "version"),
    [("eagle3.s3.k4.n8", "auto"), ("eagle3.s3.k4.n8.v1", "v1"), ("eagle3.s3.k4.n8.v2", "v2"), ("eagle3.sync", "v1")],
)
def test_a_started_server_can_be_told_the_spec_version(cell: str, version: str):
    flags = of_launch(of_cell(cell), Endpoint(launch="serve {flags}")).cell.flags
    assert spec_version(flags) == version and "spec_version" not in flags
    assert ("--disable-overlap-schedule" in flag_words(flags)) is (version == "v1")
