import torch

from specmatrix.engine.device.sampling import SamplingRows, drawn_drafts
from specmatrix.kernels.reject_drafts import reject_drafts


def test_a_gain_on_one_draft_does_not_pay_for_a_loss_on_the_next():
    p = torch.tensor([[[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]]])
    q = torch.tensor([[[0.45, 0.55], [0.5, 0.5]]])  # h is min(2, 1) = 1, then 0.6; it would be 1.2
    coins, last = torch.tensor([[0.5, 0.7]]).double(), torch.tensor([[0.1, 0.1, 0.1]]).double()
    assert reject_drafts(p, q, torch.tensor([[0, 0]]), coins, last, True)[1].tolist() == [2]


def test_drafts_are_drawn_from_what_temperature_and_top_k_leave():
    logits = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    one = torch.ones(1)
    rows = SamplingRows(**{
        **dict.fromkeys(SamplingRows._fields),
        "temperature": one * 0.5, "top_k": one.long() * 4, "top_p": one, "seed": one.long(),
    })  # fmt: skip
    _, q = drawn_drafts(logits, torch.tensor([3]), torch.tensor([1]), rows)
    best = logits[0, 0].topk(4)
    assert torch.allclose(q[0, 0, best.indices], (best.values / 0.5).softmax(0), atol=1e-6)
    assert abs(float(q.sum()) - 1) < 1e-6
