"""lm-eval's client of OpenAI's completions, unchanged."""

from __future__ import annotations

import pytest

from tests.support.served import MODEL, QUESTION, RunningServer


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_lm_eval_generates_and_scores_through_local_completions(server: RunningServer):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    words = {"tokenizer": server.llm.resolved.model_path, "num_concurrent": 1, "max_retries": 1}
    model = LocalCompletionsAPI(model=MODEL, base_url=f"{server.url}/v1/completions", **words)
    words = {"until": ["\n"], "max_gen_toks": 40, "do_sample": False}
    asked = [Instance("generate_until", {}, (QUESTION, words), index) for index in range(2)]
    assert model.generate_until(asked) == [" Now: Tom has 12+15=<<12+15=27>>27 apples."] * 2
    pairs = ((QUESTION, " Now: Tom has"), (QUESTION, " Later: Ann has"))
    likely, unlikely = model.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)])
    assert likely[1] and not unlikely[1] and likely[0] > unlikely[0]
