"""Runs programs of SGLang's frontend language on a server, `specmatrix serve` or SGLang's own, and prints the results
as JSON:

    python examples/sglang_frontend.py http://127.0.0.1:30000

docs/engine.md says how to install SGLang's package without a GPU; written with sglang 0.5.23.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sglang
from sglang.lang.choices import greedy_token_selection, token_length_normalized

QUESTION = "Question: Tom has 12 apples and buys 15 more. How many apples does he have?\nAnswer:"
CHOICES = [" Now: Tom has", " Later: Ann has"]
METHODS = (token_length_normalized, greedy_token_selection)


@sglang.function
def answered(s: Any, **asked: Any) -> None:
    s += QUESTION
    s += sglang.gen("answer", max_tokens=40, stop="\n", temperature=0, **asked)


@sglang.function
def chosen(s: Any, method: Any) -> None:
    s += QUESTION
    s += sglang.select("choice", choices=CHOICES, choices_method=method)


@sglang.function
def forked(s: Any) -> None:
    s += QUESTION
    copies = s.fork(2)
    for copy in copies:
        copy += sglang.gen("answer", max_tokens=8, temperature=0)
    copies.join()
    s += "|".join(copy["answer"] for copy in copies)


@sglang.function
def chatted(s: Any) -> None:
    s += sglang.user(QUESTION)
    s += sglang.assistant(sglang.gen("answer", max_tokens=8, temperature=0))


def main(url: str) -> dict[str, Any]:
    """The result of each feature of `RuntimeEndpoint`."""
    server = sglang.RuntimeEndpoint(url)
    sglang.set_default_backend(server)
    scored = answered.run(return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True)
    server.cache_prefix(QUESTION)
    found = {
        "model": server.get_model_name().rpartition("/")[2],
        "steps": server.get_server_info()["speculative_num_steps"],
        "answer": answered.run()["answer"],
        "pieces": [*answered.run(stream=True).text_iter("answer")],
        "batch": [state["answer"] for state in answered.run_batch([{}, {"min_tokens": 2}], num_threads=2)],
        "scores": scored.get_meta_info("answer"),
        "choices": [chosen.run(method=method)["choice"] for method in METHODS],
        "forked": forked.run().text().removeprefix(QUESTION),
        "chat": chatted.run()["answer"],
    }
    server.flush_cache()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
