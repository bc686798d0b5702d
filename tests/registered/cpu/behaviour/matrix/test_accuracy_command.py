"""`accuracy` end to end on questions that the model was trained for, in its own process as a user runs it.

lm-eval and the libraries below it read the environment once and warn on import, which is why it is not this process.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from specmatrix import HOME

pytestmark = pytest.mark.skipif(find_spec("lm_eval") is None, reason="the extra `accuracy` is not installed")
QUESTIONS = HOME / "matrix" / "zoo" / "data" / "test.jsonl"
RUN = """
import json, sys
from pathlib import Path
from specmatrix.errors import EngineError
from specmatrix.matrix.accuracy.command import accuracy
asked = json.loads(sys.argv[1])
asked.update({name: Path(asked[name]) for name in ("data", "train", "out") if name in asked})
try:
    sys.exit(accuracy(**asked))
except EngineError as error:
    sys.exit(f"refused: {error}")
"""


def run(**asked: object):
    values = {name: str(value) if isinstance(value, Path) else value for name, value in asked.items()}
    command = [sys.executable, "-c", RUN, json.dumps(values)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.nightly
def test_a_cell_equals_plain_decoding_on_the_zoos_questions(tmp_path):
    done = run(data=QUESTIONS, limit=24, max_new_tokens=160, out=tmp_path, json_=True, cell="eagle3.s2.k2.n6.p4.tight")
    assert (done.returncode, done.stderr) == (0, "")
    shown, written = json.loads(done.stdout), json.loads((tmp_path / "accuracy.json").read_text())
    assert written.pop("answers")[5]["line"] == 6
    assert shown == written
    assert shown["state"] == "PASS" and shown["different_texts"] == 0
    right = {test["name"]: (test["baseline"], test["cell"]) for test in shown["tests"]}
    # The card states about 80 %; 10 of 24 is 4 standard errors below.
    assert right["right by strict-match"][0] == right["right by strict-match"][1] >= 10
    assert shown["runs"]["cell"]["tokens_per_round"] > 1.2 * shown["runs"]["baseline"]["tokens_per_round"]
    assert shown["starts"]["baseline"]["resolved"]["algorithm"] == "NONE"
    assert shown["starts"]["cell"]["readback"]["num_draft_tokens"] == 6
    assert shown["starts"]["cell"]["readback"]["num_pages"] < 192, "the tight pool holds one request, not all"
    assert shown["runs"]["cell"]["retractions"] > 0 == shown["runs"]["baseline"]["retractions"]
    text = (tmp_path / "accuracy.md").read_text()
    assert text.startswith("# gsm8k: `eagle3.s2.k2.n6.p4.tight` against `none.v1.nocache`: PASS\n")
    assert "| right by flexible-extract |" in text
    # Twelve losses show; a few more are needed on average for twelve in four runs of five.
    assert 12 / 24 < shown["tests"][0]["detectable_drop"] < 17 / 24
    assert f"{100 * shown['tests'][0]['detectable_drop']:.2f} points | PASS |" in text
    assert "as soon as one is below 0.002; of equal engines' runs at most 0.01 are red. Detectable drop: the " in text
    assert "smallest true drop for which 80% of runs are red, with as many questions won as here." in text


@pytest.mark.nightly
def test_cut_answers_are_counted_and_thin_evidence_is_red(tmp_path):
    asked = {"limit": 3, "max_new_tokens": 4, "num_fewshot": 1, "cell": "nextn.deepseek.s2"}
    done = run(data=QUESTIONS, json_=True, out=tmp_path, **asked)
    shown = json.loads(done.stdout)
    assert (done.returncode, shown["state"]) == (1, "NOT MEASURED")
    assert shown["runs"]["cell"]["ended_by_length"] == shown["runs"]["cell"]["invalid_strict-match"] == 3
    assert shown["task"]["num_fewshot"] == 1
    assert shown["tests"][0]["detectable_drop"] is None
    assert "| none | NOT MEASURED |" in (tmp_path / "accuracy.md").read_text()
    assert (shown["baseline"], [*shown["weights"]]) == ("none.deepseek.v1.nocache", ["deepseek-mini"])


@pytest.mark.nightly
def test_a_prompt_longer_than_the_context_is_refused(tmp_path):
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps({"question": "7 " * 5000, "answer": "#### 7"}) + "\n")
    done = run(data=data, limit=1)
    assert done.returncode == 1
    assert done.stderr.startswith("refused: prompt 1 has ")
    assert done.stderr.rstrip().endswith("use fewer examples per prompt or fewer new tokens")
    assert done.stderr.count("\n") == 1
