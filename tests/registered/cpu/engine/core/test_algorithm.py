import pytest

from engine.core.algorithm import ALGORITHMS, EAGLE3, NONE, STANDALONE, Topology, algorithm
from engine.core.errors import ConfigError

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


def test_names_are_unique_and_upper_case():
    names = [traits.name for traits in ALGORITHMS]
    assert len(set(names)) == len(names)
    assert all(name == name.upper() for name in names)


@pytest.mark.parametrize("name", ["eagle3", "EAGLE3", "Eagle3"])
def test_lookup_ignores_case(name):
    assert algorithm(name) is EAGLE3


def test_an_unknown_name_lists_what_exists():
    with pytest.raises(ConfigError) as caught:
        algorithm("ngram")
    assert str(caught.value) == "speculative_algorithm 'ngram' is unknown; it must be one of NONE, STANDALONE, EAGLE3"


def test_plain_decoding_proposes_nothing_and_owns_nothing():
    assert NONE.topology is Topology.ROOT
    assert not (NONE.drafts or NONE.own_kv or NONE.needs_hidden or NONE.needs_draft_model)
    assert NONE.key_span == 0


@pytest.mark.parametrize("traits", [STANDALONE, EAGLE3])
def test_shifted_drafters_depend_on_one_token_past_their_page(traits):
    assert traits.drafts and traits.needs_draft_model and traits.key_span == 1


def test_only_eagle3_reads_hidden_states():
    assert [traits.name for traits in ALGORITHMS if traits.needs_hidden] == ["EAGLE3"]
