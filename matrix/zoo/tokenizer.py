"""The zoo's tokenizer: byte-level BPE, one token per digit, trained on gsm-mini's text.

`data/tokenizer.json` is its only source; the models are trained on its ids, so it is never retrained.
"""

import json
from pathlib import Path

BOS, EOS = "<|begin|>", "<|end|>"
BOS_ID, EOS_ID = 0, 1


def save(tokenizer_json: str, folder: Path, max_positions: int) -> None:
    """Write tokenizer.json and the two files from which transformers' AutoTokenizer reads the special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": EOS}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n", encoding="utf-8")
