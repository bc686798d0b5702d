"""vLLM as a subject: its flags and fields and its engine on recorded traffic."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from specmatrix import HOME
from specmatrix.child_process import FOREIGN
from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.gates.gate import State
from specmatrix.matrix.gates.registry import applied_gates
from specmatrix.matrix.run.requests import served
from specmatrix.matrix.subjects.engine_process import EngineFailed, EngineProcess
from specmatrix.matrix.subjects.environment import VLLM
from specmatrix.matrix.subjects.protocol import Answer, EngineCommand, Run, Unsupported
from specmatrix.matrix.subjects.vllm.engine import CALLS, LookupLog, Running, VllmEngine, agree, count_preemptions
from specmatrix.matrix.subjects.vllm.subject import BLOCKS, SuffixSubject, VllmSubject
from specmatrix.matrix.subjects.vllm.widen import widen
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.questions import prompt_ids
from specmatrix.matrix.workloads.request import RequestSpec
from specmatrix.matrix.workloads.stored_oracle import oracle_of
from specmatrix.matrix.zoo.registry import resolve_path
from tools.record_vllm import CELLS, FILE, LOOKED_UP, LOOKUPS, Replay, command, recorded


def translated(cell: str, tier: str = "cpu", **more: object) -> EngineCommand | Unsupported:
    given = {"workload": lambda *_: (RequestSpec("q", "Question:", 5, **more),)} if more else {}
    return VllmSubject().translate(prepare(Cell.from_id(cell), tier, subject="vllm", **given))


def test_a_gpu_has_smaller_blocks_ranks_and_graphs_and_warm_scores_need_all():
    """The rest is in the golden translations."""
    assert translated("none.p4", "gpu1") == Unsupported(BLOCKS)
    latent = Unsupported("vLLM's latent attention takes no float32 on a GPU")
    assert translated("none.deepseek", "gpu1") == latent
    alone = translated("none.pair", "gpu1")
    assert alone.flags["kv_cache_memory_bytes"] == 2**30 and alone.environment["TRITON_F32_DEFAULT"] == "ieee"
    ranks = translated("none.tp2.pair", "gpu2").flags
    assert (ranks["tensor_parallel_size"], ranks["block_size"]) == (2, 16) and "enforce_eager" not in ranks
    assert translated("none", logprobs=True, temperature=0.5).asks[0].fields["logprobs"] == -1
    assert translated("none", temperature=2.5) == Unsupported("vLLM takes temperatures up to 2")
    assert translated("none", clock=1.0) == Unsupported("this subject does not translate clock of a request")


@pytest.mark.parametrize(
    ("name", "part", "size", "bound"),
    [
        ("deepseek-mini", "self_attn.kv_a_layernorm", 512, 1e-3),
        # Another epsilon of the norms, without which the difference is 4 and more.
        ("qwen3next-mini", "linear_attn.norm", 64, 0.1),
        ("qwen35-mini", "linear_attn.norm", 64, 0.1),
    ],
)
def test_the_wide_checkpoint_is_the_same_function(tmp_path, name, part, size, bound):
    source = resolve_path(name)
    widen(source, tmp_path)
    narrow, wide = (AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32) for place in (source, tmp_path))
    assert wide.model.layers[0].get_submodule(part).weight.shape == (size,)
    tokens = torch.tensor([oracle_of(name).continuations[0]])
    with torch.no_grad():
        torch.testing.assert_close(wide(tokens).logits, narrow(tokens).logits, rtol=1e-4, atol=bound)
    assert (tmp_path / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()


def test_a_draft_gets_heads_of_zeros_until_they_divide_its_hidden_size(tmp_path):
    source = resolve_path("qwen35-mini-eagle3")
    widen(source, tmp_path)
    narrow, wide = (load_file(place / "model.safetensors") for place in (source, tmp_path))
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"]) == (4, 1, 80)
    other = {name for name in narrow if narrow[name].shape != wide[name].shape}
    assert other == {"midlayer.self_attn.q_proj.weight", "midlayer.self_attn.o_proj.weight"}
    q, o = (f"midlayer.self_attn.{name}_proj.weight" for name in "qo")
    assert torch.equal(wide[q][:96], narrow[q]) and torch.equal(wide[o][:, :96], narrow[o])
    assert not wide[q][96:].any() and not wide[o][:, 96:].any() and wide[q].shape[0] == wide[o].shape[1] == 128


@pytest.mark.parametrize(
    "change",
    [
        {"kv_lora_rank": 48},
        {"kv_lora_rank": 64},
        {"qk_rope_head_dim": 24},
        {"rope_scaling": {"type": "linear"}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
        {"q_lora_rank": None},
        {"attention_bias": True},
    ],
)
def test_sizes_that_need_rounding_are_refused(tmp_path, change):
    config = json.loads((resolve_path("deepseek-mini") / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | change), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"^latent attention of \d+ and \d+ cannot be widened to 512 and 64; 512 div"):
        widen(tmp_path, tmp_path)


def looked_up(calls):
    """A LookupLog of recorded calls."""
    cache = SimpleNamespace(**{name: lambda *given, **more: None for name in CALLS})
    llm = SimpleNamespace()
    place = ["engine_core", "engine_core", "model_executor", "driver_worker", "worker", "model_runner", "drafter"]
    for name in reversed(place):
        llm = SimpleNamespace(**{name: llm if vars(llm) else SimpleNamespace(suffix_cache=cache)})
    log = LookupLog(llm)
    for name, request, tokens in calls:
        getattr(cache, name)(request, tokens) if tokens else getattr(cache, name)(request)
    return log


def test_rounds_of_suffix_decoding_are_those_of_an_oracle_one_by_one():
    """Of recorded requests that lost their KV, that waited and that were aborted, drafts behind a stop included."""
    said = json.loads(LOOKUPS.read_text(encoding="utf-8"))
    log = looked_up(said["calls"])
    prepared = prepare(Cell.from_id(LOOKED_UP), subject="vllm-suffix")
    answers = [Answer(**one) for one in said["answers"]]
    assert sum(one.retractions for one in answers) == sum(entry[0] == "forget" for entry in log.entries) > 4
    for one in answers:
        heard = log.heard(str(one.meta_info["id"] + 1))
        assert one.meta_info["rounds"] == heard.rounds and one.meta_info["heard"] == heard.tokens
    assert any(len(one.meta_info["heard"]) > len(one.output_ids) for one in answers)
    by_name = {one.name: one for one in answers}
    pairs = [(request, by_name[request.name]) for request in prepared.requests]
    shown = {"readback": {}, "evidence": {}, "memory": None, "seconds": 1.0, "journal": log.entries}
    run = Run(prepared.requests, tuple(answers), said["resolved"], **shown, served=tuple(served(pairs)))
    gate = next(one for one in applied_gates(SuffixSubject.profile).gates if one.name == "acceptance")
    assert [gate.applies(prepared.cell._replace(grammar=kind)) for kind in ("none", "regex")] == [True, False]
    found = gate.judge(prepared, run, run)
    assert found.state is State.PASS and found.numbers["rounds"] > 300 and found.numbers["length"] > 1.2
    for changed in (
        replace(run, journal=[entry for entry in log.entries if entry[0] != "forget"]),
        replace(run, resolved={**said["resolved"], "num_steps": 4}),
        replace(run, answers=(replace(answers[0], meta_info={"id": 0, "rounds": [1] * 96}), *answers[1:])),
    ):
        assert gate.judge(prepared, changed, run).state is State.FAIL


traffic = cache(recorded)


def replayed(cell: str) -> tuple[Replay, list[Answer]]:
    one, replay = command(cell), Replay(traffic()[cell])
    return replay, VllmEngine(one, replay, sampling=dict).generate(one.asks)


def test_every_recorded_cell_is_replayed_whole():
    assert tuple(traffic()) == CELLS and FILE.stat().st_size < 2_000_000
    for cell in CELLS:
        replay, answers = replayed(cell)
        assert not replay.steps and not replay.open
        assert [answer.name for answer in answers] == [ask.id for ask in command(cell).asks]


def test_rounds_are_the_tokens_of_steps_after_the_first():
    _, plain = replayed("none.pair")
    assert all(not answer.accept_lengths and answer.finish in ("stop", "length") for answer in plain)
    assert {answer.matched for answer in plain if answer.finish == "stop"} == {1}, "an end token is named"
    _, drafted = replayed("eagle3.s3.k1.pair.stop_string")
    for answer in drafted:
        assert 1 + sum(answer.accept_lengths) == len(answer.output_ids) and 2 < max(answer.accept_lengths) <= 4
        assert answer.finish == "stop" and answer.matched in ("\n####", ">>") and answer.matched not in answer.text
    _, layered = replayed("nextn.deepseek.s2.nocache.pair")
    for answer in layered:
        assert set(answer.accept_lengths) <= {1, 2, 3} and 3 in answer.accept_lengths
        assert 1 + sum(answer.accept_lengths) == len(answer.output_ids)
    _, tight = replayed("eagle3.s3.k1.tight.pair")
    assert sum(answer.retractions for answer in tight) > 0


def test_the_token_of_a_prefill_behind_a_preemption_is_no_round():
    one = Running()
    for tokens, preempted in ((1, 1), (4, 1), (6, 2), (7, 2), (7, 2), (8, 2), (11, 2)):
        one.saw(SimpleNamespace(token_ids=range(tokens), text="", finish_reason=None), preempted)
    assert one.resumed == [6] and one.rounds == (3, 2, 1, 3)


ABORTED = "eagle3.s3.k1.pair.abort_running"


def test_aborts_are_sent_when_due():
    replay, (first, second) = replayed(ABORTED)
    assert len(replay.aborted) == 1 and first.finish == "stop"
    assert second.finish == "abort" and 5 <= len(second.output_ids) < 9
    replay, answers = replayed("ngram.n4.m4.burst.abort_queued")
    assert len(replay.aborted) == 1 and (answers[-1].finish, answers[-1].output_ids) == ("abort", ())
    # An abort may end the last request.
    one = command(ABORTED)
    outputs = [[output for output in step if output["request_id"] == "2"] for step in traffic()[ABORTED]]
    steps = [[{**output, "request_id": "1"} for output in step] for step in outputs]
    (answer,) = VllmEngine(one, Replay(steps), sampling=dict).generate([replace(one.asks[1], after=())])
    assert answer.finish == "abort"


def test_preemptions_are_the_schedulers_where_answers_do_not_tell_them():
    lost: list[tuple[object, ...]] = []
    scheduler = SimpleNamespace(_preempt_request=lambda *given, **more: lost.append((*given, more)))
    counts = count_preemptions(
        SimpleNamespace(engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler)))
    )
    for name in ("7-a1b2", "1_7-c3", "8-0"):
        vars(scheduler)["_preempt_request"](SimpleNamespace(request_id=name), 0.5, drop_stale_output=True)
    assert counts == {"7": 1, "1_7": 1, "8": 1} and len(lost) == 3
    one = command(ABORTED)
    steps = [[{**output, "preemptions": None} for output in step] for step in traffic()[ABORTED]]
    engine = VllmEngine(one, Replay(steps), sampling=dict)
    engine.preempted |= {"2": 2, "1_2": 1}
    assert [answer.retractions for answer in engine.generate(one.asks)] == [0, 3]


def test_a_completion_is_not_resumed_where_another_one_was_preempted():
    request = RequestSpec("q", "Question:", 3, temperature=1.0, n=2)
    one = VllmSubject().translate(prepare(Cell.from_id("standalone.s3"), workload=lambda *_: (request,)))
    assert isinstance(one, EngineCommand)
    engine = VllmEngine(one, replay := Replay([]), sampling=dict)
    ended = {"stop_reason": None, "logprobs": None, "spec_decode_metrics": None, "text": ""}

    def step() -> list[SimpleNamespace]:
        length = next(lengths)
        engine.preempted["1_1"] = length > 1
        end = "length" if length == 3 else None
        outputs = [SimpleNamespace(index=i, token_ids=[5] * length, finish_reason=end, **ended) for i in (0, 1)]
        return [SimpleNamespace(request_id="1", num_cached_tokens=0, metrics=None, outputs=outputs)]

    lengths, replay.step = iter((1, 2, 3)), step  # type: ignore[method-assign]
    (answer,) = engine.generate(one.asks)
    assert (answer.accept_lengths, answer.further[0].accept_lengths, answer.retractions) == ((1, 1), (1,), 1)


def test_the_text_of_an_abort_is_whole():
    one, replay = command(ABORTED), Replay(traffic()[ABORTED])
    asks = [replace(ask, fields={**ask.fields, "stop": ["never"]}) for ask in one.asks]
    # vLLM holds back what may begin a stop string until the request ends by itself.
    replay.get_tokenizer = lambda: SimpleNamespace(decode=lambda ids, skip_special_tokens: f"all of {len(ids)}")
    finished, aborted = VllmEngine(one, replay, sampling=dict).generate(asks)
    assert aborted.text == f"all of {len(aborted.output_ids)}" and not finished.text.startswith("all of")


def test_completions_and_streamed_reads():
    _, answers = replayed("none.mixed_lengths.stops")
    several = next(answer for answer in answers if answer.further)
    assert len(several.further) == 1 and several.further[0].output_ids == several.output_ids
    streamed = next(answer for answer in answers if answer.pieces)
    assert all(streamed.text.startswith(piece) for piece in streamed.pieces) and len(streamed.pieces) > 5
    scored = next(answer for answer in answers if answer.logprobs)
    assert len(scored.logprobs) == len(scored.output_ids) and max(scored.logprobs) <= 0


def test_what_vllm_refuses_is_an_answer_and_what_it_forgets_an_error():
    one, replay = command("none.pair"), Replay([])
    long = replace(one.asks[0], input_ids=(5,) * 5000)
    (answer,) = VllmEngine(one, replay, sampling=dict).generate([long])
    assert (answer.finish, answer.refusal) == ("refused", "the prompt is too long")
    replay.add_request = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match=r"^vLLM has no unfinished request, but q\d+ has not ended$"):
        VllmEngine(one, replay, sampling=dict).generate(one.asks)


@pytest.mark.parametrize(
    ("rounds", "accepted", "expected"),
    [
        ((4, 1, 2), (3, 0, 1), True),
        ((4, 1, 2), (3, 1), True),  # the second step had no draft
        ((4, 1), (3, 2), True),  # the end cut the last round
        ((4, 4), (0, 3, 3), True),  # the prefill was padded with placeholders
        ((2, 1, 1), (0, 1), True),  # and later steps had no draft
        ((1, 2), (0, 0, 0, 1), False),
        ((4, 2), (2, 1), False),
        ((4, 1), (3, 0, 0), False),
        ((), (), True),
    ],
)
def test_vllms_rounds_agree_with_its_steps(rounds, accepted, expected):
    assert agree(rounds, accepted) is expected


def test_rounds_that_contradict_the_steps_are_an_error():
    steps = json.loads(json.dumps(traffic()["eagle3.s3.k1.tight.pair"]))
    last = next(one for step in steps for output in step for one in output["outputs"] if one["accepted"])
    last["accepted"][0] += 1
    one = command("eagle3.s3.k1.tight.pair")
    with pytest.raises(RuntimeError, match=r"^vLLM reports \[.* accepted drafts by round of q"):
        VllmEngine(one, Replay(steps), sampling=dict).generate(one.asks)


class Backend(Enum):
    CPU_MLA = "path"


def test_the_running_values_are_read_from_the_configuration():
    one = command("eagle3.s3.k1.tight.pair")
    model = {"dtype": "torch.float32", "seed": 17, "max_logprobs": -1, "enforce_eager": True, "max_model_len": 192}
    parts = {
        "model_config": model,
        "cache_config": {"block_size": 64, "enable_prefix_caching": False, "num_gpu_blocks": 7},
        "scheduler_config": {},
        "parallel_config": {},
        "attention_config": {"backend": Backend.CPU_MLA},
        "speculative_config": {"method": "eagle3", "num_speculative_tokens": 2},
    }
    held: dict[str, object] = {name: SimpleNamespace(**values) for name, values in parts.items()}
    llm = SimpleNamespace(vllm_config=SimpleNamespace(**held))
    found = VllmEngine(one, llm).readback()
    wrong = {name: value for name, value in found.items() if value != one.flags[name]}
    spec = {"method": "eagle3", "num_speculative_tokens": 2}
    assert set(found) == set(one.flags)
    assert wrong == {"block_size": 64, "enable_prefix_caching": False, "speculative_config": spec}
    latent = VllmSubject().translate(prepare(Cell.from_id("none.deepseek")))
    assert isinstance(latent, EngineCommand)
    assert VllmEngine(latent, llm).readback()["attention_backend"] == "CPU_MLA"
    held["use_v2_model_runner"] = True
    llm = SimpleNamespace(vllm_config=SimpleNamespace(**held))
    found = VllmEngine(translated("none.qwen35.pair"), llm).resolved
    assert found == {"dtype": "bfloat16", "random_seed": 17, "model_runner": "v2"}


def test_scores_are_those_after_the_temperature():
    row = {token: SimpleNamespace(logprob=score) for token, score in ((7, -0.5), (8, -1.5), (9, float("-inf")))}
    ended = {"finish_reason": "length", "stop_reason": None, "spec_decode_metrics": None}
    output = SimpleNamespace(index=0, text="x", token_ids=[8, 9], logprobs=[row, row], **ended)
    step = SimpleNamespace(request_id="1", num_cached_tokens=0, metrics=None, prompt_logprobs=None, outputs=[output])
    replay = Replay([])
    replay.step = lambda: [step]  # type: ignore[method-assign]
    request = RequestSpec("q", "Question:", 2, temperature=0.5, top_logprobs=2)
    one = VllmSubject().translate(prepare(Cell(), workload=lambda *_: (request,)))
    assert isinstance(one, EngineCommand)
    (answer,) = VllmEngine(one, replay, sampling=dict).generate(one.asks)
    # Differences of scores double at half the temperature.
    assert answer.top_logprobs[0][0][1] - answer.logprobs[0] == pytest.approx(2.0)
    assert [token for token, _ in answer.top_logprobs[0]] == [7, 8]
    assert answer.logprobs[1] == float("-inf")  # a banned token


def test_no_bad_word_begins_in_the_prompt_where_vllm_looks_for_none():
    cell = Cell.from_id("eagle.s5.n6.v2.c7.mixed_lengths.rules.stops")
    found = {one.name: (prompt_ids(one), one.bad_words_ids) for one in VllmSubject().requests(cell, 7)}
    prompt, words = found["t2"]
    # With this seed the first two tokens of (222, 24, 18) end the prompt.
    assert prompt[-2:] == (222, 24) and len(words) == 80
    assert not [word for word in words for n in range(1, len(word)) if word[:n] == prompt[-n:]]


def test_an_engine_runs_in_the_interpreter_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = tmp_path / "vllm"
    monkeypatch.setenv(VLLM.variable, str(place))
    (place / "bin").mkdir(parents=True)
    python, script = place / "bin" / "python", '#!/bin/sh\necho another interpreter\nexec {} "$@"\n'
    python.write_text(script.format(Path(sys.executable).resolve()), encoding="utf-8")
    python.chmod(0o755)
    (place / "vllm.py").write_text("raise RuntimeError('leaked')", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(place))
    with pytest.raises(EngineFailed, match=r"^start failed with ModuleNotFoundError: No module named 'vllm'") as failed:
        EngineProcess(VllmSubject(), command("none.pair"))
    assert "another interpreter" in str(failed.value)


def test_the_engines_process_imports_nothing_that_vllm_does_not_bring():
    # -S: without any installed package; the zoo's names are all that the adapter needs besides vLLM.
    code = "import specmatrix.matrix.subjects.engine_process, specmatrix.matrix.subjects.vllm.engine"
    module = "specmatrix.matrix.subjects.vllm.subject"
    words = [sys.executable, "-ISuP", "-c", FOREIGN + f"; {code}", str(HOME), module]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
