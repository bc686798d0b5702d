"""Cells over HTTP: the subjects sglang and openai against servers of this engine, whose journal says what happened."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from specmatrix.cli import main
from specmatrix.engine.core.memory.ledger import Entry, replay
from specmatrix.engine.server.app import ServerOptions
from specmatrix.engine.server.engine_thread import Ticket
from specmatrix.errors import ConfigError, shown
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.run.runner import subject_runner
from specmatrix.matrix.subjects.contract import check_contract
from specmatrix.matrix.subjects.http.connection import Connection, NotThere
from specmatrix.matrix.subjects.http.endpoint import NO_BASELINE, Endpoint, endpoint_of
from specmatrix.matrix.subjects.http.openai import UNSAID
from specmatrix.matrix.subjects.http.sglang import SglangSubject, launch_flags, mismatches
from specmatrix.matrix.subjects.protocol import EngineCommand, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.zoo.registry import CHECKPOINTS
from specmatrix.reports.schema import CellResult
from specmatrix.reports.store import load
from tests.support.served import MODEL, TEMPLATE, RunningServer, served, templated

CELL = "eagle3.s3.k1.n4.p4"
SPECULATES = "the server runs speculative_algorithm EAGLE3, not None"
SGLANG = ("run", "--subject", "sglang")
PLAIN: dict[str, Any] = {
    "speculative_algorithm": "NONE",
    "speculative_draft_model_path": None,
    "speculative_num_steps": "auto",
    "speculative_eagle_topk": "auto",
}


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningServer]:
    """The baseline: the same server without speculation."""
    with served(**PLAIN) as one:
        yield one


def run(subject: str, endpoint: Endpoint, *cells: str) -> list[CellResult]:
    """The records of cells."""
    runner = subject_runner(subject, 0, "cpu", endpoint=endpoint)
    try:
        return [runner.run_cell(Cell.from_id(cell)) for cell in cells]
    finally:
        runner.shut_down()


def test_cells_pass_on_a_server_and_its_baseline_and_the_journal_agrees(server: RunningServer, plain: RunningServer):
    before = dict(server.llm.counters)
    endpoint = Endpoint(server.url, plain.url)
    pair, aborted, turns, other = run(
        "sglang", endpoint, f"{CELL}.pair", f"{CELL}.pair.abort_running", f"{CELL}.stream", "eagle3.s5.k1.p4"
    )
    for found in (pair, aborted, turns):
        assert found.state == "PASS", [(gate.name, gate.message) for gate in found.gates]
    judges = {"claimed_capabilities", "oracle", "identities", "lossless", "finish", "acceptance"}
    assert {gate.name for gate in pair.gates} == judges
    assert (other.state, other.error) == ("UNSUPPORTED", "the server runs speculative_num_steps 3, not 5")
    after = server.llm.counters
    grown = {name: after[name] - before[name] for name in after}
    assert grown["abort.running"] >= 1
    assert grown["session.opened"] and server.held() == 0
    state = replay(server.journal)
    assert not state.accounts and not state.counts.held


def accepted_in(journal: Sequence[Entry], ticket: Ticket) -> list[int]:
    """Accepted drafts of each verify round that a request needed for its tokens, as its account was settled."""
    assert ticket.output is not None
    output = ticket.output
    prefill, widths = len(ticket.request.prompt) - output.cached_tokens, deque[int]()
    accepted, tokens = list[int](), 1  # the prefill's
    for operation, account, number, _ in journal:
        if account != ticket.rid or tokens >= len(output.output_ids):  # what was in flight then is nobody's
            continue
        if operation == "launch":
            widths.append(number)
        elif operation == "settle" and prefill > 0:
            prefill -= widths.popleft()
        elif operation == "settle":
            assert widths.popleft() == 4
            accepted.append(number - 1)
            tokens += number
    return accepted


def ended(server: RunningServer) -> dict[str, Ticket]:
    """The requests that have ended since the last call, by name."""
    found = {}
    while not server.ended.empty():
        ticket = server.ended.get()
        found[ticket.name] = ticket
    return found


@pytest.mark.parametrize("request_axes", ["pair", "pair.stop_string", "pair.length", "pair.abort_running"])
def test_the_metrics_of_each_answer_and_the_gates_rounds_are_the_journals(request_axes: str, server: RunningServer):
    cell = f"{CELL}.{request_axes}"
    subject = load_subject("sglang", Endpoint(server.url))
    command = subject.translate(prepare(Cell.from_id(cell), subject="sglang"))
    assert isinstance(command, EngineCommand), command
    ended(server)
    engine, start = subject.start(command), len(server.journal)
    answers = engine.generate(command.asks)
    counted = engine.counters()
    engine.close()
    tickets = ended(server)
    rounds = [accepted_in(server.journal[start:], tickets[answer.meta_info["id"]]) for answer in answers]
    for answer, accepted in zip(answers, rounds, strict=True):
        assert answer.meta_info["spec_verify_ct"] == len(accepted) > 1
        assert answer.meta_info["spec_num_correct_drafts"] == sum(accepted)
        histogram = answer.meta_info["spec_correct_drafts_histogram"]
        assert histogram == [accepted.count(drafts) for drafts in range(max(accepted) + 1)]
    drafted = 3 * sum(map(len, rounds))
    assert counted == {"spec.accepted": sum(map(sum, rounds)), "spec.drafted": drafted}
    start = len(server.journal)
    (found,) = run("sglang", Endpoint(server.url), cell)
    gate = found.gate("identities")
    assert gate is not None and found.state == "PASS", found
    assert gate.numbers["rounds"] == sum(
        len(accepted_in(server.journal[start:], ticket)) for ticket in ended(server).values()
    )


def test_no_earlier_cell_is_in_the_cache_of_one(server: RunningServer):
    subject = load_subject("sglang", Endpoint(server.url))
    command = subject.translate(prepare(Cell.from_id(f"{CELL}.pair"), subject="sglang"))
    assert isinstance(command, EngineCommand), command
    engine = subject.start(command)
    first = command.asks[0]
    again = replace(first, id=f"{first.id}.again", after=(first.id,))
    rounds = [engine.generate([first, again]) for _ in range(2)]
    engine.close()
    cached = [[answer.cached_tokens for answer in answers] for answers in rounds]
    names = {answer.meta_info["id"] for answers in rounds for answer in answers}
    assert len(names) == 4, "no name is used twice"
    # SGLang aborts all requests that begin with the name.
    assert not any(one != other and one.startswith(other) for one in names for other in names)
    assert cached[0] == cached[1] and cached[0][0] == 0 < cached[0][1]


def test_cells_that_the_server_cannot_queue_or_mask_are_unsupported(server: RunningServer):
    subject = load_subject("sglang", Endpoint(server.url))
    assert isinstance(subject, SglangSubject) and subject.server["max_queued_requests"] == 128
    burst = prepare(Cell.from_id(f"{CELL}.burst"), subject="sglang")
    many = len(burst.requests)
    slots = subject.server["max_running_requests"]
    for queue, fits in ((None, True), (many - slots, True), (many - slots - 1, False)):
        subject.server["max_queued_requests"] = queue
        found = subject.translate(burst)
        reason = f"the cell sends more requests at once than the server runs and queues ({slots} and {queue})"
        assert isinstance(found, EngineCommand) if fits else found == Unsupported(reason)
    subject.server |= {"max_queued_requests": None, "page_size": 16, "device": "cpu", "grammar_backend": "xgrammar"}
    found = subject.translate(prepare(Cell.from_id("eagle3.s3.p16.mixed_lengths.regex"), subject="sglang"))
    assert isinstance(found, Unsupported) and found.reason.endswith("allowed: --grammar-backend llguidance")


class Flushed(BaseHTTPRequestHandler):
    """Answers as SGLang's /flush_cache does. kept: what each request says of its connection."""

    kept: list[str | None]

    def do_POST(self) -> None:
        self.kept.append(self.headers["Connection"])
        text = b"Cache flushed.\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


def test_an_answer_in_plain_text_is_none_and_a_streams_connection_serves_no_other_request():
    Flushed.kept = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Flushed) as plain:
        Thread(target=plain.serve_forever, daemon=True).start()
        with Connection("http://{}:{}".format(*plain.server_address), None) as connection:
            assert connection.post("/flush_cache", {}) is None
            assert list(connection.stream("/generate", {})) == []
        plain.shutdown()
    assert Flushed.kept == ["keep-alive", "close"]


def test_without_a_baseline_the_oracle_judges_the_run_itself(server: RunningServer):
    *found, none = run(
        "sglang", Endpoint(server.url), f"{CELL}.pair", f"{CELL}.pair.stream", f"{CELL}.pair.branch", "none.p4"
    )
    for one in found:
        assert one.state == "PASS", one
        judges = {"claimed_capabilities", "oracle", "identities", "finish", "acceptance"}
        assert {gate.name for gate in one.gates} == judges | ({"session"} if one.id != f"{CELL}.pair" else set())
    assert (none.state, none.error) == ("UNSUPPORTED", SPECULATES)
    excluded = load_subject("sglang", Endpoint(server.url)).profile.excluded
    assert excluded == dict.fromkeys(("lossless", "accuracy"), NO_BASELINE)


@pytest.mark.parametrize("name", ["sglang", "openai"])
def test_no_cell_passes_that_the_server_does_not_have(name: str, server: RunningServer, plain: RunningServer):
    here, there = Endpoint(server.url, plain.url), Endpoint(plain.url)
    for one in run(
        name, here, "none.pair", "none.qwen3.nocache", "none.p4", f"{CELL}.nocache", "eagle3.qwen3", "ngram"
    ):
        assert one.state == "UNSUPPORTED" and one.error, one
    for one in run(name, there, "none.qwen3", "none.p16", "none.p4.nocache", CELL):
        assert one.state == "UNSUPPORTED" and one.error, one
    (alone,) = run(name, there, "none.pair" if name == "openai" else "none.p4.pair")
    assert alone.state == "PASS" and "lossless" not in {gate.name for gate in alone.gates}, alone


def test_a_baseline_of_another_dtype_is_refused(server: RunningServer):
    refused = pytest.raises(ConfigError, match=r"^--baseline-url runs dtype bfloat16; allowed: float32$")
    with served(**PLAIN, dtype="bfloat16") as other, refused:
        load_subject("sglang", Endpoint(server.url, other.url))


def test_openais_api_is_judged_by_its_texts(server: RunningServer, plain: RunningServer):
    (pair,) = run("openai", Endpoint(server.url, plain.url), "eagle3.pair.stop_string")
    text = pair.gate("text")
    assert pair.state == "PASS" and text is not None and text.numbers["characters"] > 50, pair
    with pytest.raises(ConfigError, match=r"^subject 'openai-chat' compares texts with a baseline's only: "):
        load_subject("openai-chat", Endpoint(server.url))


def test_chats_are_compared_with_the_baselines(tmp_path: Path):
    same, other = (tmp_path / name for name in ("same", "other"))
    for folder, template in ((same, TEMPLATE), (other, TEMPLATE.replace("Answer:", "Answer: 7"))):
        folder.mkdir()
        templated(folder, template)
    with served(folder=same / MODEL) as server:
        for folder, state in ((same, "PASS"), (other, "FAIL")):
            with served(folder=folder / MODEL, **PLAIN) as baseline:
                pair, sampled = run(
                    "openai-chat", Endpoint(server.url, baseline.url), "eagle3.pair", "eagle3.temperature"
                )
            text = pair.gate("text")
            assert pair.state == state and text is not None and text.numbers["characters"] > 50, pair
            assert sampled.state == "UNSUPPORTED"
            assert [gate.name for gate in pair.gates] == ["claimed_capabilities", "text"]


def served_as(
    monkeypatch: pytest.MonkeyPatch, url: str, model: dict[str, str], other: dict[str, str] | None = None
) -> None:
    """Let servers report these models, the one at `url` the first, and nothing of what runs."""

    def get(self: Connection, *paths: str) -> dict[str, object]:
        if paths != ("/v1/models",):
            raise NotThere(f"{self.url} does not say")
        return {"data": [model if self.url == url or other is None else other]}

    monkeypatch.setattr(Connection, "get", get)
    monkeypatch.setattr(Connection, "text", lambda self, path: "")


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ({"id": "zoo/llama-mini"}, ""),
        ({"id": "m", "root": "/models/llama-mini"}, ""),
        ({"id": "m", "root": "/models/qwen3-mini"}, "the server runs the model m or qwen3-mini, not llama-mini"),
        ({"id": "m"}, "the server runs the model m, not llama-mini"),
    ],
)
def test_a_server_that_names_its_model_alone_is_taken_at_its_word(
    model: dict[str, str], served: str, monkeypatch: pytest.MonkeyPatch
):
    served_as(monkeypatch, "http://a", model)
    subject = load_subject("openai", Endpoint("http://a"))
    found = [subject.translate(prepare(Cell.from_id(cell), subject="openai")) for cell in ("eagle3.pair", "none.pair")]
    assert [one.reason if isinstance(one, Unsupported) else "" for one in found] == [served, served or UNSAID]


def test_a_baseline_of_another_model_is_refused(monkeypatch: pytest.MonkeyPatch):
    served_as(monkeypatch, "http://a", {"id": "llama-mini"}, {"id": "qwen3-mini"})
    with pytest.raises(ConfigError, match=r"^--baseline-url serves qwen3-mini; it must serve llama-mini"):
        load_subject("openai", Endpoint("http://a", "http://b"))


@pytest.mark.nightly
def test_the_contract_holds_over_http():
    with served(page_size=1) as server:
        broken = {law.name: law.check() for law in check_contract(load_subject("sglang", Endpoint(server.url)))}
    assert len(broken) == 9 and not any(broken.values())


@pytest.mark.nightly
def test_a_server_is_started_for_each_cell_and_none_is_left(tmp_path: Path):
    launch = f"{sys.executable} -m specmatrix serve {{flags}} --spec-version={{spec_version}}"
    launch += f" --served-model-name={tmp_path}"
    cells = "eagle3.s3.k4.n8.p4.v2.pair.stream or eagle3.s3.k1.p4.v1.pair"
    words = ["--stage", "product", "--cells", cells, "--workers", "1", "--out", str(tmp_path)]
    known = "{cells: spec_version=v1, subject: sglang, versions: '>=0.2', gate: finish, reason: x, expiry: 2999-12-31}"
    (tmp_path / "known.yaml").write_text(f"[{known}]")
    words += ["--waivers", str(tmp_path / "known.yaml")]
    assert main(["run", "--subject", "sglang", "--launch", launch, *words]) == 1
    found = sorted(load(tmp_path), key=lambda cell: cell.state)
    assert [(cell.state, cell.start.rewrites) for cell in found] == [("FAIL", ()), ("PASS", ())]
    assert found[0].error.startswith("finish passes again"), "a server that is started here has a version"
    assert {cell.start.resolved and cell.start.resolved["disable_overlap_schedule"] for cell in found} == {True, False}
    ends = monotonic() + 30  # the workers are killed, and the servers end with them
    while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if names(path, str(tmp_path))]:
        assert monotonic() < ends, left


def names(path: Path, word: str) -> bool:
    """Whether a process has a word on its command line."""
    try:
        return word.encode() in path.read_bytes()
    except OSError:  # it has ended
        return False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (SGLANG, "subject 'sglang' is a server; give --url URL or --launch COMMAND"),
        (("run", "--url", "http://127.0.0.1:1"), "--url and --launch need --subject sglang, openai or openai-chat"),
        (("run", "--subject", "transformers", "--url", "http://x"), "subject 'transformers' is no server; --url and "),
        ((*SGLANG, "--url", "x"), "--url is 'x'; allowed: a URL such as http://127.0.0.1:30000"),
        ((*SGLANG, "--launch", "x"), "--launch is 'x'; it must hold {flags}, where the flags "),
        ((*SGLANG, "--launch", "{flags}", "--url", "http://x"), "--url and --launch: exactly one "),
        ((*SGLANG, "--launch", "{flags}", "--baseline-url", "http://x"), "--baseline-url goes "),
        ((*SGLANG, "--launch", "a 'b {flags}"), '--launch is "a \'b {flags}", which is no command'),
        (("subjects", "check", "openai", "--launch", "{flags}"), "subject 'openai' is reached by --url; --launch is "),
        ((*SGLANG, "--url", "http://127.0.0.1:1"), "http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_half_an_endpoint_is_refused(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"specmatrix: {message}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("launch", "said"),
    [("false {flags}", "it printed nothing"), ("sh -c 'echo no GPU; exit 1' {flags}", "end of its output:\nno GPU")],
)
def test_a_command_that_starts_no_server_is_named(launch: str, said: str):
    (found,) = run("sglang", Endpoint(launch=launch), CELL)
    what = f"the server of --launch {shown(launch)} ended with status 1 at its start; {said}"
    assert (found.state, found.error) == ("FAIL", f"the engine does not run the cell: {what}")


def test_sessions_need_a_server_that_has_them():
    cells = [Cell.from_id(f"eagle3.s3{session}") for session in ("", ".branch", ".stream")]
    assert [launch_flags(cell).get("enable_streaming_session") for cell in cells] == [None, None, True]
    running: dict[str, object] = {"model_path": "llama-mini", "speculative_algorithm": "EAGLE3", "page_size": 1}
    running |= {"speculative_num_steps": 3, "tp_size": 1, "dtype": "float32"}
    lacking = "the server does not report enable_streaming_session"
    off = "the server runs enable_streaming_session False, not True"
    for value, said in ((None, [lacking]), (False, [off]), (True, [])):
        has = running if value is None else running | {"enable_streaming_session": value}
        assert [list(mismatches(cell, has)) for cell in cells] == [[], [], said]


def test_a_key_that_is_missing_or_wrong_is_named():
    with served(ServerOptions(port=0, model="llama-mini", key="right")) as server:
        for key, said in ((None, "needs a key; give --api-key"), ("wrong", "refuses the key of --api-key")):
            for name in ("sglang", "openai"):
                with pytest.raises(ConfigError, match=rf"^{server.url} {said} \(status 401\)$"):
                    load_subject(name, Endpoint(server.url, key=key))
        assert load_subject("sglang", Endpoint(server.url, key="right")).version()


def test_a_baseline_that_speculates_or_is_none_is_refused(server: RunningServer):
    for url in (server.url, server.url.upper().lower() + "/"):
        with pytest.raises(ConfigError, match=rf"^--baseline-url is --url, '{server.url}'; it must be another server$"):
            Endpoint(server.url, url)
    other_name = server.url.replace("127.0.0.1", "localhost")
    for name in ("openai", "sglang"):
        with pytest.raises(ConfigError, match=r"^--baseline-url runs EAGLE3; allowed: no speculation$"):
            load_subject(name, Endpoint(server.url, other_name))
    with pytest.raises(ConfigError, match=r"does not say what it runs: /get_server_info answers with status 404$"):
        load_subject("sglang", Endpoint(server.url + "/v1"))
    assert endpoint_of(None, None, None, None) is None


def test_the_options_of_an_endpoint_are_part_of_a_repro_without_the_key():
    text = Endpoint("http://a", "http://b", key="secret").options
    assert text == "--url http://a --baseline-url http://b"
    assert Endpoint(launch="run {flags}").options == "--launch 'run {flags}'"


def test_a_baseline_of_another_model_is_refused_by_its_path(server: RunningServer):
    refused = pytest.raises(
        ConfigError, match=r"^--baseline-url serves qwen3-mini; it must serve llama-mini, as --url does$"
    )
    with served(folder=CHECKPOINTS / "qwen3-mini", **PLAIN) as other, refused:
        load_subject("sglang", Endpoint(server.url, other.url))
