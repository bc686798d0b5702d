"""A file that a user names may hold anything: the error is one sentence with its name, and exit status 2."""

from pathlib import Path

import pytest

from specmatrix import HOME
from specmatrix.cli import main
from specmatrix.matrix.cells.selector import HELP

QUESTIONS = HOME / "matrix" / "zoo" / "data" / "test.jsonl"
REPORT_FILES = ("report.jsonl", "report.jsonl.partial", "summary.json", "report.md", "report.html")

TEXTS = {
    "deep": (b"[" * 100_000 + b"]" * 100_000, "it nests too deeply"),
    "digits": (b"9" * 5_000, "it has a number of more than 4,300 digits"),
    "surrogate": (rb'"\ud800"', "it has half of a surrogate pair, which is no character"),
    "broken": (b'{"a": 1', "Expecting ',' delimiter at column 8"),
    "empty": (b"\n", "Expecting value at column 1"),
    "latin": (b'"\xe4"', ""),
    "mark": (b'\xef\xbb\xbf{"a": 1}', "it begins with a byte order mark; save it as UTF-8 without one"),
}
NGRAM = ("--speculative-algorithm", "NGRAM", "--speculative-ngram-external-sam-budget", "4")
LINES = "FILE line 1 is not valid JSON (WHY)", "FILE line 1 is not UTF-8; the file is damaged"
# What reads a file, and its sentence about text that is no JSON and about bytes that are no text.
READERS = {
    ("accuracy", "--data", "FILE"): LINES,
    ("compare", "REPORT", "REPORT", "--acknowledge", "FILE"): (
        "FILE is no list of acknowledgements: WHY",
        "FILE is no list of acknowledgements: it is not UTF-8 text",
    ),
    ("generate", "Hi", "--speculative-adaptive", "--speculative-adaptive-config", "FILE"): (
        "speculative_adaptive_config FILE is not JSON: WHY",
        "speculative_adaptive_config FILE cannot be read (it is not UTF-8 text); pass a JSON file",
    ),
    ("generate", "Hi", *NGRAM, "--speculative-ngram-external-corpus-path", "FILE"): (
        "FILE:1: not valid JSON (WHY)",
        "corpus FILE is not UTF-8 text; pass a JSON Lines file",
    ),
}


def refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The error with which the command refuses its input."""
    assert main(list(words)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("specmatrix: ") and said.err.count("\n") == 1
    return said.err.removeprefix("specmatrix: ").rstrip("\n")


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("words", READERS, ids=lambda words: " ".join(words[:4]))
def test_a_file_is_named_with_what_is_wrong(words, kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file, (text, why) = tmp_path / "file.json", TEXTS[kind]
    file.write_bytes(text)
    about_json, about_bytes = READERS[words]
    expected = about_json.replace("WHY", why) if why else about_bytes
    if kind == "empty" and "corpus" in expected + words[-2]:
        expected = "corpus FILE is empty; it must hold at least one document"
    assert refused(tuple(word.replace("FILE", str(file)) for word in words), capsys) == expected.replace(
        "FILE", str(file)
    )


@pytest.mark.parametrize("words", [*READERS, ("compare", "FILE", "FILE")], ids=lambda words: " ".join(words[:4]))
def test_a_file_that_never_ends_is_refused(words, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "file.json"
    file.symlink_to("/dev/zero")
    sentence = refused(tuple(word.replace("FILE", str(file)) for word in words), capsys)
    assert str(file) in sentence and "File too large" in sentence


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *((("run", "--cells", "none.v2", "--workers", "1"), name) for name in REPORT_FILES),
        *((("accuracy", "--data", "FILE", "--limit", "1"), name) for name in ("accuracy.json", "accuracy.md")),
        *((("bench",), name) for name in ("bench.json", "bench.md")),
    ],
)
def test_a_folder_in_an_outputs_place_is_found_before_the_work(words, name, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setattr("specmatrix.matrix.accuracy.command.measure", pytest.fail)
    monkeypatch.setattr("specmatrix.benchmarks.command.waiting", pytest.fail)
    (tmp_path / name).mkdir()
    given = tuple(str(QUESTIONS) if word == "FILE" else word for word in words)
    assert refused((*given, "--out", str(tmp_path)), capsys) == f"cannot write {tmp_path}: {name} is a directory there"


@pytest.mark.parametrize("text", ["(" * 3_000 + "topk=4", "not " * 3_000 + "topk=4"])
def test_a_selector_has_a_limit_of_depth(text, capsys: pytest.CaptureFixture[str]):
    sentence = refused(("run", "--cells", text), capsys)
    assert sentence.startswith(f"selector '{text[:199]}... ")
    assert sentence.endswith(HELP if "(" in text else "nests more than 100 levels deep")


def test_a_name_too_long_for_a_file_is_one_sentence(capsys: pytest.CaptureFixture[str]):
    name = "x" * 5_000
    assert refused(("compare", name, name), capsys) == f"cannot read {name[:239]}…: File name too long"
    for words in (("generate", "Hi", "--model-path"), ("run", "--cells"), ("explain",), ("accuracy", "--data")):
        sentence = refused((*words, name), capsys)
        assert name[:100] in sentence and len(sentence) < 600
