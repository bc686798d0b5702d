"""Gives a draft model its own vocabulary, for universal assisted decoding: the same tokens under other ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

# Special tokens keep their ids; all others move up by SHIFT. Additional tokens, which occur in no text, stand for
# draft-only ones; the sizes must differ, as transformers treats vocabularies of equal size as the same.
SPECIAL: Final = 2
SHIFT: Final = 101
MORE: Final = 32


def with_other_vocabulary(draft: Any, path: Path) -> Any:  # noqa: ANN401 - any architecture
    """Change a draft in place and return its new tokenizer. path: of its checkpoint. The additional tokens copy the
    rows of BOS, which is never drafted."""
    size = draft.config.vocab_size
    total = size + MORE
    moved = [*range(SPECIAL), *((n - SPECIAL + SHIFT) % (total - SPECIAL) + SPECIAL for n in range(SPECIAL, total))]
    draft.resize_token_embeddings(total, mean_resizing=False)
    with torch.no_grad():
        for layer in (draft.get_input_embeddings(), draft.get_output_embeddings()):
            layer.weight[size:] = layer.weight[0]
            layer.weight[moved] = layer.weight.clone()
    content = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = {token: moved[place] for token, place in content["model"]["vocab"].items()}
    content["model"]["vocab"] = vocabulary | {f"<other {n}>": moved[size + n] for n in range(MORE)}
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=Tokenizer.from_str(json.dumps(content)))
