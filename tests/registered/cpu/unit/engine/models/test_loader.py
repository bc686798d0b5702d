"""Facts of checkpoints, and which checkpoint may play which role."""

from __future__ import annotations

import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specmatrix.engine.core.config.asked import DraftFacts, Facts
from specmatrix.engine.models.loader import facts, load_eagle3, load_standalone, load_target
from specmatrix.engine.models.tokenizer import tokenizer_hash
from specmatrix.errors import ConfigError


def test_facts_without_a_draft(llama_folder):
    sizes = {"device_kind": "cpu", "gpus": torch.cuda.device_count(), "heads": 4, "kv_heads": 2, "widths": (88,)}
    assert facts(llama_folder(), None, "cpu") == Facts("LlamaForCausalLM", 97, 48, 3, 256, None, None, **sizes)


@pytest.mark.parametrize(("gpus", "kind"), [(0, "cpu"), (2, "cuda")])
def test_an_automatic_device_is_a_gpu_where_there_is_one(llama_folder, monkeypatch, gpus, kind):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    found = facts(llama_folder(), None, "auto")
    assert (found.device_kind, found.gpus) == (kind, gpus)
    assert facts(llama_folder(), None, "cpu").device_kind == "cpu"


def test_facts_of_drafts(llama_folder, eagle_folder):
    target = llama_folder()
    eagle3 = DraftFacts(
        "LlamaForCausalLMEagle3", 97, 36, target_hidden_size=48, draft_vocab_size=41, aux_layers=(1, 2, 3)
    )
    assert facts(target, eagle_folder(), "cpu").draft == eagle3
    standalone = facts(target, llama_folder("draft", hidden_size=32), "cpu").draft
    assert standalone == DraftFacts("LlamaForCausalLM", vocab_size=97, hidden_size=32)


def test_facts_read_the_tokenizers(llama_folder):
    folder = llama_folder()
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))
    assert facts(folder, None, "cpu").tokenizer_hash == tokenizer_hash(folder)


def test_roles(llama_folder, eagle_folder):
    target = load_target(llama_folder(), "cpu", torch.float32)
    eagle = eagle_folder()
    for read in (lambda: load_target(eagle, "cpu", torch.float32), lambda: facts(eagle, None, "cpu")):
        with pytest.raises(ConfigError, match="LlamaForCausalLMEagle3, but a target model must be LlamaForCausalLM"):
            read()
    with pytest.raises(ConfigError, match="Eagle3, but a STANDALONE draft must be LlamaForCausalLM"):
        load_standalone(eagle, target)
    with pytest.raises(ConfigError, match="is a LlamaForCausalLM, but an EAGLE3 draft must be LlamaForCausalLMEagle3"):
        load_eagle3(llama_folder("draft"), target)


def test_a_layer_that_the_configuration_lacks_is_refused(llama_folder):
    folder = llama_folder()
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"tensor 'model.layers.2.* does not belong to this architecture"):
        load_target(folder, "cpu", torch.float32)


def test_a_standalone_draft_sees_all_tokens(target_folder):
    target = load_target(target_folder("llama"), "cpu", torch.float32)
    for kind, layers in (("qwen3", "sliding window"), ("qwen3_5", "recurrent state")):
        with pytest.raises(ConfigError, match=f"with a {layers}; a STANDALONE draft must have full attention in all"):
            load_standalone(target_folder(kind), target)
    plain = target_folder("qwen3", "plain", use_sliding_window=False, layer_types=None)
    assert load_standalone(plain, target).vocab_size == 97


def test_facts_of_other_architectures(target_folder):
    known = facts(target_folder("qwen3"), None, "cpu")
    assert (known.architecture, known.num_layers, known.window) == ("Qwen3ForCausalLM", 4, 11)
    plain = target_folder("qwen3", "plain", use_sliding_window=False, layer_types=None)
    assert facts(plain, None, "cpu").window is None
