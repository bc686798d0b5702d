"""Question files: what is read, and the error for each kind of damage."""

import json
from pathlib import Path

import pytest

from specmatrix.matrix.accuracy.data import split
from specmatrix.matrix.zoo.questions import DataError, read_questions


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
    path = write("q.jsonl", line(1), line(2, question="cut\u2028here?"))
    assert [(q.line, q.question) for q in read_questions(path)] == [(1, "What is 1?"), (2, "cut\u2028here?")]
    assert read_questions(path)[0].answer == "It is 1.\n#### 1"


def test_a_raw_line_separator_inside_a_question_ends_no_line(write):
    path = write("q.jsonl", json.dumps({"question": "a\u2028b", "answer": "#### 1"}, ensure_ascii=False))
    assert read_questions(path)[0].question == "a\u2028b"


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


def test_a_missing_an_empty_and_a_damaged_file(write, tmp_path):
    with pytest.raises(DataError, match=r"^cannot read .*absent\.jsonl: No such file or directory$"):
        read_questions(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match=r"empty\.jsonl is empty; give a file with one question per line$"):
        read_questions(write("empty.jsonl"))
    with pytest.raises(DataError, match=r"^cannot read /dev/zero: File too large$"):
        read_questions(Path("/dev/zero"))
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(line(1).encode() + b"\n\xff\n")
    with pytest.raises(DataError, match=r"damaged\.jsonl line 2 is not UTF-8; the file is damaged$"):
        read_questions(damaged)


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
    data = write("a.jsonl", *map(line, range(4)))
    same, other = write("b.jsonl", *map(line, range(4))), write("c.jsonl", *map(line, range(1, 5)))
    digests = [split(path, None, 0, None).digest for path in (data, same, other)]
    assert digests[0] == digests[1] != digests[2]
    assert split(data, None, 0, 3).digest != digests[0]


def test_too_few_lines(write):
    data = write("a.jsonl", line(1), line(2))
    with pytest.raises(DataError, match=r"^num_fewshot must be at most 2, the lines of .*a\.jsonl, got 3$"):
        split(data, None, 3, None)
    with pytest.raises(DataError, match=r"^all 2 lines of .* are few-shot examples; give --train or fewer examples$"):
        split(data, None, 2, None)
