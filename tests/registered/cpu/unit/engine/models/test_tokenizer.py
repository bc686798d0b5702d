"""The tokenizer against transformers' on the same folder; the detokenizer against decoding everything at once."""

from __future__ import annotations

import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from specmatrix.engine.models.tokenizer import WINDOW, Detokenizer, Tokenizer, tokenizer_hash
from specmatrix.errors import ConfigError, RequestError

TEXTS = ["A farmer has 12 cows and 7 sheep.", "grüße, 你好 🙂 and naïve café"] * 20


def byte_level(vocab_size: int = 300) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return backend


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(path / "tokenizer.json"))
    (path / "config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": [1, 7]}))
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer(folder)


@pytest.mark.parametrize("text", ["", "7 cows", "grüße 你好🙂", "unseen ⟂ \t\n x"])
def test_encode_and_decode_match_transformers(folder, tokenizer, text):
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    ids = tokenizer.encode(text)
    assert ids == theirs(text)["input_ids"]
    assert tokenizer.decode(ids) == text == theirs.decode(ids, skip_special_tokens=True)


def test_a_prompt_is_neither_cut_nor_padded_whatever_the_file_says(tokenizer, tmp_path):
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=400)
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 0}))
    ids = Tokenizer(tmp_path).encode("7 cows and 12 sheep")
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    assert ids == tokenizer.encode("7 cows and 12 sheep") == theirs("7 cows and 12 sheep")["input_ids"]


def test_special_ids(folder, tokenizer, tmp_path):
    assert tokenizer.encode("<s>cows") == tokenizer.encode("cows"), "one bos only"
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, {1, 7})
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    bare = Tokenizer(tmp_path)
    assert (bare.bos_id, bare.eos_ids) == (None, frozenset())
    assert bare.encode("cows") == tokenizer.encode("cows")[1:]
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    both = Tokenizer(tmp_path)
    assert (both.bos_id, both.eos_ids) == (0, {5})
    nested = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": {"eos_token_id": 3}}
    (tmp_path / "config.json").write_text(json.dumps(nested))
    (tmp_path / "generation_config.json").unlink()
    assert Tokenizer(tmp_path).eos_ids == {3}


def test_too_many_ends_are_refused_by_their_number(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": [*range(1_000_000)]}))
    with pytest.raises(ConfigError, match=r"eos_token_id lists 1,000,000 ids; allowed: at most 256$"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
@pytest.mark.parametrize("value", ["</s>", -1, 1.0, True, [1, None], {"id": 1}])
def test_a_special_id_that_is_none_is_refused(folder, tmp_path, key, value):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({key: value}))
    sentence = f"{tmp_path / 'config.json'}: {key} must be a token id or a list of token ids, got {value!r}"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        Tokenizer(tmp_path)


def test_an_end_outside_the_vocabulary_is_refused(folder, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 9, "bos_token_id": 9, "eos_token_id": [8, 9]}))
    assert Tokenizer(tmp_path).eos_ids == {8, 9}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [9]}))
    sentence = f"{file}: eos_token_id [9] is outside the model's vocabulary; allowed: [0, 9)"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize("asked", [True, False, None])
@pytest.mark.parametrize("template", [True, False])
def test_bos_is_put_where_the_checkpoint_puts_it(folder, tokenizer, tmp_path, template, asked):
    """Qwen's config.json names a bos that its tokenizer never puts; DeepSeek's says in tokenizer_config.json that it
    does, Llama's in tokenizer.json."""
    raw = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw if template else raw | {"post_processor": None}))
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 0}))
    if asked is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": asked}))
    puts = template if asked is None else asked
    found = Tokenizer(tmp_path)
    assert found.bos_id == (0 if puts else None)
    assert found.encode("cows") == tokenizer.encode("cows")[0 if puts else 1 :]


def test_the_hash_is_that_of_the_vocabulary(folder, tmp_path):
    known = tokenizer_hash(folder)
    assert known is not None and len(known) == 12
    raw = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw | {"post_processor": None}))
    assert tokenizer_hash(tmp_path) == known
    byte_level(301).save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_hash(tmp_path) != known
    assert tokenizer_hash(tmp_path / "nowhere") is None


@given(st.lists(st.integers(0, 299), max_size=4 * WINDOW))
def test_text_grows_as_a_prefix_of_the_whole(tokenizer, ids):
    stream = Detokenizer(tokenizer)
    whole = tokenizer.decode(ids)
    shown = ""
    for token in ids:
        text = stream.push([token])
        assert text.startswith(shown)
        shown = text
    assert whole.startswith(shown)
    assert set(whole[len(shown) :]) <= {"\ufffd"}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=60))
def test_a_whole_text_comes_back_whole(tokenizer, text):
    stream = Detokenizer(tokenizer)
    ids = tokenizer.encode(text)
    assert [stream.push([token]) for token in ids][-1] == tokenizer.decode(ids) == text


@given(st.lists(st.lists(st.integers(0, 299), max_size=3 * WINDOW), max_size=5))
def test_text_does_not_depend_on_the_runs_that_its_ids_come_in(tokenizer, runs):
    one_by_one, in_runs = Detokenizer(tokenizer), Detokenizer(tokenizer)
    for run in runs:
        for token in run:
            one_by_one.push([token])
        assert in_runs.push(run) == one_by_one.text


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("tokenizer.json", None, "tokenizer.json is missing; the checkpoint has no tokenizer"),
        ("tokenizer.json", '{"version": "1.0", "mod', r"tokenizer.json is not a tokenizer \(.*\); the file is"),
        ("tokenizer.json", "{}", r"tokenizer.json is not a tokenizer \(.*\); the file is truncated or damaged"),
        ("generation_config.json", "[]", "generation_config.json must hold a JSON object, got list"),
        ("config.json", '{"bos', r"config.json is not valid JSON \(.*\); the file is truncated or damaged"),
    ],
)
def test_refusals(folder, tmp_path, name, content, sentence):
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(("make", "words"), [(os.mkdir, "a folder"), (os.mkfifo, "no regular file")])
def test_what_is_no_file_is_said_to_be_so(tmp_path, make, words):
    make(tmp_path / "tokenizer.json")
    with pytest.raises(ConfigError, match=f"tokenizer.json is {words}; the checkpoint has no tokenizer$"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(("dropout", "good"), [(None, True), (0.0, True), (0.5, False)])
def test_an_encoding_is_the_same_every_time(tmp_path, dropout, good):
    model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]], "dropout": dropout}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "added_tokens": []}))
    if good:
        assert Tokenizer(tmp_path).encode("abab") == [2, 2]
    else:
        with pytest.raises(ConfigError, match=r"json: dropout 0\.5 makes encodings random; allowed: null or 0$"):
            Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}}, lambda one: one.encode("a")),
        (
            {"decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 5}},
            lambda one: [*map(one.decode, ([id] for id in range(300)))],
        ),
    ],
)
def test_a_panic_of_the_library_is_an_error_of_the_text(folder, tmp_path, part, call):
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**raw, **part}), encoding="utf-8")
    with pytest.raises(RequestError, match=r"the tokenizer cannot .*code the .* \(PanicException: "):
        call(Tokenizer(tmp_path))


def test_a_panic_at_the_reading_is_an_error_of_the_file(folder, tmp_path):
    raw = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    part = {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**raw, **part}), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is not a tokenizer \(Precompiled: "):
        Tokenizer(tmp_path)
