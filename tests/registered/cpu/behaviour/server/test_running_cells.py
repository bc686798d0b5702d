"""A run against a URL sweeps every kind of request over exactly the server's configuration."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.engine.server.app import ServerOptions
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.axes import AXES, axis
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.faults.command import select
from specmatrix.matrix.faults.plant import planted
from specmatrix.matrix.run.running_cells import listing
from specmatrix.matrix.subjects.http.connection import Connection, NotThere
from specmatrix.matrix.subjects.http.endpoint import Endpoint
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.reports.store import Report, load
from tests.support.served import RunningServer, served

# One token per page, as pages of 4 have no cells with logit rules.
START = "eagle3.s3.k1.n4.v2"
REQUESTS = [one for one in AXES if one.scope == "request"]
VLLM = 'vllm:num_requests_running{engine="0"} 0.0\n'
DRAFTS = "".join(f'vllm:spec_decode_num_{one}_tokens_total{{engine="0"}} 3.0\n' for one in ("draft", "accepted"))


@pytest.fixture(scope="module")
def drafting() -> Iterator[RunningServer]:
    with served(page_size=1, max_running_requests=16) as one:
        yield one


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    nothing = {"speculative_num_steps": "auto", "speculative_eagle_topk": "auto", "speculative_draft_model_path": None}
    with served(page_size=1, speculative_algorithm="NONE", **nothing) as one:
        yield one


def run(out: Path, *words: str) -> Report:
    """The report of a run that passes."""
    assert main(["run", *words, "--workers", "1", "--out", str(out)]) == 0
    return load(out)


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def passed(report: Report) -> list[Cell]:
    return [Cell.from_id(one.id) for one in report if one.state == "PASS"]


PAGE = (HOME / "docs" / "your-engine.md").read_text(encoding="utf-8")


def page_command(begin: str, replaced: dict[str, str]) -> list[str]:
    """The first command of docs/your-engine.md that begins so, with other servers and folders."""
    words = shlex.split(next(line for line in PAGE.splitlines() if f"{line} ".startswith(f"specmatrix {begin} ")))[1:]
    return [replaced.get(word, word) for word in words]


def test_the_pages_commands_run_every_value_of_the_request_axes_on_the_servers_own_start(
    drafting: RunningServer, plain: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    urls = {"http://127.0.0.1:30000": drafting.url, "http://127.0.0.1:30001": plain.url}
    assert main(page_command("cells list", urls)) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]}
    both = " ".join(f"{option} {url}" for option, url in zip(("--url", "--baseline-url"), urls, strict=True))
    report = run(tmp_path, *page_command(f"run --subject sglang {both} --stage smoke", urls)[1:])
    assert {one.id for one in report} == listed
    cells, start = passed(report), Cell.from_id(START).start_key
    assert {Cell.from_id(one.id).start_key for one in report} == {start}
    held = {(one.name, getattr(cell, one.name)) for cell in cells for one in REQUESTS}
    lacking = {(one.name, value) for one in REQUESTS for value in one.names} - held
    grammars = {("grammar", value) for value in axis("grammar").names if value != "none"}
    assert lacking - grammars == {("batch", "gsm"), ("abort", "queued")}, (
        "exams are slow, and no request waits for a slot"
    )
    assert [one.error for one in report if one.state != "PASS"] == []
    pair = report[f"{START}.pair"].gate("acceptance")
    assert pair is not None and pair.numbers["ratio"] == pytest.approx(1), "as its histogram says"


def test_the_pages_commands_compare_two_builds_by_their_labels(
    drafting: RunningServer, plain: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    urls = {"http://127.0.0.1:30000": drafting.url, "http://127.0.0.1:30001": plain.url}
    replaced = urls | {"out/base": str(tmp_path / "base"), "out/head": str(tmp_path / "head")}
    begin = "run --subject sglang --url http://127.0.0.1:30000 --baseline-url http://127.0.0.1:30001 --stage pr --label"
    for label in ("base", "head"):
        assert main([*page_command(f"{begin} {label}", replaced), "--limit", "2"]) == 0
    capsys.readouterr()
    assert main(page_command("compare", replaced)) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert re.search(r"\(base\) → sglang .*\(head\)  0 regressed, 0 improved, 2 same", first), first


@pytest.mark.parametrize("fault", [None, pytest.param("first-token-worst", marks=pytest.mark.nightly)])
def test_the_pages_job_runs_its_steps_and_is_red_on_a_planted_defect(fault: str | None, tmp_path: Path):
    (text,) = (one for one in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if one.startswith("name:"))
    (job,) = yaml.safe_load(text)["jobs"].values()
    steps = [step["run"] for step in job["steps"] if "run" in step and not step["run"].startswith("pip install ")]
    ports = {"30000": free_port(), "30001": free_port()}
    script = "\n".join(["set -e -o pipefail", *(f'{step}\n. "$GITHUB_ENV"' for step in steps)])
    script = re.sub("3000[01]", lambda found: ports[found[0]], script).replace("--label", "--limit 1 --label")
    command = f"{shlex.quote(sys.executable)} -m specmatrix"
    script = f'specmatrix() {{ {command} "$@"; }}\n{script}'
    settings = {**job["env"], "GITHUB_SHA": "0f3c", "GITHUB_ENV": str(tmp_path / "set")}
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), environment["PATH"]))
    with planted(select([fault])[0].patch if fault else None) as tree, (tmp_path / "said").open("w+") as said:
        environment["SERVE"] = f"env PYTHONPATH={shlex.quote(str(tree))} {command} serve"
        words = ("bash", "-c", script)
        done = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=said, stderr=said, start_new_session=True)
        try:
            assert done.wait(300) == bool(fault), (tmp_path / "said").read_text()
        finally:
            os.killpg(done.pid, signal.SIGKILL)
    report = load(tmp_path / "out")
    assert [one.state for one in report] == ["FAIL" if fault else "PASS"] and report.header.label == "0f3c"


def test_more_stages_cover_more_combinations_of_the_same_server(drafting: RunningServer):
    engine = load_subject("sglang", Endpoint(drafting.url))
    smoke, pr = (list(listing(engine, "cpu", None)(stage)) for stage in ("smoke", "pr"))
    assert {cell.start_key for cell in pr} == {Cell.from_id(START).start_key} and 2 * len(smoke) < len(pr) < 60
    pairs = {(cell.session, cell.finish) for cell in pr}
    assert {(session, finish) for session in ("streaming", "branching") for finish in ("eos", "length")} <= pairs


def test_openais_api_has_the_cells_of_compared_texts(drafting: RunningServer, plain: RunningServer, tmp_path: Path):
    words = ("--subject", "openai", "--stage", "smoke", "--url")
    report = run(tmp_path / "drafts", *words, drafting.url, "--baseline-url", plain.url)
    assert {cell.algorithm for cell in passed(report)} == {"eagle3"} and len(passed(report)) >= 4
    assert all(one.gate("text") is not None for one in report if one.state == "PASS")
    report = run(tmp_path / "plain", *words, plain.url)
    assert {cell.algorithm for cell in passed(report)} == {"none"}


def test_a_server_whose_configuration_no_cell_has_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    words = ("run", "--stage", "smoke", "--out", str(tmp_path), "--subject")
    with served(page_size=2) as odd:
        assert main([*words, "sglang", "--url", odd.url]) == 2
        assert "the server runs page_size 2, not 1; `specmatrix axes` lists" in capsys.readouterr().err
    with served(ServerOptions(port=0, model="mine"), dtype="bfloat16") as other:
        for name in ("sglang", "openai"):
            assert main([*words, name, "--url", other.url]) == 2
            assert "the server runs dtype bfloat16, not float32" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("metrics", "drafters"),
    [("", "standalone, eagle3, eagle, ngram, suffix, dflash"), (VLLM, "none"), (VLLM + DRAFTS, "standalone, eagle3")],
)
def test_a_selector_names_the_drafter_of_an_openai_server(metrics: str, drafters: str, monkeypatch: pytest.MonkeyPatch):
    def get(self: Connection, *paths: str) -> dict[str, object]:
        if paths != ("/v1/models",):
            raise NotThere("it does not say")
        return {"data": [{"id": "llama-mini"}]}

    monkeypatch.setattr(Connection, "get", get)
    monkeypatch.setattr(Connection, "text", lambda self, path: metrics)
    engine = load_subject("openai", Endpoint("http://a"))
    assert ", ".join(cell.algorithm for cell in engine.running()).startswith(drafters)
    left_out = rf"^the server runs {drafters.split(',')[0]}.*, which --cells 'steps=5' leaves out$"
    with pytest.raises(ConfigError, match=left_out):
        listing(engine, "cpu", ["steps=5"])("smoke")
    if drafters == "none":
        assert {cell.algorithm for cell in listing(engine, "cpu", None)("smoke")} == {"none"}
        return
    refused = pytest.raises(ConfigError, match=r"does not say which drafter it has; name it by --cells algorithm=NAME")
    with refused:
        listing(engine, "cpu", None)("smoke")
    named = listing(engine, "cpu", ["algorithm=ngram"])("smoke")
    assert {cell.algorithm for cell in named} == {"ngram"}
