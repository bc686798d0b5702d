import random

import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.matrix.cells.axes import AXES, NAMES, START_AXES
from specmatrix.matrix.cells.cell import (
    ADAPTIVE_TEXTS,
    AMPLE_TOKENS,
    ENGINE_SEED,
    TIGHT_TOKENS,
    Cell,
    order,
    parse_assignment,
)
from specmatrix.matrix.zoo.registry import CORPUS
from tests.support.refusals import refusal
from tests.support.tables import table


def any_cells(count: int) -> list[Cell]:
    source = random.Random(1)
    return [Cell(*(source.choice(axis.names) for axis in AXES)) for _ in range(count)]


def test_an_id_is_the_content_of_its_cell():
    cells = any_cells(2000)
    assert all(Cell.from_id(cell.id) == cell for cell in cells)
    assert len({cell.id for cell in cells}) == len(set(cells))


def test_ids_are_readable_leave_defaults_out_and_take_their_parts_in_any_order():
    assert Cell().id == "none" and Cell.from_id("mixed_lengths.eagle3.s3").id == "eagle3.s3.mixed_lengths"
    cell = Cell.of({"algorithm": "eagle3", "steps": "3", "topk": "4", "draft_tokens": "8", "batch": "mixed_lengths"})
    assert cell.id == "eagle3.s3.k4.n8.mixed_lengths"


@pytest.mark.parametrize(("text", "sentence"), table(__file__)["bad_ids"])
def test_a_bad_id_is_refused_in_one_sentence(text, sentence):
    assert refusal(Cell.from_id, text).startswith(f"cell id {text!r} {sentence}")


def test_cells_are_frozen_hashable_ordered_and_small():
    cell = Cell()
    with pytest.raises(AttributeError):
        cell.topk = "4"
    assert not hasattr(cell, "__dict__") and hash(cell) == hash(Cell())
    assert min(Cell(algorithm="standalone"), Cell(algorithm="eagle3")).algorithm == "eagle3"
    sizes = [cell.page_size for cell in order([Cell(page_size=size) for size in ("64", "4", "16", "4")])]
    assert sizes == ["4", "16", "64"]


def test_the_start_key_holds_start_axes_only():
    cell = Cell(batch="pair", sampling="mixed", finish="length", abort="running")
    assert cell.start_key == Cell().start_key
    for name in START_AXES:
        other = AXES[NAMES.index(name)].names[1]
        assert Cell()._replace(**{name: other}).start_key != Cell().start_key


@pytest.mark.parametrize(
    ("text", "target", "draft", "canonical"),
    [
        ("eagle3.s3.v2.p16.pair", "llama-mini", "llama-mini-eagle3", "none.v1.nocache"),
        ("eagle3.qwen3.s3.nocache", "qwen3-mini", "qwen3-mini-eagle3", "none.qwen3.v1.nocache"),
        ("nextn.deepseek.s2.burst", "deepseek-mini", None, "none.deepseek.v1.nocache"),
        ("ngram.deepseek", "deepseek-mini", None, "none.deepseek.v1.nocache"),
    ],
)
def test_each_model_has_its_own_drafts_and_plainest_start(text, target, draft, canonical):
    cell = Cell.from_id(text)
    asked = cell.config()
    assert (asked.model_path, asked.speculative_draft_model_path) == (cell.target, cell.draft) == (target, draft)
    assert cell.canonical.id == canonical and cell.baseline.model == cell.model


EAGLE = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "llama-mini-eagle3"}
AMPLE = {"page_size": 1, "chunked_prefill_size": -1, "max_total_tokens": AMPLE_TOKENS, "random_seed": ENGINE_SEED}


def adaptive(name):
    steps = {"speculative_adaptive": True, "speculative_adaptive_config": ADAPTIVE_TEXTS[name], "spec_version": "v2"}
    return EAGLE | AMPLE | steps


@pytest.mark.parametrize(
    ("text", "asked", "baseline"),
    [
        (
            "eagle3.s3.k4.n8.v1.sync.p16.nocache.c7.tight.m4.burst.mixed.length.abort_running",
            {
                **EAGLE,
                "speculative_num_steps": 3,
                "speculative_eagle_topk": 4,
                "speculative_num_draft_tokens": 8,
                "spec_version": "v1",
                "disable_overlap_schedule": True,
                "page_size": 16,
                "disable_radix_cache": True,
                "chunked_prefill_size": 7,
                "max_total_tokens": TIGHT_TOKENS,
                "max_running_requests": 4,
            },
            "none.v1.sync.p16.nocache.c7.tight.m4.burst.mixed.length.abort_running",
        ),
        *((f"eagle3.{name}.v2.ramp.length", adaptive(name), "none.v2.ramp.length") for name in ADAPTIVE_TEXTS),
        ("none", AMPLE, "none"),
    ],
)
def test_config_requests_the_cells_values_and_the_baseline_drops_the_drafter_alone(text, asked, baseline):
    cell = Cell.from_id(text)
    assert cell.config() == EngineConfig("llama-mini", **asked) and cell.baseline.id == baseline


def test_an_engine_has_a_seed_that_its_baseline_lacks():
    cell = Cell.from_id("eagle3.s3.k4.n8.v2.p16.mixed_lengths.rules")
    seeds = [each.config().random_seed for each in (cell, cell.canonical, cell.session_baseline)]
    assert seeds == [ENGINE_SEED, 0, 0] and ENGINE_SEED > 0


def test_each_model_has_its_own_ngram_match_type():
    known = {"ngram": ("BFS", None, 0), "ngram.qwen3": ("PROB", None, 0), "ngram.deepseek": ("BFS", CORPUS, 3)}
    for name, asked in (known | {"none.qwen3": ("BFS", None, 0)}).items():
        config = Cell.from_id(name).config()
        corpus = config.speculative_ngram_external_corpus_path
        assert (config.speculative_ngram_match_type, corpus, config.speculative_ngram_external_sam_budget) == asked


@pytest.mark.parametrize("memory", ["tight", "session_retract", "ample"])
@pytest.mark.parametrize("model", AXES[NAMES.index("model")].names)
def test_memory_is_a_multiple_of_every_page_size(memory, model):
    for size in AXES[NAMES.index("page_size")].names:
        tokens = Cell(model=model, page_size=size, memory=memory).memory_tokens
        assert tokens % int(size) == 0 and tokens // int(size) >= 2


def test_large_pages_take_more_memory_and_prices_add_up():
    known = {
        "none.p64.tight": TIGHT_TOKENS,
        "none.p256.tight": 512,
        "none.p256": 128 * 256,
        "none.qwen3.p256.tight": 1024,
        "none.qwen3.p64.tight": TIGHT_TOKENS,
    }
    assert {name: Cell.from_id(name).memory_tokens for name in known} == known
    assert Cell(batch="gsm").seconds > Cell(batch="burst").seconds > Cell().seconds > 0 == Cell().gpus


def test_assignments_take_blanks_commas_and_words_between():
    known = {"algorithm": "eagle3", "topk": "4", "page_size": "16"}
    assert parse_assignment("algorithm=EAGLE3, topk=4 and  page_size=16") == known


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("topk", "'topk' is not an assignment; write axis=value, for example algorithm=eagle3 topk=4"),
        ("topk=", "'topk=' is not an assignment; write axis=value, for example algorithm=eagle3 topk=4"),
        ("topk=4 topk=2", "topk is given twice; give it once"),
        ("topk=9", "topk has no value '9'; it must be one of auto, 1, 2, 4"),
        ("tree=9", f"axis 'tree' is unknown; it must be one of {', '.join(NAMES)}"),
    ],
)
def test_a_bad_assignment_is_refused_in_one_sentence(text, sentence):
    assert refusal(parse_assignment, text) == sentence
