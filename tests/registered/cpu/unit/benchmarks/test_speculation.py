"""What speculation gains: every repetition starts without the answers of the previous one."""

from specmatrix.benchmarks import speculation
from specmatrix.benchmarks.speculation import pays


def test_an_index_of_n_grams_forgets_the_answers_between_repetitions():
    llm = speculation.speculative("ngram")
    asked = list(speculation.islice(speculation.questions(), 1))
    sizes = []
    for _ in range(2):
        speculation.one_by_one(llm, asked)
        sizes.append((len(llm.loop.executor.drafter.index), llm.counters["decode.round"]))
    assert sizes[0][0] == sizes[1][0] > 0
    assert sizes[1][1] == 2 * sizes[0][1], "as many rounds as the first time"


def test_a_drafter_is_measured_beside_none_and_said_to_pay_or_not(monkeypatch):
    monkeypatch.setattr(speculation, "PAIRS", 2)
    monkeypatch.setattr(speculation, "ASKED", 1)
    metric = pays("ngram")
    assert (metric.name, metric.pairs, metric.goal) == ("speculation_ngram_k3_vs_none", 2, None)
    assert metric.ratio is not None and metric.ratio > 0
    assert "pay on this CPU" in metric.note or metric.note.startswith("pays on this CPU")
