"""FT-Transformer: torch's own attention and layer norm with copied weights, and a rule that no line can draw."""

import torch
from torch.nn import functional

from gigabatch.models.inputs import ModelInputs
from gigabatch.models.tabular.ft_transformer import Block
from tests.models.shelf_helpers import INPUTS, Rows, auc, build, random_rows, stir, train

SMALL = {
    "token_dim": 8, "num_heads": 2, "num_blocks": 2, "attention_dropout": 0.0, "hidden_dropout": 0.0,
}  # fmt: skip


def torch_attention(block: Block, dim: int, num_heads: int) -> torch.nn.MultiheadAttention:
    """torch's attention with the block's weights."""
    peer, ours = torch.nn.MultiheadAttention(dim, num_heads, batch_first=True), block.attention
    peer.in_proj_weight.copy_(torch.cat([ours.queries.weight, ours.keys_values.weight]))
    peer.in_proj_bias.copy_(torch.cat([ours.queries.bias, ours.keys_values.bias]))
    peer.out_proj.load_state_dict(ours.output.state_dict())
    return peer


@torch.no_grad()
def test_outputs_are_those_of_the_equations_with_torchs_attention():
    """All tokens in every block, so that this also checks that only CLS need be computed in the last."""
    inputs = ModelInputs(INPUTS.num_ids, INPUTS.num_floats, 3)
    model = build("ft_transformer", inputs, **(SMALL | {"num_blocks": 3}))
    stir(model)
    rows = random_rows(inputs, 11)
    found = model.eval()(rows.ids, rows.floats)
    tokenizer = model.tokenizer
    tokens = []
    for row in range(11):
        of_row = [table[rows.ids[row, c]] + tokenizer.bias[c] for c, table in enumerate(tokenizer.tables.tables)]
        of_row += [rows.floats[row, f] * tokenizer.float_vectors[f] + tokenizer.bias[3 + f] for f in range(2)]
        tokens.append(torch.stack([*of_row, model.cls]))
    state = torch.stack(tokens)
    for number, block in enumerate(model.blocks):
        normed = state
        if number:
            norm = block.attention_norm
            mean, spread = state.mean(2, keepdim=True), state.var(2, unbiased=False, keepdim=True)
            normed = (state - mean) / (spread + norm.eps).sqrt() * norm.weight + norm.bias
        state = state + torch_attention(block, 8, 2)(normed, normed, normed)[0]
        normed = functional.layer_norm(state, (8,), block.hidden_norm.weight, block.hidden_norm.bias)
        linear, gate = (normed @ block.widen.weight.t() + block.widen.bias).split(10, dim=2)  # int(8 * 4 / 3) is 10
        state = state + (linear * gate.clamp(min=0)) @ block.narrow.weight.t() + block.narrow.bias
    cls = functional.layer_norm(state[:, -1], (8,), model.norm.weight, model.norm.bias)
    expected = cls.clamp(min=0) @ model.output.weight.t() + model.output.bias
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_first_block_has_no_norm_before_its_attention_and_weights_start_as_the_authors():
    model = build("ft_transformer", **SMALL)
    assert isinstance(model.blocks[0].attention_norm, torch.nn.Identity)
    assert isinstance(model.blocks[1].attention_norm, torch.nn.LayerNorm)
    for parameter in (*model.tokenizer.parameters(), model.cls):
        assert parameter.abs().max() <= 8**-0.5
    assert torch.cat([table.flatten() for table in model.tokenizer.tables.tables]).std() > 0.15  # uniform's is 0.204


def checkerboard(num_rows: int, seed: int) -> tuple[ModelInputs, Rows]:
    """Labels are 1 (nine times in ten) where two floats have the same sign, and 0 otherwise; a third says nothing."""
    inputs = ModelInputs((3,), 3)
    rows = random_rows(inputs, num_rows, seed)
    likely = torch.where(rows.floats[:, 0] * rows.floats[:, 1] > 0, 0.9, 0.1)
    draw = torch.Generator().manual_seed(seed + 5)
    return inputs, Rows(rows.ids, rows.floats, ((torch.rand(num_rows, generator=draw) < likely).float(),))


def test_a_rule_of_floats_is_learnt_that_no_line_can_draw():
    inputs, rows = checkerboard(8000, 0)
    _, held_out = checkerboard(4000, 1)
    model = build("ft_transformer", inputs, **(SMALL | {"token_dim": 16}))
    train(model, rows, steps=200, batch_size=256)
    assert auc(model, held_out) > 0.85  # the rule itself: 0.90
    line = build("lr", inputs)
    train(line, rows, steps=200, batch_size=256)
    assert auc(line, held_out) < 0.55
