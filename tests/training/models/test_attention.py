"""Self-attention equals torch's own layer, looks only where it may, and drops nothing in
eval mode.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from schemas.errors import ConfigError
from training.models.attention import SelfAttention

B, T, W, H = 3, 6, 8, 2


def tokens() -> Tensor:
    return torch.randn(B, T, W, generator=torch.Generator().manual_seed(0))


def torchs(ours: SelfAttention) -> nn.MultiheadAttention:
    theirs = nn.MultiheadAttention(W, H, batch_first=True)
    state = {
        "in_proj_weight": ours.project.weight,
        "in_proj_bias": ours.project.bias,
        "out_proj.weight": ours.merge.weight,
        "out_proj.bias": ours.merge.bias,
    }
    theirs.load_state_dict(state)
    return theirs


def documents() -> Tensor:
    """Two documents in each of the rows, cut at another place: [B, 1, T, T]."""
    ids = torch.stack([torch.arange(T) >= cut for cut in (2, 3, 5)])
    return (ids.unsqueeze(1) == ids.unsqueeze(2)).unsqueeze(1)


@pytest.mark.req("M1")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_to_torchs_multi_head_attention(causal: bool, masked: bool) -> None:
    ours, x, mask = SelfAttention(W, H), tokens(), documents() if masked else None
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool) if mask is None else mask
    allowed = allowed & torch.ones(T, T, dtype=torch.bool).tril() if causal else allowed
    forbidden = ~allowed.expand(B, H, T, T).flatten(0, 1)
    expected, _ = torchs(ours)(x, x, x, attn_mask=forbidden, need_weights=False)
    torch.testing.assert_close(ours(x, mask, causal), expected)


@pytest.mark.req("M1")
def test_the_first_token_alone_and_its_gradient_are_what_they_are_among_all() -> None:
    layer, x = SelfAttention(W, H).double(), tokens().double().requires_grad_()
    expected, found = layer(x)[:, :1], layer.first(x)
    torch.testing.assert_close(found, expected)
    of = [x, *layer.parameters()]
    for ours, theirs in zip(
        *(torch.autograd.grad(y.square().sum(), of) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.req("M1")
def test_a_later_token_another_document_or_another_row_changes_nothing() -> None:
    layer, x = SelfAttention(W, H).eval(), tokens()
    before = layer(x, documents(), causal=True)
    changed = x.clone()
    changed[0, 3:] += 1.0  # the end of the second document of row 0
    after = layer(changed, documents(), causal=True)
    assert torch.equal(after[0, :3], before[0, :3])
    assert torch.equal(after[1:], before[1:])
    assert not torch.equal(after[0, 3:], before[0, 3:])
    changed = x.clone()
    changed[1, :3] += 1.0  # the first document of row 1
    assert torch.equal(layer(changed, documents(), causal=True)[1, 3:], before[1, 3:])


@pytest.mark.req("M1")
def test_dropout_acts_in_training_alone_and_can_be_turned_off_as_a_module() -> None:
    layer, plain, x = SelfAttention(W, H, dropout=0.5), SelfAttention(W, H), tokens()
    plain.load_state_dict(layer.state_dict())
    assert torch.equal(layer.eval()(x), plain(x))
    assert not torch.equal(layer.train()(x), plain(x))
    layer.dropout.p = 0.0
    assert torch.equal(layer(x), plain(x))


@pytest.mark.req("M1")
def test_a_width_that_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="width 10 with 4 heads"):
        SelfAttention(10, 4)
