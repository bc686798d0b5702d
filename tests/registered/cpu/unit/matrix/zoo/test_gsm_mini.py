import json
import re
from dataclasses import replace

import pytest

from specmatrix.matrix.zoo import gsm_mini
from specmatrix.matrix.zoo.evaluate import corpus_rows, split_rows
from specmatrix.matrix.zoo.gsm_mini import HELDOUT, LEVELS, TRAINED, final_of, in_form, is_test, problem, problems
from specmatrix.matrix.zoo.registry import CORPUS, CORPUS_FILE, DATA, resolve_path
from specmatrix.matrix.zoo.registry import HELDOUT as HELDOUT_FILE
from specmatrix.matrix.zoo.registry import TEST as TEST_FILE

ANNOTATION = re.compile(r"<<([^=<>]+)=(\d+)>>")


def test_the_data_files_are_reproducible_and_the_corpus_holds_no_test_question(tmp_path):
    made, rows = tmp_path / "made.jsonl", corpus_rows(DATA)
    for split, file in (("test", TEST_FILE), ("heldout", HELDOUT_FILE)):
        gsm_mini.write_jsonl(made, split_rows(DATA, split))
        assert made.read_bytes() == file.read_bytes()
    gsm_mini.write_corpus(made, rows)
    assert made.read_bytes() == CORPUS_FILE.read_bytes() and resolve_path(CORPUS) == CORPUS_FILE
    assert len(rows) > 50 and not any(is_test(row.question) for row in rows)


def test_a_problem_depends_on_seed_split_and_index_alone():
    first = [problem(5, "train", index, DATA.mix) for index in range(30)]
    again = [problem(5, "train", index, DATA.mix) for index in reversed(range(30))]
    assert first == again[::-1]
    assert first != [problem(6, "train", index, DATA.mix) for index in range(30)]


def test_no_question_is_in_two_splits_and_none_is_repeated():
    test = {row.question for row in split_rows(DATA, "test")}
    train = {problem(DATA.seed, "train", index, DATA.mix).question for index in range(3000)}
    assert len(test) == DATA.test_problems
    assert all(map(is_test, test)) and not any(map(is_test, train))


def test_held_out_templates_are_not_trained_on():
    names = [template.name for template in TRAINED + HELDOUT]
    phrasings = [text for template in TRAINED + HELDOUT for text in template.questions]
    assert len(TRAINED) >= 60
    assert len(set(names)) == len(names)
    assert len(set(phrasings)) == len(phrasings)
    assert {row.template for row in split_rows(DATA, "heldout")} <= {template.name for template in HELDOUT}


@pytest.mark.parametrize("level", range(LEVELS))
def test_every_annotation_is_right_and_the_last_one_is_the_answer(level):
    mix = [float(level == each) for each in range(LEVELS)]
    for split in ("train", "heldout"):
        for row in problems(1, split, 150, mix):
            found = ANNOTATION.findall(row.answer)
            assert 1 <= len(found) == row.steps <= 6, row
            for expression, value in found:
                assert re.fullmatch(r"[\d+\-*/]+", expression)
                assert eval(expression) == int(value), row
            assert row.answer.endswith(f"\n#### {found[-1][1]}")
            assert row.level == level


def test_a_split_is_known_and_the_mix_moves_the_levels():
    with pytest.raises(ValueError, match="split must be one of train, test, heldout, got 'dev'"):
        problem(1, "dev", 0, DATA.mix)
    easy = replace(DATA, test_mix=(1.0, 0, 0, 0, 0, 0), test_problems=20)
    assert {row.level for row in split_rows(easy, "test")} == {0}
    assert gsm_mini.prompt_of("Why?") == "Question: Why?\nAnswer:"


def test_an_answer_in_json_has_the_worked_answers_steps_and_number():
    for made in problems(DATA.seed, "test", 40, DATA.test_mix):
        found = json.loads(in_form(made.answer, "json"))
        assert found["answer"] == int(final_of(made.answer, "worked")) and len(found["steps"]) == made.steps
        assert [re.sub("<<.*?>>", "", line) for line in made.answer.split("\n")[:-1]] == found["steps"]
        assert "<" not in in_form(made.answer, "json") and in_form(made.answer, "worked") == made.answer
    assert final_of(' {"steps": [], "answer": 12}', "json") == "12"
    assert [final_of(text, "json") for text in ("12", '{"steps": []}', '{"answer": 1', "[]")] == [""] * 4
