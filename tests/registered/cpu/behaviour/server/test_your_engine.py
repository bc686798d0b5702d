"""The commands of docs/your-engine.md on other engines: on what their servers answered, or on the engine itself."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.matrix.subjects.environment import VLLM
from specmatrix.reports.store import Report, load
from tests.support.recorded_servers import replayed
from tools.record_vllm import environment

PAGE = (HOME / "docs" / "your-engine.md").read_text(encoding="utf-8")
README = (HOME / "README.md").read_text(encoding="utf-8")
TRAFFIC = HOME / "tests" / "support" / "traffic"
VARYING = re.compile(r"; total cell time .*")


def commands(page: str, part: str) -> list[list[str]]:
    """The words of each `specmatrix run` of a page that holds `part`, without the program."""
    found = [line for line in page.splitlines() if line.startswith("specmatrix run ") and part in line]
    return [shlex.split(line)[1:] for line in found]


def run(words: list[str], replaced: dict[str, str], out: Path) -> tuple[int, Report]:
    status = main([*(replaced.get(word, word) for word in words), "--out", str(out)])
    return status, load(out)


def printed(page: str, report: str) -> list[str]:
    """The lines of a page's output block that must be those of a run, without its time."""
    (block,) = (one for one in re.findall(r"^```\w*\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) if report in one)
    return [VARYING.sub("", line) for line in block.splitlines()]


def test_sglangs_server_is_judged_as_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (words,) = commands(PAGE, "--url http://127.0.0.1:30000 --stage smoke")
    with replayed(TRAFFIC / "sglang-0.5.13.post1.jsonl") as url:
        status, report = run(words, {"http://127.0.0.1:30000": url}, tmp_path)
    assert status == 0 and report.header.subject.version == "0.5.13.post1"
    said = [VARYING.sub("", line) for line in capsys.readouterr().out.splitlines()]
    due = printed(PAGE, "gates: claimed_capabilities ok, finish ok, session ok")
    assert [line for line in due if line not in said] == [] and len(due) == 2


def test_vllms_servers_are_judged_as_the_readme_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (words,) = commands(README, "--subject openai")
    with replayed(TRAFFIC / "vllm-0.32.0-ngram.jsonl") as url, replayed(TRAFFIC / "vllm-0.32.0.jsonl") as plain:
        urls = {"http://127.0.0.1:8000": url, "http://127.0.0.1:8001": plain}
        status, report = run(words, urls, tmp_path / "red")
    said = [VARYING.sub("", line) for line in capsys.readouterr().out.splitlines()]
    due = printed(README, "gates: claimed_capabilities ok, text 1 red, grammar ok")
    assert status == 1 and [line for line in due if line not in said] == [] and len(due) == 4
    assert {one.state for one in report} == {"PASS", "FAIL", "UNSUPPORTED"}
    with replayed(TRAFFIC / "vllm-0.32.0-ngram.jsonl") as url, replayed(TRAFFIC / "vllm-0.32.0.jsonl") as plain:
        urls = {"http://127.0.0.1:8000": url, "http://127.0.0.1:8001": plain}
        waived = [*words, "--waivers", str(HOME / "examples" / "vllm-waivers.yaml")]
        assert run(waived, urls, tmp_path / "waived")[0] == 0


@pytest.mark.parametrize(("subject", "cell"), [("transformers", "standalone.s1"), ("vllm", "eagle3.s3.k1.pair")])
def test_an_engine_without_a_server_is_run_by_the_option_of_its_row(
    subject: str, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(VLLM.variable, str(environment(tmp_path / "vllm")))
    assert f"| `--subject {subject}` |" in PAGE
    status, report = run(["run", "--subject", subject, "--stage", "product", "--cells", cell], {}, tmp_path / "out")
    (found,) = report
    assert status == 0 and {gate.name for gate in found.gates} >= {"oracle", "lossless", "acceptance"}
