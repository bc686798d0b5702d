from dataclasses import replace

import pytest

from specmatrix.engine.core.config.asked import DraftFacts, EngineConfig, Facts
from specmatrix.engine.core.config.resolve import resolve
from specmatrix.engine.core.config.rules.draft import PAIRING
from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.errors import ConfigError
from tests.support.start_configs import HEAD, MODEL, eagle3, facts, refusal, standalone


def head(**changes: object) -> Facts:
    return facts(replace(HEAD, **changes))


def block(**changes: object) -> Facts:
    own = {"architecture": "DFlashDraftModel", "draft_vocab_size": 512, "aux_layers": (1, 4), "block_size": 6}
    return head(**own | {"mask_token": 511} | changes)


EAGLE, DFLASH = EngineConfig("m", "EAGLE", "d"), EngineConfig("m", "DFLASH", "d")
REFUSED = [
    ("draft-of-wrong-kind", eagle3(), facts(MODEL), "EAGLE3 needs a draft architecture that ends in ForCausalLMEagle3"),
    ("draft-of-wrong-kind", standalone(), facts(HEAD), "STANDALONE needs a draft architecture that ends in"),
    ("draft-of-wrong-kind", EAGLE, facts(HEAD), "EAGLE needs a draft architecture that ends"),
    ("vocabularies-differ", standalone(), facts(replace(MODEL, vocab_size=500)), "the draft's vocabulary has 500"),
    (
        "vocabularies-differ",
        EAGLE,
        head(architecture="LlamaForCausalLMEagle", vocab_size=500),
        "the draft's vocabulary",
    ),
    ("draft-head-too-wide", eagle3(), head(draft_vocab_size=513), "the draft's head has 513 tokens, more than the"),
    ("tokenizer-unknown", standalone(), facts(replace(MODEL, tokenizer_hash=None)), "draft d has no tokenizer, so its"),
    ("tokenizers-differ", eagle3(), head(tokenizer_hash="other"), "the tokenizer of draft d differs from that of m"),
    ("hidden-widths-differ", eagle3(), head(target_hidden_size=256), "the draft reads hidden states of width 256, but"),
    ("aux-layer-missing", eagle3(), head(aux_layers=(1, 2, 9)), "the draft reads the input state of layer 9, but the"),
    ("aux-layer-missing", DFLASH, block(aux_layers=(1, 5)), "the draft reads the input state of layer 5, but the"),
    (
        "hidden-widths-differ",
        DFLASH,
        block(target_hidden_size=96),
        "the draft reads hidden states of width 96, but the",
    ),
    ("mask-token-unknown", eagle3(), head(mask_token=512), "the draft's mask token 512 has"),
    ("mask-token-unknown", DFLASH, block(mask_token=512), "the draft's mask token 512 has"),
]


@pytest.mark.parametrize(("rule", "config", "known", "sentence"), REFUSED)
def test_refused_in_one_sentence_by_one_rule_alone(rule, config, known, sentence):
    broken, told = refusal(config, known)
    assert broken == [rule] and told.startswith(sentence)


def test_every_rule_has_a_case():
    assert {case[0] for case in REFUSED} == {rule.name for rule in PAIRING}


def test_bundled_layers_are_checked_like_a_draft_of_their_own():
    wide = DraftFacts("DeepseekV3ForCausalLMNextN", vocab_size=512, hidden_size=96, target_hidden_size=96)
    known = replace(facts(None), bundled=wide)
    with pytest.raises(ConfigError, match="reads hidden states of width 96, but the target's have width 128"):
        resolve(EngineConfig("m", "NEXTN"), known)
    with pytest.raises(ConfigError, match=r"NEXTN needs .* ForCausalLMNextN, but m is a LlamaForCausalLM"):
        resolve(EngineConfig("m", "NEXTN"), replace(known, bundled=MODEL))


def test_the_final_state_is_a_state_of_every_target():
    assert resolve(eagle3(), head(aux_layers=(FINAL,))).algorithm == "EAGLE3"


def test_facts_of_a_draft_that_is_not_read_do_not_refuse_plain_decoding():
    assert resolve(EngineConfig("m"), head(tokenizer_hash="other")).algorithm == "NONE"
