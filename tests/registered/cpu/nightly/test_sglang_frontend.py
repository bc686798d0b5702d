"""SGLang's own client, `RuntimeEndpoint`, unchanged against the server. SPECMATRIX_SGLANG_CLIENT names the folder that
holds its package; docs/engine.md says how to make it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from specmatrix import HOME
from specmatrix.engine.core.schedule.request import SamplingParams
from tests.support.served import QUESTION, served

FOLDER = "SPECMATRIX_SGLANG_CLIENT"
pytestmark = pytest.mark.skipif(FOLDER not in os.environ, reason=f"{FOLDER} names no folder")


def test_programs_of_sglangs_frontend_run_on_the_server():
    with served() as server:
        command = [sys.executable, "examples/sglang_frontend.py", server.url]
        own = {**os.environ, "PYTHONPATH": os.environ[FOLDER]}
        done = subprocess.run(command, cwd=HOME, env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ledger = server.llm.loop.scheduler.ledger
        assert ledger.counts.free == ledger.counts.pages  # it flushed the cache at last
        found = json.loads(done.stdout)
        scored = SamplingParams(40, stop=("\n",), top_logprobs_num=2, logprob_start_len=0)
        (ours,) = server.llm_outputs(QUESTION, scored)
        (short,) = server.llm_outputs(QUESTION, SamplingParams(8))
    assert (found["model"], found["steps"]) == ("llama-mini", 3)
    assert found["answer"] == ours.text == "".join(found["pieces"]) and len(found["pieces"]) > 2
    assert found["batch"] == [ours.text] * 2
    assert found["forked"] == f"{short.text}|{short.text}"
    assert found["choices"] == [" Now: Tom has"] * 2
    assert found["chat"]
    scores = found["scores"]
    assert [row[1] for row in scores["output_token_logprobs"]] == [*ours.output_ids]
    assert [row[0] for row in scores["output_token_logprobs"]] == pytest.approx(ours.logprobs, abs=1e-4)
    assert [row[1] for row in scores["input_token_logprobs"]] == [*server.llm.tokenizer.encode(QUESTION)]
    assert scores["spec_verify_ct"] == ours.meta_info["spec_verify_ct"]
