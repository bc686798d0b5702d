"""`specmatrix checkpoints` and `accuracy --checkpoint` as typed: output, one-sentence errors, exit status 2."""

from __future__ import annotations

import json

import pytest
import torch

from specmatrix.cli import main
from specmatrix.matrix.zoo.published.pairs import PAIRS
from specmatrix.matrix.zoo.registry import TEST

ASK = ["accuracy", "--data", str(TEST), "--checkpoint"]


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with or without a GPU, and nothing downloaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return lambda gpu: monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)


def test_the_list_in_words_and_as_json(capsys):
    assert main(["checkpoints", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["checkpoint", "tier", "target", "algorithm"] and [row.split()[0] for row in rows] == list(
        PAIRS
    )
    assert rows[0].split()[1:3] == ["gpu1", "meta-llama/Llama-3.1-8B-Instruct"]
    assert main(["checkpoints", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["checkpoint"] for row in listed] == list(PAIRS)
    one = next(row for row in listed if row["checkpoint"] == "qwen3-8b.dflash")
    assert one["gsm8k"] == PAIRS["qwen3-8b.dflash"].gsm8k
    assert (one["expected_accuracy"]["share"], one["expected_accuracy"]["questions"]) == (0.871114, 1319)
    assert one["draft"]["repo"] == "z-lab/Qwen3-8B-DFlash-b16"


def test_a_check_names_all_that_is_missing(machine, capsys, tmp_path):
    machine(False)
    assert main(["checkpoints", "check", "qwen3-8b.dflash"]) == 2
    title, *missing = capsys.readouterr().out.splitlines()
    assert title == "qwen3-8b.dflash:"
    assert [line.split()[0] for line in missing] == ["checkpoint", "Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16"]
    assert main(["checkpoints", "check", "--json", "--models", str(tmp_path)]) == 2
    assert [row["checkpoint"] for row in json.loads(capsys.readouterr().out)] == list(PAIRS)


@pytest.mark.parametrize(
    ("gpu", "words", "sentence"),
    [
        (False, ["qwen3-8b.eagle3"], "checkpoint qwen3-8b.eagle3 needs a GPU but this machine has none"),
        (True, ["qwen3-8b.eagle3"], "Qwen/Qwen3-8B at b968826d9c46dd6066d109eabc6255188de91218 is not in /"),
        (True, ["qwen3-8b.eagle3", "--models", "/no/models"], "folder /no/models of checkpoints does not exist"),
    ],
)
def test_gsm8k_without_its_requirements_is_one_sentence_and_no_pass(machine, capsys, gpu, words, sentence):
    machine(gpu)
    assert main([*ASK, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"specmatrix: {sentence}") and err.count("\n") == 1
