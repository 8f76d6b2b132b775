"""Places and values of few elements there and back, against their number of bytes counted by hand."""

import pytest
import torch

from gigabatch.models.errors import ModelError
from gigabatch.models.parallel.sparse_wire import BITS, GAPS8, GAPS16, pack, places_of, rounded, unpack


@pytest.mark.parametrize(
    ("places", "length", "kind", "num_bytes"),
    [
        ([], 10, GAPS8, 0),
        ([0], 1, BITS, 1),
        ([254], 10_000, GAPS8, 1),  # 254 are left out
        ([255], 10_000, GAPS8, 2),  # a stop, then a gap of 0
        ([255 * 3 + 7], 100_000, GAPS16, 2),
        ([65534], 10**6, GAPS16, 2),
        ([65535, 65536], 10**6, GAPS16, 6),
        ([40_000, 90_000], 10**6, GAPS16, 4),  # gaps above what int16 holds
        (list(range(0, 800, 2)), 800, BITS, 100),
        (list(range(0, 80_000, 100)), 80_000, GAPS8, 800),
        (list(range(0, 800_000, 1000)), 800_000, GAPS16, 1600),
        ([999_999], 10**6, GAPS16, 32),
    ],
)
def test_places_there_and_back_in_the_fewest_bytes(places, length, kind, num_bytes):
    message = pack(torch.tensor(places, dtype=torch.int64), torch.arange(float(len(places))), length, torch.float32)
    assert message.header == (kind, num_bytes, len(places))
    assert len(message.body) == num_bytes + 4 * len(places)
    found, values = unpack(message.header, message.body, torch.float32)
    assert found.tolist() == places
    assert values.tolist() == list(range(len(places)))


def test_drawn_places_there_and_back():
    draw = torch.Generator().manual_seed(0)
    for share in (0.5, 0.1, 0.02, 0.001, 0.00003):
        chosen = (torch.rand(200_003, generator=draw) < share).nonzero().flatten()
        values = rounded(torch.randn(len(chosen), generator=draw), torch.bfloat16)
        message = pack(chosen, values, 200_003, torch.bfloat16)
        found, arrived = unpack(message.header, message.body, torch.bfloat16)
        assert torch.equal(found, chosen)
        assert torch.equal(arrived, values)


def test_values_as_they_arrive():
    values = torch.tensor([1e-9, 1.0, -7e4, 1e38, float("inf"), float("nan")])
    assert rounded(values, torch.float16)[1:4].tolist() == [1.0, -65504.0, 65504.0]
    assert rounded(values, torch.float16)[4] == float("inf")
    assert rounded(values, torch.bfloat16).isnan().tolist() == [False] * 5 + [True]
    assert rounded(values, torch.float32) is values
    assert rounded(torch.tensor([3.4e38]), torch.bfloat16).isfinite().all()  # which rounding to nearest makes infinite


def test_an_unknown_kind_of_places_is_refused():
    with pytest.raises(ModelError, match="kind of places '9'"):
        places_of(9, torch.zeros(1, dtype=torch.uint8))
