import subprocess
import sys

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.matrix.cells.axes import axis
from specmatrix.matrix.cells.cell import DRAFTS, MODELS, Cell, zoo_facts
from specmatrix.matrix.zoo.registry import RECIPES, TARGETS


def test_each_algorithm_brings_its_draft():
    drafts = {
        Cell(): None,
        Cell("standalone"): "LlamaForCausalLM",
        Cell("eagle3"): "LlamaForCausalLMEagle3",
        Cell("standalone", "qwen3"): "Qwen3ForCausalLM",
        Cell("nextn", "deepseek"): None,
        Cell("standalone", "mistral"): "LlamaForCausalLM",
    }
    for cell, architecture in drafts.items():
        draft = zoo_facts(cell).draft
        assert (draft and draft.architecture) == architecture


def test_each_model_is_its_own_target():
    models = {"llama": ("Llama", None, 0), "qwen3": ("Qwen3", 48, 0), "deepseek": ("DeepseekV3", None, 2)}
    models |= {"mistral": ("Mistral", 56, 0), "qwen3next": ("Qwen3Next", None, 1), "qwen35": ("Qwen3_5", None, 1)}
    for model, (name, window, bundled) in models.items():
        facts = zoo_facts(Cell(model=model))
        assert (facts.architecture, facts.window) == (f"{name}ForCausalLM", window)
        assert (facts.bundled.prediction_layers if facts.bundled else 0) == bundled


def test_every_draft_of_the_zoo_is_on_the_axes():
    for (model, algorithm), draft in DRAFTS.items():
        assert (
            RECIPES[draft].target in (MODELS[model], "llama-mini")
            and algorithm.partition(".")[0] in axis("algorithm").names
        )
    assert set(MODELS) == set(axis("model").names) and set(MODELS.values()) == set(TARGETS)
    assert {*MODELS.values(), *DRAFTS.values()} == set(RECIPES)


def test_widths_differ_so_that_a_mistaken_one_shows():
    facts = zoo_facts(Cell("eagle3"))
    assert facts.draft is not None
    assert facts.draft.target_hidden_size == facts.hidden_size != facts.draft.hidden_size
    assert facts.draft.draft_vocab_size < facts.vocab_size
    assert len(set(facts.draft.aux_layers)) == 3 and max(facts.draft.aux_layers) < facts.num_layers
    # A block draft reads no state behind the last layer. There engines differ: vLLM reads it before the final norm,
    # z-lab's code and this engine behind it.
    facts = zoo_facts(Cell("dflash"))
    assert FINAL not in facts.draft.aux_layers and max(facts.draft.aux_layers) < facts.num_layers


def test_reading_them_imports_no_torch():
    code = "import sys; from specmatrix.matrix.cells.cell import Cell\n"
    code += "from specmatrix.matrix.cells.cell import zoo_facts\n"
    code += "zoo_facts(Cell('eagle3')); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
