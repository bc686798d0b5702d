import pytest

from specmatrix.engine.core.draft.algorithms import (
    ALGORITHMS,
    DFLASH,
    EAGLE,
    EAGLE3,
    NEXTN,
    NGRAM,
    NONE,
    STANDALONE,
    Topology,
    algorithm,
)
from specmatrix.errors import ConfigError


def test_names_are_unique_and_upper_case():
    names = [traits.name for traits in ALGORITHMS]
    assert len(set(names)) == len(names)
    assert all(name == name.upper() for name in names)


@pytest.mark.parametrize("name", ["eagle3", "EAGLE3", "Eagle3"])
def test_lookup_ignores_case(name):
    assert algorithm(name) is EAGLE3


def test_an_unknown_name_lists_what_exists():
    with pytest.raises(ConfigError) as caught:
        algorithm("medusa")
    assert str(caught.value) == (
        "speculative_algorithm 'medusa' is unknown; "
        "it must be one of NONE, EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DFLASH"
    )


def test_plain_decoding_proposes_nothing_and_owns_nothing():
    assert NONE.topology is Topology.ROOT
    assert not (NONE.drafts or NONE.own_kv or NONE.needs_hidden or NONE.needs_draft_model)
    assert NONE.key_span == 0


@pytest.mark.parametrize("traits", [STANDALONE, EAGLE, EAGLE3, NEXTN])
def test_shifted_drafters_depend_on_one_token_past_their_page(traits):
    assert traits.drafts and traits.needs_draft_model and traits.key_span == 1


def test_a_block_is_projected_without_a_shift():
    """DFLASH's slot p holds what position p says, so pages are keyed by their own tokens."""
    assert DFLASH.own_kv and DFLASH.key_span == 0


@pytest.mark.parametrize(
    ("trait", "named"),
    [
        ("needs_hidden", {"EAGLE", "EAGLE3", "NEXTN", "DFLASH"}),
        ("reads_host", {"NGRAM"}),
        ("irregular", {"NGRAM"}),
        ("adaptive", {"EAGLE", "EAGLE3", "NEXTN"}),
        ("block", {"DFLASH"}),
        ("target_verify_for_draft", {"DFLASH"}),
        ("own_kv", {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH"}),
        ("needs_draft_model", {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "DFLASH"}),
    ],
)
def test_who_has_a_trait(trait, named):
    assert {traits.name for traits in ALGORITHMS if getattr(traits, trait)} == named


def test_whoever_reads_the_host_waits_for_it_and_no_one_else():
    assert [traits for traits in ALGORITHMS if traits.max_lag == 0] == [NGRAM]


def test_algorithms_with_weights_name_their_checkpoints():
    for traits in ALGORITHMS:
        assert traits.needs_draft_model == bool(traits.draft_architectures) == (traits.draft_weights != "none")
    assert [traits for traits in ALGORITHMS if traits.draft_weights == "bundled"] == [NEXTN]
