import subprocess
import sys

import pytest

from matrix.axes import axis
from matrix.zoo_facts import zoo_facts

pytestmark = pytest.mark.register(est_seconds=1, tier="cpu", stage="pr")


@pytest.mark.parametrize(
    ("algorithm", "architecture"),
    [("none", None), ("standalone", "LlamaForCausalLM"), ("eagle3", "LlamaForCausalLMEagle3")],
)
def test_each_algorithm_brings_its_draft(algorithm, architecture):
    draft = zoo_facts(algorithm).draft
    assert (draft and draft.architecture) == architecture
    assert algorithm in axis("algorithm").names


def test_widths_differ_so_that_a_mistaken_one_shows():
    facts = zoo_facts("eagle3")
    assert facts.draft is not None
    assert facts.draft.target_hidden_size == facts.hidden_size != facts.draft.hidden_size
    assert facts.draft.draft_vocab_size < facts.vocab_size
    assert len(set(facts.draft.aux_layers)) == 3 and max(facts.draft.aux_layers) < facts.num_layers


def test_reading_them_imports_no_torch():
    code = "import sys; from matrix.zoo_facts import zoo_facts; zoo_facts('eagle3'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
