"""Question files: what is read, and the error for each kind of damage."""

import json
from pathlib import Path

import pytest

from specmatrix.errors import RequestError
from specmatrix.matrix.accuracy.generation import parameters
from specmatrix.matrix.accuracy.task import split
from specmatrix.matrix.zoo.gsm_mini import DataError, read_questions


def line(number, **changes: str):
    return json.dumps({"question": f"What is {number}?", "answer": f"It is {number}.\n#### {number}"} | changes)


@pytest.fixture
def write(tmp_path):
    def write(name, *lines: str):
        path = tmp_path / name
        path.write_text("".join(text + "\n" for text in lines), encoding="utf-8")
        return path

    return write


def test_questions_keep_their_text_and_line(write):
    raw = json.dumps({"question": "a\u2028b", "answer": "#### 1"}, ensure_ascii=False)
    found = read_questions(write("q.jsonl", line(1), line(2, question="cut\u2028here?"), raw))
    assert [(q.line, q.question) for q in found] == [(1, "What is 1?"), (2, "cut\u2028here?"), (3, "a\u2028b")]
    assert found[0].answer == "It is 1.\n#### 1"


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ('{"question": "cut', "line 2 is not valid JSON (Unterminated string at column 14)"),
        ("", "line 2 is not valid JSON (Expecting value at column 1)"),
        ("[1]", "line 2 is list, not an object with question and answer"),
        ('{"question": "q"}', "line 2 has no string 'answer'; it needs question and answer"),
        ('{"answer": "#### 1"}', "line 2 has no string 'question'; it needs question and answer"),
        ('{"question": 3, "answer": "#### 1"}', "line 2 has no string 'question'; it needs question and answer"),
        (line(1, answer="one"), "line 2 has an answer without '#### n', so it has no final number to grade"),
    ],
)
def test_a_broken_line_is_named(write, broken, sentence):
    path = write("q.jsonl", line(1), broken, line(3))
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert str(caught.value) == f"{path} {sentence}"


def test_a_missing_an_empty_and_a_damaged_file_and_too_few_lines(write, tmp_path):
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(line(1).encode() + b"\n\xff\n")
    data = write("a.jsonl", line(1), line(2))
    for call, text in (
        (lambda: read_questions(tmp_path / "absent.jsonl"), r"^cannot read .*absent\.jsonl: No such file or"),
        (lambda: read_questions(write("empty.jsonl")), r"empty\.jsonl is empty; give a file with one question per"),
        (lambda: read_questions(Path("/dev/zero")), r"^cannot read /dev/zero: File too large$"),
        (lambda: read_questions(damaged), r"damaged\.jsonl line 2 is not UTF-8; the file is damaged$"),
        (lambda: split(data, None, 3, None), r"^num_fewshot must be at most 2, the lines of .*a\.jsonl, got 3$"),
        (lambda: split(data, None, 2, None), r"^all 2 lines of .* are few-shot examples; give --train or fewer"),
    ):
        with pytest.raises(DataError, match=text):
            call()


def test_examples_come_from_train_and_are_never_questions(write):
    data, train = write("test.jsonl", *map(line, range(6))), write("train.jsonl", *map(line, range(10, 14)))
    apart = split(data, train, 2, 3)
    assert [q.question for q in apart.examples] == ["What is 10?", "What is 11?"]
    assert [q.line for q in apart.asked] == [1, 2, 3]
    own = split(data, None, 2, None)
    assert [q.line for q in own.examples] == [1, 2]
    assert [q.line for q in own.asked] == [3, 4, 5, 6]
    assert (apart.source, own.source) == ("test.jsonl, examples from train.jsonl", "test.jsonl")


def test_the_digest_follows_the_content(write):
    data, same, other = (write(f"{n}.jsonl", *map(line, range(n // 2, 4 + n // 2))) for n in (0, 1, 2))
    digests = [split(path, None, 0, None).digest for path in (data, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert split(data, None, 0, 3).digest != digests[0]


def test_stop_strings_length_and_temperature():
    wanted = {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.7, "max_gen_toks": 9}
    params = parameters(wanted)
    assert (params.stop, params.max_new_tokens, params.temperature) == (("Question:", "</s>"), 9, 0.0)
    assert parameters(wanted | {"do_sample": True}).temperature == 0.7
    assert parameters(wanted | {"until": "\n\n"}).stop == ("\n\n",)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_gen_toks": 9, "num_beams": 4}, r"^generation argument 'num_beams' is unknown; it must be one of"),
        ({}, r"^generation argument max_gen_toks is missing; the number of new tokens must be explicit$"),
    ],
)
def test_what_the_engine_cannot_give_is_refused(given, text):
    with pytest.raises(RequestError, match=text):
        parameters({"until": [], **given})
