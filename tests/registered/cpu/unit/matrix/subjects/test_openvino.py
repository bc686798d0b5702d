"""OpenVINO GenAI as a subject: what it translates, and its engine on a scripted pipeline. The goldens have the rest."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.openvino import engine as engines
from specmatrix.matrix.subjects.openvino.engine import OpenVinoEngine
from specmatrix.matrix.subjects.openvino.subject import COMPLETIONS, TREELESS, OpenVinoSubject
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, Unsupported
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

PLAIN = RequestSpec("q", "Question:", 9)


def translated(cell: str, *requests: RequestSpec) -> EngineCommand | Unsupported:
    return OpenVinoSubject().translate(prepare(Cell.from_id(cell), subject="openvino", workload=lambda *_: requests))


class Handle:
    """steps: for each step, the outputs to read by completion: tokens and how it ended."""

    def __init__(self, steps: list[dict[int, tuple[list[int], str]]], status: str, counts: list[int]) -> None:
        self.steps, self.end, self.waiting, self.cancelled = steps, status, list[Any](), False
        self.perf = SimpleNamespace(raw_metrics=SimpleNamespace(m_batch_sizes=counts))

    def can_read(self) -> bool:
        return bool(self.waiting) and not self.cancelled

    def read(self) -> dict[int, SimpleNamespace]:
        return {
            number: SimpleNamespace(
                generated_ids=ids,
                generated_log_probs=[-0.5] * len(ids),
                finish_reason=SimpleNamespace(name=end or "NONE"),
            )
            for number, (ids, end) in self.waiting.pop(0).items()
        }

    def get_status(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.end if not self.steps else "RUNNING")

    def get_perf_metrics(self) -> SimpleNamespace:
        return self.perf

    def cancel(self) -> None:
        self.cancelled, self.steps, self.end = True, [], "CANCEL"


class Pipeline:
    def __init__(self, *handles: Handle | str) -> None:
        self.handles, self.running, self.configs = list(handles), list[Handle](), list[Any]()

    def add_request(self, number: int, prompt: object, config: SimpleNamespace) -> Handle:
        self.configs.append(config)
        if isinstance(found := self.handles.pop(0), str):
            raise RuntimeError(found)
        self.running.append(found)
        return found

    def step(self) -> None:
        for one in self.running:
            one.waiting += [one.steps.pop(0)] if one.steps else []
        self.running = [one for one in self.running if one.steps]

    def has_non_finished_requests(self) -> bool:
        return bool(self.running)

    def get_tokenizer(self) -> SimpleNamespace:
        return SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))


def answered(
    monkeypatch: pytest.MonkeyPatch, request: RequestSpec, handle: Handle | str, cell: str = "none"
) -> tuple[Answer, Any]:
    monkeypatch.setattr(engines, "_tensor", tuple)
    command = translated(cell, request)
    assert isinstance(command, EngineCommand)
    pipeline = Pipeline(handle)
    engine = OpenVinoEngine(command, pipeline, SimpleNamespace(GenerationConfig=SimpleNamespace))
    (answer,) = engine.generate(command.asks)
    return answer, pipeline.configs[0]


def test_rounds_are_the_steps_unless_text_is_held_back_for_a_stop_string(monkeypatch):
    steps = [{0: ([65], "")}, {0: ([66, 67], "")}, {0: ([68, 1], "STOP")}]
    found, config = answered(monkeypatch, PLAIN, Handle(steps, "FINISHED", [1, 2, 3]), "standalone.s3")
    assert (found.output_ids, found.text, found.finish, found.matched) == ((65, 66, 67, 68, 1), "ABCD", "stop", 1)
    assert found.accept_lengths == (2, 2) and found.logprobs == (-0.5,) * 5
    assert config.num_assistant_tokens == 3 and config.stop_token_ids == {1} and not hasattr(config, "stream")
    held = [{}, {}, {0: ([65, 62, 62, 66], "STOP")}]
    stops = replace(PLAIN, stop=(">>",), stream=True)
    found, config = answered(monkeypatch, stops, Handle(held, "FINISHED", [0, 1, 2, 3]), "ngram.n4")
    assert (found.text, found.matched, found.accept_lengths, found.pieces) == ("A", ">>", (2, 3), ("A",))
    assert config.stop_strings == {">>"} and config.max_ngram_size == 2
    short, _ = answered(
        monkeypatch, stops, Handle([{}, {0: ([65, 62, 62, 66], "STOP")}], "FINISHED", [1, 2]), "ngram.n4"
    )
    assert short.accept_lengths == (3,)
    kept, _ = answered(
        monkeypatch, replace(stops, no_stop_trim=True), Handle([{0: ([65, 62, 62], "STOP")}], "FINISHED", [])
    )
    assert (kept.text, kept.accept_lengths) == ("A>>", ())
    monkeypatch.delattr(Handle, "get_perf_metrics")  # before 2026.4: the rounds are those of the readings
    steps = [{}, {0: ([65, 66], "")}, {0: ([67, 62, 62], "STOP")}]
    old, _ = answered(monkeypatch, stops, Handle(steps, "FINISHED", [1, 2, 2]), "ngram.n4")
    assert (old.text, old.accept_lengths) == ("ABC", (1, 3))


@pytest.mark.parametrize(
    ("handle", "finish", "message", "ids"),
    [
        ("'max_length' is too small", "refused", "'max_length' is too small", ()),
        (Handle([{0: ([65, -1, 66], "")}, {}], "FINISHED", []), "error", "returned the token -1, which is none", (65,)),
        (Handle([{0: ([65], "")}], "IGNORED", []), "error", "OpenVINO GenAI ended it as IGNORED", (65,)),
        (Handle([{0: ([65], "LENGTH")}], "FINISHED", []), "length", "", (65,)),
    ],
)
def test_how_a_request_ends(monkeypatch, handle, finish, message, ids):
    found, _ = answered(monkeypatch, PLAIN, handle)
    assert (found.finish, found.output_ids) == (finish, ids)
    assert (found.refusal or str(found.matched or "")).endswith(message)


def test_an_abort_cancels_and_completions_are_apart(monkeypatch):
    steps = [{0: ([65], ""), 1: ([66], "")}] * 4
    twice = replace(PLAIN, n=2, temperature=1.0)
    handle = Handle(list(steps), "FINISHED", [])
    found, config = answered(monkeypatch, replace(twice, abort_after=2), handle)
    assert handle.cancelled
    assert (found.finish, found.output_ids, found.further[0].text) == ("abort", (65, 65), "BB")
    assert config.num_return_sequences == 2 and config.do_sample
    ignored, config = answered(
        monkeypatch, replace(PLAIN, ignore_eos=True, stop_token_ids=(9,)), Handle([{}], "FINISHED", [])
    )
    assert (config.stop_token_ids, config.eos_token_id, config.ignore_eos) == ({9}, 9, False) and not ignored.output_ids


def test_what_openvino_has_not_is_unsupported_and_what_it_refuses_ends_the_start():
    assert translated("ngram", replace(PLAIN, n=2, temperature=1.0)) == Unsupported(COMPLETIONS)
    assert translated("none", replace(PLAIN, n=2)) == Unsupported(COMPLETIONS)
    assert translated("none", replace(PLAIN, logit_bias=((1, 2.0),))) == Unsupported(
        "this subject does not translate logit_bias of a request"
    )
    command = translated("none.tight.pair", PLAIN)
    assert isinstance(command, EngineCommand)
    with pytest.raises(ConfigError, match=r"^OpenVINO GenAI does not start: ModuleNotFoundError: No module named "):
        OpenVinoEngine(command, None, SimpleNamespace())


@pytest.mark.parametrize(("version", "has"), [("2026.2.1.0", False), ("2026.3.0.0", True), (None, True)])
def test_a_release_without_trees_has_their_cells_unsupported(monkeypatch, version, has):
    monkeypatch.setattr(OpenVinoSubject, "version", lambda _: version)
    assert translated("eagle3.s3", PLAIN) != Unsupported(TREELESS)
    assert (translated("eagle3.s3.k4.n8", PLAIN) == Unsupported(TREELESS)) is not has


def test_a_request_that_never_ends_is_named(monkeypatch):
    with pytest.raises(RuntimeError, match=r"^OpenVINO GenAI has no unfinished request, but q has not ended$"):
        answered(monkeypatch, PLAIN, Handle([], "RUNNING", []))
