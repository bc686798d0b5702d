"""transformers as a subject: its translation, its rounds, how it ends, and its findings."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import replace
from inspect import getsource

import pytest
import torch
import transformers

from specmatrix import HOME
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import Outcome, State
from specmatrix.matrix.run.provenance import judged, lost
from specmatrix.matrix.run.waivers import load_waivers, waive
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, SubjectRequest, Unsupported
from specmatrix.matrix.subjects.registry import load_subject
from specmatrix.matrix.subjects.transformers.engine import (
    FORBIDDEN,
    MORE,
    ForwardLog,
    TransformersEngine,
    ending,
    with_other_vocabulary,
)
from specmatrix.matrix.subjects.transformers.subject import TransformersSubject, own_requests
from specmatrix.matrix.workloads.build import workload
from specmatrix.matrix.workloads.prepared_cell import PreparedCell, prepare
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_index
from specmatrix.matrix.zoo.registry import resolve_path

NAMES = ("transformers", *(f"transformers-{name}" for name in ("dynamic", "heuristic", "early-exit", "universal")))


@pytest.fixture(autouse=True)
def deterministic():
    """The engine makes torch deterministic for its whole process."""
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


def translated(cell_id: str, name: str = "transformers") -> EngineCommand | Unsupported:
    subject = load_subject(name)
    return subject.translate(prepare(Cell.from_id(cell_id), workload=subject.requests, subject=name))


def command(cell_id: str, subject: str = "transformers") -> EngineCommand:
    found = translated(cell_id, subject)
    assert isinstance(found, EngineCommand)
    return found


def answer(cell_id: str, subject: str = "transformers") -> tuple[TransformersEngine, Answer]:
    one = command(cell_id, subject)
    engine = TransformersEngine(one)
    return engine, engine.generate(one.asks[:1])[0]


def alone(**fields: object) -> PreparedCell:
    return prepare(Cell.from_id("none"), workload=lambda cell, seed: [RequestSpec("a", "Hello", 5, **fields)])


def asked(**fields: object) -> dict[str, object]:
    found = TransformersSubject().translate(alone(**fields))
    assert isinstance(found, EngineCommand)
    return dict(found.asks[0].fields)


def test_what_is_not_allowed_is_suppressed_in_the_whole_vocabulary_of_the_checkpoint():
    config = json.loads((resolve_path("llama-mini") / "config.json").read_text())
    others = asked(allowed_token_ids=(8, 9))["suppress_tokens"]
    assert others == [token for token in range(config["vocab_size"]) if token not in (8, 9)]
    prepared = alone(allowed_token_ids=(1,))
    object.__setattr__(prepared, "facts", replace(prepared.facts, vocab_size=4))
    found = TransformersSubject().translate(prepared)
    assert isinstance(found, EngineCommand) and found.asks[0].fields["suppress_tokens"] == [0, 2, 3]
    unsupported = Unsupported("this subject does not translate clock of a request")
    assert TransformersSubject().translate(alone(clock=1.0)) == unsupported


def test_an_automatic_depth_is_the_matrixs_or_transformers_own():
    for subject, depth, confidence in (("transformers", 3, 0.0), ("transformers-dynamic", 20, 0.4)):
        flags = command("standalone", subject).flags
        assert (flags["num_assistant_tokens"], flags["assistant_confidence_threshold"]) == (depth, confidence)
    assert command("standalone.n6").flags["num_assistant_tokens"] == 5
    assert command("ngram.n8").flags["prompt_lookup_num_tokens"] == 7


def test_rounds_follow_the_length_of_the_cache():
    # A prompt of 4 with 2 drafts, both accepted; 3 drafts, one accepted; no draft.
    log = ForwardLog(passes=[(0, 6), (6, 4), (8, 1)])
    assert log.rounds(4, 10) == ((3, 3), (2, 4), (1, 1))
    # A prompt of 4 without drafts, as in MTP; 2 drafts, one accepted.
    assert ForwardLog(passes=[(0, 4), (4, 3)]).rounds(4, 7) == ((2, 3),)
    assert ForwardLog(passes=[(0, 4)]).rounds(4, 4) == ()


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_a_pass_knows_its_cache_by_the_name_of_each_release(name):
    log, cache = ForwardLog(), transformers.DynamicCache()
    log(None, (), {"input_ids": torch.zeros(1, 6), name: cache})
    cache.update(torch.zeros(1, 1, 6, 2), torch.zeros(1, 1, 6, 2), 0)
    log(None, (), {"input_ids": torch.zeros(1, 4), name: cache})
    assert log.passes == [(0, 6), (6, 4)]


def test_an_ending_is_read_from_the_tokens():
    ask = SubjectRequest("a", (0,), {"eos_token_id": [3], "max_new_tokens": 4, "stop_strings": ["cd", "bc"]})

    def decode(ids):
        return "".join("abcdefg"[token] for token in ids)

    assert ending(ask, [0, 3], decode) == ("a", "stop", 3)
    assert ending(ask, [0, 1, 2], decode) == ("a", "stop", "bc")
    assert ending(ask, [0, 0, 0, 0], decode) == ("aaaa", "length", None)
    assert ending(ask, [0], decode) == ("a", "abort", None)


@pytest.mark.parametrize(
    ("cell_id", "subject"),
    [
        ("standalone.s3", "transformers"),
        ("ngram.n8", "transformers"),
        ("ngram.qwen3.n8", "transformers"),
        ("standalone", "transformers-heuristic"),
        ("standalone", "transformers-early-exit"),
        ("nextn.deepseek.s2", "transformers"),
        ("standalone.length", "transformers-universal"),
    ],
)
def test_speculation_emits_plain_tokens_in_fewer_rounds(cell_id, subject):
    engine, found = answer(cell_id, subject)
    without = Cell.from_id(cell_id)._replace(algorithm="none", steps="auto", draft_tokens="auto").id
    (plain,) = TransformersEngine(command(without)).generate(command(cell_id, subject).asks[:1])
    assert all(type(length) is int for length in (*found.accept_lengths, *found.round_widths))
    same = ("output_ids", "text", "finish", "matched")
    assert [getattr(found, name) for name in same] == [getattr(plain, name) for name in same]
    # MTP has nothing to draft from before the prompt's hidden states are known.
    emitted = len(found.output_ids) - (Cell.from_id(cell_id).algorithm == "nextn")
    assert sum(found.accept_lengths) == emitted and plain.accept_lengths == ()
    assert found.drafts_first == (emitted == len(found.output_ids)) and not plain.drafts_first
    counts = engine.counters()
    assert counts["spec.verify_rounds"] == len(found.accept_lengths) < len(plain.output_ids)
    assert 0 < counts["spec.accepted"] == emitted - len(found.accept_lengths) <= counts["spec.drafted"]


def test_a_text_longer_than_the_model_takes_is_refused_and_logprobs_are_those_of_its_tokens():
    one = command("none")
    engine = TransformersEngine(one)

    def answered(**fields: object) -> Answer:
        return engine.generate([replace(one.asks[0], fields={**one.asks[0].fields, **fields})])[0]

    refused = answered(max_new_tokens=4096)
    assert refused.finish == "refused" and not refused.output_ids
    size = len(one.asks[0].input_ids)
    assert refused.refusal == f"{size} prompt tokens and 4096 new ones; the model takes 4096"
    found = answered(top_logprobs=2, max_new_tokens=4)
    assert len(found.logprobs) == len(found.top_logprobs) == 4
    assert [best[0] for best in found.top_logprobs] == list(zip(found.output_ids, found.logprobs, strict=True))


def test_the_readback_shows_a_prefill_chunk_that_assisted_generation_ignored():
    one = command("standalone.s2.k1.c7.stop_token")
    engine = TransformersEngine(one)
    assert engine.readback() == one.flags
    engine.generate(one.asks)
    assert engine.readback()["prefill_chunk_size"] is None


def test_a_checkpoint_that_transformers_refuses_is_a_config_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 128, "num_attention_heads": 6}')
    with pytest.raises(ConfigError, match=rf"^transformers cannot load {re.escape(str(tmp_path))}: \w+: .*hidden size"):
        TransformersEngine(EngineCommand({"dtype": "float32"}, {"target": str(tmp_path)}))


def test_a_draft_with_another_vocabulary_says_the_same_in_other_ids():
    path = resolve_path("llama-mini-standalone")
    draft = transformers.AutoModelForCausalLM.from_pretrained(path, dtype="float32").eval()
    old = transformers.AutoTokenizer.from_pretrained(path)
    ids = old("Tom has 12 apples.", return_tensors="pt").input_ids
    with torch.inference_mode():
        before = draft(ids).logits[0, -1]
        new = with_other_vocabulary(draft, path)
        others = new("Tom has 12 apples.", return_tensors="pt").input_ids
        after = draft(others).logits[0, -1]
    assert draft.config.vocab_size == len(new.get_vocab()) == 768 + MORE and not torch.equal(ids, others)
    assert new.decode(others[0]) == old.decode(ids[0])
    moved = [new.get_vocab()[token] for token, _ in sorted(old.get_vocab().items(), key=lambda item: item[1])]
    assert moved[:2] == [0, 1] and torch.equal(after[moved], before)
    assert int(after.argmax()) == moved[int(before.argmax())]


def test_only_a_draft_has_another_vocabulary_and_mtp_drafts_with_each_prediction_layer():
    assert command("standalone", "transformers-universal").variant == "other vocabulary"
    assert command("none", "transformers-universal").variant == command("standalone").variant == ""
    engine = TransformersEngine(command("nextn.deepseek"))
    assert engine.resolved == {"num_steps": 2, "topk": 1, "num_draft_tokens": 3}
    assert TransformersEngine(command("none")).resolved == {}
    found = translated("nextn.deepseek.s3")
    assert isinstance(found, Unsupported) and "drafts one token per prediction layer" in found.reason


@pytest.mark.filterwarnings("ignore")
def test_each_logits_processor_of_generate_is_in_a_cell(monkeypatch):
    """But for classifier-free guidance, whose state drafts damage."""
    seen, call = set(), transformers.LogitsProcessorList.__call__

    def spied(self: transformers.LogitsProcessorList, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        seen.update(type(one).__name__ for one in self)
        return call(self, ids, scores)

    monkeypatch.setattr(transformers.LogitsProcessorList, "__call__", spied)
    engine = TransformersEngine(command("none"))
    for cell in ("none.rules", "none.stops", "none.temperature", "none.topk_topp"):
        for ask in command(cell).asks[:30]:
            engine.generate([replace(ask, fields={**ask.fields, "max_new_tokens": 1})])
    every = {*re.findall(r"processors\.append\(\s*(\w+)\(", getsource(transformers.generation.utils))}
    assert len(every) > 20 and every - seen == {"UnbatchedClassifierFreeGuidanceLogitsProcessor"}
    assert "WatermarkLogitsProcessor" in seen


def test_own_requests_have_names_of_their_own_and_the_oracles_where_it_knows_their_text():
    for cell in ("none.rules", "ngram.rules.stops", "standalone.stops"):
        names = [request.name for request in own_requests(Cell.from_id(cell), 3)]
        assert len({*names}) == len(names)
    known = [oracle_index(request) for request in own_requests(Cell.from_id("none.stops"), 0)]
    assert len(known) == 4 and sum(index is not None for index in known) == 2
    assert own_requests(Cell.from_id("none.length"), 5) == workload(Cell.from_id("none.length"), 5)


def test_a_forbidden_token_has_a_finite_log_probability():
    one = command("none.rules")
    ask = next(ask for ask in one.asks if ask.fields["do_sample"] and "typical_p" in ask.fields)
    (found,) = TransformersEngine(one).generate([ask])
    values = [value for column in found.top_logprobs for _, value in column]
    assert min(values) == FORBIDDEN and len(found.top_logprobs[0]) == 768


NAMELESS = "stop strings, but we could not locate a tokenizer"
STOPS = ("standalone.stop_string", "crash", NAMELESS, "5.17.0 5.18.0 5.21.1 5.24.0", "5.16.1 5.25.0")
CROPPED = "TypeError: 'NoneType' object is not subscriptable"
FEWER = "acceptance length 1.173, the oracle has 3.455: ratio {}, which must lie within 0.9 to 1.1"


@pytest.mark.parametrize(
    ("subject", "cell", "gate", "said", "waived", "red"),
    [
        *((name, *STOPS) for name in NAMES),
        (
            "transformers-early-exit",
            "standalone.qwen3.stop_string",
            "crash",
            NAMELESS,
            "5.17.0 5.18.0 5.19.0 5.24.0",
            "5.25.0",
        ),
        ("transformers-early-exit", "standalone.qwen3", "crash", CROPPED, "5.17.0 5.18.0", "5.19.0 5.24.0"),
        ("transformers", "standalone.s3.c7", "acceptance", FEWER.format(0.34), "5.17.0 5.18.0 5.20.2", "5.21.0 5.24.0"),
    ],
)
def test_a_waiver_holds_for_the_releases_that_have_the_defect_and_for_what_it_says(
    subject, cell, gate, said, waived, red
):
    rules = load_waivers(HOME / "examples" / "transformers-waivers.yaml")
    prepared = prepare(Cell.from_id(cell), subject=subject)

    def covered(text: str, version: str) -> bool:
        crash = lost(prepared, text)
        found = crash if gate == "crash" else judged(prepared, [Outcome(gate, State.FAIL, message=text)])
        return waive(found, rules, subject, version).waived is not None

    for version in waived.split():
        assert covered(said, version), version
        assert not covered(FEWER.format(1.34) if gate == "acceptance" else "died", version)
    assert not any(covered(said, version) for version in red.split())


SPEC = importlib.util.spec_from_file_location("findings", HOME / "docs" / "findings" / "in_transformers.py")
assert SPEC is not None and SPEC.loader is not None
findings = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(findings)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", findings.FINDINGS)
def test_each_finding_is_still_there(name):
    should, does = findings.FINDINGS[name]()
    assert should != does, f"{name} is mended in transformers {transformers.__version__}; take it off docs/findings.md"


@pytest.mark.filterwarnings("ignore")
def test_the_script_says_which_findings_were_reproduced(monkeypatch, capsys):
    made_up = {"there": lambda: (0, 1), "gone": lambda: (1, 1)}
    monkeypatch.setattr(findings, "FINDINGS", made_up)
    assert findings.main([]) == 1
    assert capsys.readouterr().out.splitlines()[3::4] == ["  reproduced", "  not reproduced"]
    assert findings.main(["there"]) == 0
    assert capsys.readouterr().out.endswith("1 of 1 reproduced\n")
    with pytest.raises(SystemExit, match="2"):
        findings.main(["nope"])
    assert capsys.readouterr().err.endswith("unknown finding 'nope'; allowed: there, gone\n")


def test_the_page_lists_every_finding():
    page = (HOME / "docs" / "findings.md").read_text(encoding="utf-8").partition("\n## llama.cpp ")[0]
    assert sorted(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)) == sorted(findings.FINDINGS)
