"""mlx-lm as a subject: its engine on scripted generators. The goldens have the translations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specmatrix.errors import ConfigError
from specmatrix.matrix.cells.cell import Cell
from specmatrix.matrix.subjects.mlx_lm.engine import MlxEngine
from specmatrix.matrix.subjects.mlx_lm.subject import MlxSubject
from specmatrix.matrix.subjects.protocol import Answer
from specmatrix.matrix.workloads.prepared_cell import prepare
from specmatrix.matrix.workloads.request import RequestSpec

PLAIN = RequestSpec("q", "Question:", 5, ignore_eos=True)
ROW = np.log([0.5, 0.2, 0.3] + [1e-9] * 97)


class Mlx(SimpleNamespace):
    """What the engine uses of mlx.core and mlx-lm, and its generator of batches, which reads prompts with its first
    call. Its models count up from the last token of a text; of two drafts a round, one is accepted. Its texts hold back
    their last character."""

    def __init__(self) -> None:
        super().__init__(float32="f32", said=list[Any](), stored=dict[tuple[int, ...], Any](), new=[], rows={})
        self.random, self.make_sampler, self.make_logits_processors = SimpleNamespace(seed=self.said.append), dict, dict
        self.load_tokenizer = lambda _: SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)))
        self.make_prompt_cache = lambda model: [SimpleNamespace(offset=8 - len(model.path.name) // 10, trim=id)]
        self.BatchGenerator = lambda _, **sizes: self.said.append(sizes) or self
        self.remove, self.RotatingKVCache = (lambda uids: self.rows.pop(*uids)), (lambda max_size: ("turns", max_size))
        self.extract_cache = lambda uids: {uid: (self.rows[uid].cache, self.rows[uid].ids[:-1]) for uid in uids}
        self.LRUPromptCache, self.TextStateMachine, self.make_text_state_machine = lambda: self, self, lambda *_: self
        self.insert_cache = lambda _, ids, cache: self.stored.update({tuple(ids): cache})
        self.make_state, self.flush, self.close = (lambda _: ""), (lambda held: ("", held, "")), self.stored.clear
        self.step = lambda held, text: (text[-1:], held + text[:-1], "")

    def fetch_nearest_cache(self, _: str, ids: list[int]) -> tuple[object, list[int]]:
        keys = [key for key in self.stored if tuple(ids[: len(key)]) == key]
        return (self.stored[keys[0]], ids[len(keys[0]) :]) if keys else (None, ids)

    def load_model(self, path: SimpleNamespace, strict: bool, model_config: object) -> tuple[Any, object]:
        self.said.append((path.name, strict, model_config))
        config = {"model_type": path.name.partition("-")[0], "sliding_window": 56, "max_position_embeddings": 9}
        return SimpleNamespace(path=path, layers=range(2), set_dtype=self.said.append), config

    def make_stop_sequences(self, tokenizer: SimpleNamespace, words: Sequence[str]) -> SimpleNamespace:
        stops = {*tokenizer.eos_token_ids, *map(ord, words)}
        return SimpleNamespace(stops=stops, matcher=lambda: SimpleNamespace(advance=stops.__contains__))

    def stream_generate(self, _: object, __: object, rest: list[int], limit: int, **more: object) -> Iterator[Any]:
        self.said.append((rest, more, min(rest)))  # ValueError if there is nothing to read
        with closing(SimpleNamespace(close=lambda: self.said.append("ended"))):
            for place in range(limit):
                found = {"from_draft": place % 2 == 0, "finish_reason": "length" if place + 1 == limit else None}
                yield SimpleNamespace(token=rest[-1] + place + 1, logprobs=ROW, **found)

    def insert_segments(self, segments: list[list[list[int]]], limits: list[int], **more: Sequence[Any]) -> list[int]:
        self.said.append((segments[0][0], more, min(segments[0][0])))
        ids, (cache,), (stops,) = [*more["all_tokens"][0], *segments[0][0]], more["caches"], more["stop_sequences"]
        self.rows[len(self.said)] = SimpleNamespace(ids=ids, cache=cache, left=limits[0], stops=stops.stops)
        return self.new.append(len(self.said)) or self.new[-1:]

    def next(self) -> tuple[list[Any], list[Any]]:
        read = [SimpleNamespace(uid=uid, end_of_segment=True, end_of_prompt=not uid) for uid in (*self.new, 0)]
        tokens, ready, self.new = list[Any](), [(uid, row) for uid, row in self.rows.items() if uid not in self.new], []
        for uid, row in ready:
            row.ids, row.left = [*row.ids, row.ids[-1] + 1], row.left - 1
            finish = "stop" if row.ids[-1] in row.stops else None if row.left else "length"
            found = {"uid": uid, "token": row.ids[-1], "logprobs": ROW, "finish_reason": finish}
            tokens.append(SimpleNamespace(**found, all_tokens=row.ids, prompt_cache=row.cache))
        self.rows = {uid: row for uid, row in self.rows.items() if row.left and row.ids[-1] not in row.stops}
        return read, tokens


def answered(cell: str, *requests: RequestSpec, mlx: object = None) -> tuple[Any, MlxEngine, list[Answer]]:
    """mlx-lm, the engine on it, and its answers to a cell's requests, whose prompts end with the token 60."""
    command = MlxSubject().translate(prepare(Cell.from_id(cell), subject="any", workload=lambda *_: requests))
    engine = MlxEngine(command, used := mlx or Mlx())
    return used, engine, engine.generate([replace(one, input_ids=(9, 60)) for one in command.asks])


def test_drafts_run_alone_in_rounds_and_their_caches_are_kept_and_continued():
    again = replace(PLAIN, name="r", stop=("@",), stream=True, top_logprobs=2, temperature=0.5, top_k=3, seed=7)
    cut, never = replace(PLAIN, name="s", after=("q", "r"), abort_after=2), replace(PLAIN, name="t", abort_after=0)
    mlx, engine, (first, second, third, fourth) = answered("standalone.s2.c7", PLAIN, again, cut, never)
    assert (first.output_ids, first.text, first.finish) == ((61, 62, 63, 64, 65), "=>?@A", "length")
    assert (first.accept_lengths, first.round_widths, first.drafts_first) == ((2, 2, 1), (3, 3, 2), True)
    assert (second.output_ids, second.text, second.matched, second.finish) == ((61, 62, 63, 64), "=>", "@", "stop")
    assert second.pieces == ("", "=", "=>") and second.logprobs[0] < -40
    assert second.top_logprobs[0] == ((0, pytest.approx(np.log(25 / 38))), (2, pytest.approx(np.log(9 / 38))))
    assert (third.finish, third.output_ids, third.text, fourth.finish) == ("abort", (61, 62), "=", "abort")
    assert [*engine.counters().values(), *engine.resolved.values()] == [11, 6, 2, 1, 3]
    options = next(one[1] for one in mlx.said if len(one) == 3 and one[0] == [9, 60])
    assert (options["num_draft_tokens"], options["prefill_step_size"], len(options["prompt_cache"])) == (2, 7, 2)
    assert mlx.said.index("ended") < mlx.said.index(7) and mlx.said.count("ended") == 3
    text, keys = (9, 60, *first.output_ids), ([*mlx.stored], [*answered("standalone.gsm", PLAIN)[0].stored])
    assert (keys, engine.close(), mlx.stored) == (([text[:6], text[:4]], [text]), None, {})


def test_a_batch_takes_what_has_no_seed_and_keeps_prompts_and_texts():
    warm = replace(PLAIN, name="r", temperature=0.5, seed=None, stop_token_ids=(63,), logprobs=True)
    biased = replace(PLAIN, name="s", logit_bias=((5, 1.5),), repetition_penalty=1.1, abort_after=2)
    twice = replace(PLAIN, name="t", after=("q",), max_new_tokens=1)
    mlx, _, (first, second, third, fourth) = answered("none.m4.mixed_lengths", PLAIN, warm, biased, twice)
    assert (first.output_ids, first.text, first.accept_lengths) == ((61, 62, 63, 64, 65), "=>?@A", ())
    assert (second.output_ids, second.matched, second.finish, len(second.logprobs)) == ((61, 62, 63), 63, "stop", 3)
    assert (third.finish, third.output_ids, mlx.rows) == ("abort", (61, 62), {})
    inserted = [one for one in mlx.said if len(one) == 3 and isinstance(one[0], list)]
    assert inserted[2][1]["logits_processors"][0]["logit_bias"] == {5: 1.5}
    assert inserted[3][1]["caches"][0] is inserted[2][1]["caches"][0] and (9, 60, 61, 62, 63) in mlx.stored
    assert (fourth.cached_tokens, inserted[3][0], inserted[3][1]["all_tokens"]) == (1, [60], [[9]])
    assert {"completion_batch_size": 4, "prefill_batch_size": 4} in mlx.said


@pytest.mark.parametrize("cell", ["none", "standalone"])
def test_a_prompt_that_the_cache_has_whole_is_an_error_and_one_that_is_too_long_refused(cell):
    (mlx := Mlx()).stored[9, 60] = []
    *_, (found, refused) = answered(cell, PLAIN, replace(PLAIN, name="r", max_new_tokens=8), mlx=mlx)
    assert (found.finish, found.matched, refused.finish) == ("error", "min() arg is an empty sequence", "refused")
    assert refused.refusal == "the text may have 9 tokens at most"
    with pytest.raises(ConfigError, match=r"^mlx-lm does not start: AttributeError: 'str' object has no attribute"):
        answered(cell, PLAIN, mlx="none")


def test_models_are_read_with_their_windows_and_names():
    mlx, *_ = answered("none.mistral.nocache.pair", PLAIN)
    assert mlx.said[-1][1]["caches"] == [[("turns", 56)] * 2] and not mlx.stored and "f32" in mlx.said
    assert answered("none.qwen35.pair", PLAIN)[0].said[0] == ("qwen35-mini", False, {"model_type": "qwen3_5"})
    own, stops = (MlxSubject().requests(Cell.from_id(f"none.mixed_lengths.{how}"), 0) for how in ("rules", "stops"))
    assert {name for one in own for name in one.rules} == {"repetition_penalty", "min_p", "logit_bias"}
    assert not any(one.logit_bias or one.min_new_tokens or one.no_stop_trim or one.n > 1 for one in stops)
    assert [MlxSubject().requests(Cell.from_id("none.topk_topp"), seed)[0].top_k for seed in (0, 1)] == [-1, 12]
