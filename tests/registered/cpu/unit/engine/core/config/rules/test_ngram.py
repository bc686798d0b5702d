import pytest

from specmatrix.engine.core.config.asked import EngineConfig
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.ngram import NGRAM_RULES, TOPK_IS_BREADTH
from specmatrix.engine.core.config.rules.suffix import SUFFIX_RULES
from tests.support.start_configs import broken, eagle3, facts, refusal


def ngram(**asked: object) -> EngineConfig:
    return EngineConfig("m", "NGRAM", **{f"speculative_ngram_{name}": value for name, value in asked.items()})


def suffix(**asked: object) -> EngineConfig:
    return EngineConfig("m", "SUFFIX", **{f"speculative_suffix_{name}": value for name, value in asked.items()})


REFUSED = [
    ("ngram-unread", eagle3(speculative_ngram_capacity=9), "speculative_ngram_capacity 9 has no effect with"),
    ("ngram-min-bfs-breadth-range", ngram(min_bfs_breadth=0), "speculative_ngram_min_bfs_breadth must be"),
    ("ngram-max-bfs-breadth-range", ngram(max_bfs_breadth=65), "speculative_ngram_max_bfs_breadth must be"),
    ("ngram-max-trie-depth-range", ngram(max_trie_depth=1), "speculative_ngram_max_trie_depth must be"),
    ("ngram-capacity-range", ngram(capacity=0), "speculative_ngram_capacity must be between 1 and 1000000000"),
    (
        "ngram-external-corpus-max-tokens-range",
        ngram(external_corpus_max_tokens=0),
        "speculative_ngram_external_corpus",
    ),
    ("ngram-breadths-crossed", ngram(min_bfs_breadth=5, max_bfs_breadth=4), "speculative_ngram_min_bfs_breadth 5 is"),
    ("ngram-tree-too-wide", EngineConfig("m", "NGRAM", None, 2, 3, 14), "speculative_num_draft_tokens 14 is"),
    ("ngram-corpus-unused", ngram(external_corpus_path="c"), "speculative_ngram_external_corpus_path c needs"),
    ("ngram-budget-unused", ngram(external_sam_budget=3), "speculative_ngram_external_sam_budget 3 needs"),
    ("suffix-unread", eagle3(speculative_suffix_max_tree_depth=9), "speculative_suffix_max_tree_depth 9 has no"),
    ("suffix-max-tree-depth-range", suffix(max_tree_depth=1), "speculative_suffix_max_tree_depth must be between 2"),
    ("suffix-max-cached-requests-range", suffix(max_cached_requests=-1), "speculative_suffix_max_cached_requests must"),
    ("suffix-max-spec-factor-range", suffix(max_spec_factor=float("inf")), "speculative_suffix_max_spec_factor must"),
    ("suffix-max-spec-offset-range", suffix(max_spec_offset=-300), "speculative_suffix_max_spec_offset must be"),
    ("suffix-min-token-prob-range", suffix(min_token_prob=1.5), "speculative_suffix_min_token_prob must be between 0"),
    (
        "ngram-budget-too-wide",
        ngram(external_sam_budget=12, external_corpus_path="c"),
        "speculative_ngram_external_sam",
    ),
]


@pytest.mark.parametrize(("rule", "config", "sentence"), REFUSED)
def test_refused_in_one_sentence_by_one_rule_alone(rule, config, sentence):
    broken, told = refusal(config, facts())
    assert broken == [rule] and told.startswith(sentence)


def test_every_refusing_rule_has_a_case():
    assert {case[0] for case in REFUSED} == {rule.name for rule in (*NGRAM_RULES, *SUFFIX_RULES)}


def test_a_different_topk_yields_to_the_breadth():
    config = EngineConfig("m", "NGRAM", speculative_eagle_topk=2, speculative_ngram_max_bfs_breadth=4)
    assert broken(config, facts()) == [TOPK_IS_BREADTH.name]
    (made,) = resolve(config, facts()).rewrites
    assert (made.field, made.asked, made.got) == ("speculative_eagle_topk", 2, 4)
    assert made.reason == "the topk of NGRAM is its breadth, speculative_ngram_max_bfs_breadth 4"
