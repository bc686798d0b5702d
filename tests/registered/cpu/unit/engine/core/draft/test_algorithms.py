import pytest

from specmatrix.engine.core.draft.algorithms import ALGORITHMS, algorithm
from specmatrix.errors import ConfigError


@pytest.mark.parametrize("name", ["eagle3", "EAGLE3", "Eagle3"])
def test_lookup_ignores_case(name):
    assert algorithm(name) is ALGORITHMS[2] and ALGORITHMS[2].name == "EAGLE3"


def test_an_unknown_name_lists_what_exists():
    names = ", ".join(traits.name for traits in ALGORITHMS)
    with pytest.raises(ConfigError, match=f"^speculative_algorithm 'medusa' is unknown; it must be one of {names}$"):
        algorithm("medusa")


HEADS = {"EAGLE", "EAGLE3", "NEXTN"}


@pytest.mark.parametrize(
    ("trait", "named"),
    [
        ("drafts", {*HEADS, "STANDALONE", "NGRAM", "SUFFIX", "DFLASH", "DSPARK"}),
        ("max_lag", {*HEADS, "STANDALONE", "NONE", "DFLASH", "DSPARK"}),
        # DFLASH's slot p holds what position p says, so its pages are keyed by their own tokens.
        ("key_span", {*HEADS, "STANDALONE"}),
        ("needs_hidden", {*HEADS, "DFLASH", "DSPARK"}),
        ("reads_host", {"NGRAM", "SUFFIX"}),
        ("irregular", {"NGRAM"}),
        ("budgets", {"DSPARK"}),
        ("adaptive", HEADS),
        ("block", {"DFLASH", "DSPARK"}),
        ("target_verify_for_draft", {"DFLASH", "DSPARK"}),
        ("own_kv", {*HEADS, "STANDALONE", "DFLASH", "DSPARK"}),
        ("needs_draft_model", {*HEADS, "STANDALONE", "DFLASH", "DSPARK"}),
    ],
)
def test_who_has_a_trait(trait, named):
    assert {traits.name for traits in ALGORITHMS if getattr(traits, trait)} == named


def test_algorithms_with_weights_name_their_checkpoints():
    for traits in ALGORITHMS:
        assert traits.needs_draft_model == bool(traits.draft_architectures) == (traits.draft_weights != "none")
    assert [traits.name for traits in ALGORITHMS if traits.draft_weights == "bundled"] == ["NEXTN"]
