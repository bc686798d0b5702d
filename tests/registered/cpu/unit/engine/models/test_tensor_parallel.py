"""A model shared by several ranks against the whole one, the ranks being threads that hand each other their tensors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

from specmatrix.engine.core.draft.algorithms import FINAL
from specmatrix.engine.device.collectives import Ranks
from specmatrix.engine.models.config import load_model_config
from specmatrix.engine.models.loader import load_target
from specmatrix.engine.models.tensor_parallel import share
from specmatrix.errors import ConfigError
from specmatrix.matrix.zoo.registry import resolve_path

BOUND = 1e-4  # float32, largest absolute difference of a logit; logits here reach about 10
TOKENS = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(5))
# Checkpoint, what differs from its small shape, ranks: heads split, key heads copied, all heads copied, none of the
# vocabularies a multiple of the ranks.
SHARED = {
    "heads split": ("llama", {}, 2),
    "key heads copied": ("llama", {}, 4),
    "heads copied": ("llama", {}, 8),
    "one key head": ("llama", {"num_key_value_heads": 1}, 2),
    "tied": ("llama", {"tie_word_embeddings": True}, 2),
    "head norms and windows": ("qwen3", {}, 2),
    "latent heads split": ("deepseek", {"num_attention_heads": 4, "num_key_value_heads": 4}, 2),
    "latent heads copied": ("deepseek", {"num_attention_heads": 2, "num_key_value_heads": 2}, 4),
    "latent queries without a rank": ("deepseek", {"q_lora_rank": None, "num_attention_heads": 4}, 4),
    "states and projections by key head": ("qwen3_next", {}, 2),
    "states and flat projections": ("qwen3_5", {}, 2),
    "states and experts": ("qwen3_5_moe", {}, 2),
}


class Threads:
    """The ranks of one process: each call waits until all of them have handed in their tensor."""

    def __init__(self, size: int) -> None:
        self.size, self.handed, self.barrier = size, [torch.empty(0)] * size, Barrier(size, timeout=30)

    def exchange(self, rank: int, own: Tensor) -> list[Tensor]:
        self.handed[rank] = own.clone()
        self.barrier.wait()
        found = [tensor.clone() for tensor in self.handed]
        self.barrier.wait()
        assert {tensor.shape for tensor in found} == {own.shape}
        return found

    def run(self, work):
        """What `work` returns for each rank."""
        with ThreadPoolExecutor(self.size) as pool:
            jobs = [pool.submit(work, ThreadRank(self, rank)) for rank in range(self.size)]
            return [job.result() for job in jobs]


class ThreadRank(Ranks):
    """A rank whose peers are threads."""

    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__(rank, threads.size)
        self.threads = threads

    def parts(self, own: Tensor) -> list[Tensor]:
        return self.threads.exchange(self.rank, own)


def logits_and_states(folder, paged, ranks: Ranks, widths: list[int]) -> tuple[list[Tensor], Tensor]:
    """Logits of a prompt in chunks, and the captured states of its first tokens."""
    with torch.inference_mode():
        model = load_target(folder, "cpu", torch.float32, ranks=ranks)
        driver, at, found = paged(model, 3, 24), 0, []
        for width in widths:
            found.append(driver.run(TOKENS[:, at : at + width], [at] * 3))
            at += width
        seen = torch.ones(4, 4).tril().bool()
        attend = paged(model, 1, 24).attend([0], [0], seen)
        _, states = model.forward(TOKENS[:1, :4], torch.arange(4)[None], attend, (0, 2, FINAL))
    return found, states


@pytest.mark.parametrize(("architecture", "changes", "size"), SHARED.values(), ids=SHARED)
def test_ranks_compute_the_same_as_the_whole_model(target_folder, paged, architecture, changes, size):
    folder = target_folder(architecture, **changes)
    whole, states = logits_and_states(folder, paged, Ranks(), [24])
    found = Threads(size).run(lambda ranks: logits_and_states(folder, paged, ranks, [17, 1, 6]))
    for chunks, seen in found:
        joined = torch.cat(chunks, 1)
        assert whole[0].abs().max() > 1.0
        assert (joined - whole[0]).abs().max() < BOUND
        assert (seen - states).abs().max() < BOUND
        assert torch.equal(joined, torch.cat(found[0][0], 1)), "ranks see different bits"


@pytest.mark.parametrize(
    ("name", "size"), [("llama-mini", 2), ("llama-mini", 8), ("deepseek-mini", 2), ("qwen3next-mini", 2)]
)
def test_a_rows_bits_do_not_depend_on_the_others(paged, name, size):
    """With sums in the order of the ranks, on models of the zoo."""

    def both(ranks: Ranks) -> tuple[Tensor, Tensor]:
        whole, _ = logits_and_states(resolve_path(name), paged, ranks, [24])
        chunks, _ = logits_and_states(resolve_path(name), paged, ranks, [1, 2, 20, 1])
        return whole[0], torch.cat(chunks, 1)

    for whole, chunks in Threads(size).run(both):
        assert torch.equal(whole, chunks)


def test_a_draft_finds_the_whole_tables(target_folder):
    folder = target_folder("llama")
    whole = load_target(folder, "cpu", torch.float32)

    def tables(ranks: Ranks) -> tuple[Tensor, Tensor]:
        model = load_target(folder, "cpu", torch.float32, ranks=ranks)
        return model.embedding, model.head

    for embedding, head in Threads(2).run(tables):
        assert torch.equal(embedding, whole.embedding) and torch.equal(head, whole.head)


def test_a_rank_holds_its_share(target_folder):
    folder = target_folder("llama")
    whole = load_target(folder, "cpu", torch.float32)
    part = share(load_model_config(folder), 4)
    assert (part.num_heads, part.num_kv_heads, part.intermediate_size) == (1, 1, 22)
    sizes = Threads(4).run(lambda ranks: layer_size(load_target(folder, "cpu", torch.float32, ranks=ranks)))
    attention = (4 + 4 * 2) * 16 * 48 + 4 * 16 * 48  # every key head on two ranks
    assert layer_size(whole) == (4 + 2 * 2) * 16 * 48 + 4 * 16 * 48 + 3 * 88 * 48
    assert sum(sizes) == attention + 3 * 88 * 48


def layer_size(model) -> int:
    layer = model.layers[0]
    return sum(weight.numel() for weight in (layer.qkv, layer.out, layer.gate_up, layer.down))


def test_a_tensor_of_another_shape_is_refused_whole(target_folder):
    folder = target_folder("llama")
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"head_dim": 16', '"head_dim": 8'))
    with pytest.raises(ConfigError, match=r"q_proj.weight' has shape \(64, 48\), but config.json implies \(32, 48\)"):
        load_target(folder, "cpu", torch.float32, ranks=Ranks(1, 2))
