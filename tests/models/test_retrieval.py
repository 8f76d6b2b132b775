"""Retrieval: the exact top k as NumPy sorts it, ties and exclusions among it, and what the approximate index finds.

Vectors of small whole numbers make every product exact, so that ties are ties and answers can be compared in full.
"""

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigabatch.models.errors import ModelError
from gigabatch.models.model import SCORE_ATOL, SCORE_RTOL
from gigabatch.models.retrieval import (
    EXACT_BYTES,
    LAST_ROW,
    NOTHING,
    QUERY_ROWS,
    ApproximateIndex,
    _decoded,
    _keys,
    choose_index,
    recall_at_k,
    top_k,
)
from tests.examples import examples


def sorted_by_numpy(queries, items, k, exclude=None):
    """scores and rows of the top k by a stable sort of all products; -inf and -1 where there are too few."""
    scores = np.full((len(queries), k), -np.inf)
    rows = np.full((len(queries), k), -1)
    products = np.asarray(queries, np.float64) @ np.asarray(items, np.float64).T
    for number, of_query in enumerate(products):
        order = np.argsort(-of_query, kind="stable")
        if exclude is not None:
            order = order[~np.isin(order, exclude[number])]
        order = order[:k]
        scores[number, : len(order)] = of_query[order]
        rows[number, : len(order)] = order
    return scores, rows


def require_same(found, expected):
    assert found.scores.dtype == torch.float32
    assert found.rows.dtype == torch.int64
    assert np.array_equal(found.rows.numpy(), expected[1])
    assert np.array_equal(found.scores.numpy(), expected[0].astype(np.float32))


def whole_numbers(seed, rows, dim, most=3):
    """float32 [rows, dim] of whole numbers of at most `most`, many of them equal."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-most, most + 1, (rows, dim)).astype(np.float32))


def skewed(seed, rows, dim):
    """float32 [rows, dim] with a few strong directions and lengths that differ, as learnt vectors have."""
    random = np.random.default_rng(seed)
    found = random.normal(size=(rows, dim)) @ np.diag(0.9 ** np.arange(dim)) * random.gamma(4, 0.25, (rows, 1))
    return torch.from_numpy(found.astype(np.float32))


@settings(max_examples=examples(150))
@given(
    st.integers(0, 700),
    st.integers(1, 6),
    st.integers(0, 5),
    st.integers(1, 800),
    st.integers(1, 900),
    st.integers(0, 40),
    st.integers(0, 2**31),
)
def test_top_k_is_numpys_for_any_sizes_blocks_ties_and_exclusions(num, dim, asked, k, block_rows, excluded, seed):
    items, queries = whole_numbers(seed, num, dim, most=1), whole_numbers(seed + 1, asked, dim)
    exclude = torch.from_numpy(np.random.default_rng(seed).integers(-3, num + 5, (asked, excluded)))
    found = top_k(queries, items, k, exclude, block_rows=block_rows)
    require_same(found, sorted_by_numpy(queries, items, k, exclude.numpy()))


def test_among_equal_items_the_lower_rows_come_first_whatever_the_block():
    items = torch.ones(5000, 4)
    items[[4321, 17]] = 2.0
    for block_rows in (128, 384, 5000):
        found = top_k(torch.ones(2, 4), items, 5, block_rows=block_rows)
        assert found.rows.tolist() == [[17, 4321, 0, 1, 2]] * 2
        assert found.scores.tolist() == [[8.0, 8.0, 4.0, 4.0, 4.0]] * 2


def test_zeros_of_either_sign_are_a_tie():
    items = torch.tensor([[-0.0], [0.0], [-0.0], [-1.0]])
    assert top_k(torch.ones(1, 1), items, 3).rows.tolist() == [[0, 1, 2]]


@settings(max_examples=examples(40))
@given(st.integers(1, 3000), st.integers(1, 160), st.integers(1, 200), st.integers(0, 2**31))
def test_scores_are_those_of_float64_whatever_the_block(num, dim, asked, seed):
    """Rows are compared by their products: items that differ by a rounding may change places."""
    generator = torch.Generator().manual_seed(seed)
    items, queries = (torch.randn(rows, dim, generator=generator) * dim**-0.25 for rows in (num, asked))
    products = queries.double() @ items.double().T
    wanted = products.topk(min(20, num)).values
    for block_rows in (None, 100, 640):
        found = top_k(queries, items, 20, block_rows=block_rows)
        scores, rows = found.scores[:, :num].double(), found.rows[:, :num]
        torch.testing.assert_close(scores, wanted, rtol=SCORE_RTOL, atol=SCORE_ATOL)
        torch.testing.assert_close(products.gather(1, rows), wanted, rtol=SCORE_RTOL, atol=SCORE_ATOL)
        assert all(len(set(of_query)) == len(of_query) for of_query in rows.tolist())
        assert (found.rows[:, num:] == -1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_items_are_compared_in_float32(dtype):
    """The products are those of the rounded vectors: no sum is rounded to half precision."""
    items, queries = skewed(0, 3000, 48).to(dtype), skewed(1, 7, 48)
    products = queries.double() @ items.double().T
    found = top_k(queries, items, 50)
    assert found.scores.double() == pytest.approx(products.topk(50).values, rel=1e-5, abs=1e-6)
    assert products.gather(1, found.rows) == pytest.approx(products.topk(50).values, rel=1e-5, abs=1e-6)
    rounded = (products.topk(50).values.to(dtype).double() - products.topk(50).values).abs().max()
    assert rounded > 1e-4


def test_more_queries_than_are_compared_at_once():
    items, queries = whole_numbers(0, 300, 3), whole_numbers(1, 2 * QUERY_ROWS + 3, 3)
    exclude = torch.arange(len(queries))[:, None] % 300
    require_same(top_k(queries, items, 4, exclude), sorted_by_numpy(queries, items, 4, exclude.numpy()))


@pytest.mark.parametrize("wrong", [float("nan"), -float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [0, 2999])
def test_products_that_cannot_be_ordered_are_refused(wrong, row):
    items = torch.ones(3000, 2)
    items[row, 1] = wrong
    with pytest.raises(ModelError, match="NaN or infinite"):
        top_k(torch.ones(1, 2), items, 3, block_rows=1024)


@pytest.mark.parametrize("exclude", [None, torch.tensor([[7]])])
def test_a_finite_vector_whose_product_overflows_is_not_dropped(exclude):
    """M10: its score is minus infinity, which among the answers means that there is no item."""
    items = torch.ones(20, 2)
    items[7] = -3e38
    with pytest.raises(ModelError, match="NaN or infinite"):
        top_k(torch.full((1, 2), 3.0), items, 20, exclude)


def test_keys_order_as_scores_do_and_give_them_back():
    values = torch.tensor([float("inf"), 3e38, 1.0, 1e-45, 0.0, -1e-45, -1.0, -3e38, float("-inf")])
    rows = torch.tensor([0, 1, LAST_ROW - 1, 5, 6, 2**31, 7, 8, 9])
    keys = _keys(values, rows)
    assert keys.tolist() == sorted(keys.tolist(), reverse=True)
    found = _decoded(keys)
    assert torch.equal(found.scores, values)
    assert found.rows.tolist() == [*rows[:-1].tolist(), -1]
    assert int(_keys(torch.tensor(float("-inf")), torch.tensor(LAST_ROW))) == NOTHING


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: top_k(torch.ones(2, 3), torch.ones(5, 4), 1), r"queries \[2, 3\] and items \[5, 4\]"),
        (lambda: top_k(torch.ones(3), torch.ones(5, 3), 1), r"queries \[3\]"),
        (lambda: top_k(torch.ones(1, 3), torch.ones(5, 3), 0), "k must be at least 1"),
        (lambda: top_k(torch.ones(1, 3), torch.ones(5, 3), 1, block_rows=0), "block_rows"),
        (lambda: top_k(torch.ones(2, 3), torch.ones(5, 3), 1, torch.zeros(1, 3, dtype=torch.int64)), "exclude"),
        (lambda: top_k(torch.ones(2, 3), torch.ones(5, 3), 1, torch.zeros(2, 3)), "exclude must be int64"),
        (lambda: ApproximateIndex.build(torch.ones(0, 3), torch.ones(2, 3)), "no items"),
        (lambda: ApproximateIndex.build(torch.ones(2, 3), torch.ones(0, 3)), "none were given"),
        (lambda: ApproximateIndex.build(torch.ones(2, 3), torch.ones(2, 3), recall=1.5), r"recall must be in \(0, 1\]"),
        (lambda: ApproximateIndex.build(torch.full((2, 3), torch.inf), torch.ones(2, 3)), "NaN or"),
        (lambda: ApproximateIndex.build(torch.ones(80, 3), torch.ones(2, 3), num_lists=3), "num_lists must be 1 to 2"),
        (lambda: choose_index(5, 0), "no catalogue"),
        (lambda: recall_at_k(torch.zeros(2, 1), torch.zeros(3, 1)), "2 answers but 3"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ModelError, match=message):
        call()


def test_an_index_pays_from_the_stated_size_on():
    on_cpu, on_gpu = (EXACT_BYTES[device] // (4 * 128) for device in ("cpu", "cuda"))
    assert (on_cpu, on_gpu) == (131_072, 8_388_608)
    assert choose_index(on_cpu, 128) == "exact"
    assert choose_index(on_cpu + 1, 128) == "approximate"
    assert choose_index(on_cpu + 1, 128, "cuda:0") == "exact"
    assert choose_index(on_gpu + 1, 128, "cuda:0") == "approximate"


def test_recall_counts_the_rows_found_of_those_there():
    exact = torch.tensor([[1, 2, 3], [4, -1, -1]])
    assert recall_at_k(torch.tensor([[3, 9, 1], [-1, -1, 7]]), exact) == 0.5
    assert recall_at_k(torch.full((2, 1), -1), torch.full((2, 3), -1)) == 1.0


@pytest.fixture(scope="module")
def catalogue():
    return skewed(2, 4000, 32), skewed(3, 200, 32)


@pytest.fixture(scope="module")
def index(catalogue):
    return ApproximateIndex.build(*catalogue, k=20, recall=0.97)


def share_found(rows, exact):
    """The mean share of the exact rows [Q, k] of each query that its own list of rows holds."""
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(rows, exact.tolist(), strict=True)])


def test_the_index_finds_what_its_report_says(catalogue, index):
    items, queries = catalogue
    _, exact = sorted_by_numpy(queries, items, 20)
    found = index.search(queries, 20)
    # float32 may order a near tie the other way
    assert share_found(found.rows.tolist(), exact) == pytest.approx(index.report.recall, abs=2e-3)
    assert index.report.recall >= 0.97
    products = (queries.double() @ items.double().T).gather(1, found.rows)
    assert found.scores.double() == pytest.approx(products, rel=1e-4, abs=1e-5)
    assert (found.scores.diff() <= 0).all()


def test_without_the_library_an_index_says_what_to_install(catalogue, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ModelError, match=r"faiss is not installed\. Run pip install 'gigabatch\[serve\]'"):
        ApproximateIndex.build(*catalogue)


def test_a_saved_index_answers_as_before_and_the_same_again(catalogue, index, tmp_path):
    items, queries = catalogue
    index.save(tmp_path)
    loaded = ApproximateIndex.load(tmp_path, items)
    assert loaded.report == index.report
    found, again = index.search(queries, 7), loaded.search(queries, 7)
    assert torch.equal(found.rows, again.rows)
    assert torch.equal(found.scores, again.scores)
    rebuilt = ApproximateIndex.build(items, queries, k=20, recall=0.97)
    assert torch.equal(rebuilt.search(queries, 7).rows, found.rows)


def test_the_index_leaves_out_what_is_excluded_and_still_finds_k(catalogue, index):
    items, queries = catalogue
    best = torch.from_numpy(sorted_by_numpy(queries, items, 30)[1])
    exclude = torch.nn.functional.pad(best, (0, 3), value=-1)
    found = index.search(queries, 20, exclude)
    assert (found.rows >= 0).all()
    assert not (found.rows[:, :, None] == best[:, None, :]).any()
    expected = torch.from_numpy(sorted_by_numpy(queries, items, 20, best.numpy())[1])
    assert recall_at_k(found.rows, expected) > 0.9


def test_rows_that_are_removed_are_not_found_and_not_looked_for(catalogue):
    """As exclusions, 30,000 of 150,000 rows took 20 ms at each request."""
    items, queries = catalogue
    made = ApproximateIndex.build(items, queries, k=20, recall=0.97)
    gone = torch.from_numpy(np.unique(sorted_by_numpy(queries, items, 3)[1]))
    for _ in range(2):  # the second time there is nothing to remove
        made.remove(gone)
    found = made.search(queries, 20)
    assert (found.rows >= 0).all()
    assert not torch.isin(found.rows, gone).any()
    banned = gone.expand(len(queries), -1).numpy()
    expected = torch.from_numpy(sorted_by_numpy(queries, items, 20, banned)[1])
    assert recall_at_k(found.rows, expected) > 0.9


def test_a_small_catalogue_and_more_asked_than_it_has():
    items = whole_numbers(0, 3, 2, most=50)
    made = ApproximateIndex.build(items, torch.ones(1, 2), k=5, recall=1.0)
    require_same(made.search(torch.ones(2, 2), 5), sorted_by_numpy(np.ones((2, 2)), items, 5))
    found = made.search(torch.ones(1, 2), 2, torch.tensor([[0, 2]]))
    assert found.rows.tolist() == [[1, -1]]
    assert made.search(torch.ones(0, 2), 2).rows.shape == (0, 2)


def test_a_recall_out_of_reach_is_an_error():
    """Items that differ by less than float16 can tell."""
    random = torch.Generator().manual_seed(0)
    items = 1 + 1e-6 * torch.randn(4000, 8, generator=random)
    with pytest.raises(ModelError, match=r"with all lists it finds 0\.\d+ of the exact top 5, 0\.9 was asked"):
        ApproximateIndex.build(items, torch.randn(50, 8, generator=random), k=5, recall=0.9)


def test_more_is_found_than_the_lists_that_the_recall_took(catalogue):
    items, queries = catalogue
    index = ApproximateIndex.build(items, queries, k=1, recall=0.3)
    assert index.report.num_probes < index.report.num_lists
    found = index.search(queries[:5], 4000)
    assert sorted(found.rows[0].tolist()) == list(range(4000))


def test_a_damaged_or_foreign_index_is_refused(catalogue, index, tmp_path):
    items, _ = catalogue
    index.save(tmp_path)
    with pytest.raises(ModelError, match=r"of \(4000, 32\) items, not \(3999, 32\)"):
        ApproximateIndex.load(tmp_path, items[1:])
    report = (tmp_path / "index.json").read_text()
    for text in ("[]", report[:40], json.dumps(json.loads(report) | {"extra": 1})):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(ModelError, match="missing or damaged"):
            ApproximateIndex.load(tmp_path, items)
    (tmp_path / "index.json").write_text(report)
    file = tmp_path / "index.faiss"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"index\.faiss is not what its report says\. Run gigabatch embed again"):
        ApproximateIndex.load(tmp_path, items)
    file.unlink()
    with pytest.raises(ModelError, match="missing or damaged"):
        ApproximateIndex.load(tmp_path, items)


def test_a_query_alone_gets_the_answer_it_gets_among_others(catalogue, index):
    queries = catalogue[1]
    together = index.search(queries, 9)
    for row in (0, 7, 199):
        assert torch.equal(index.search(queries[row : row + 1], 9).rows[0], together.rows[row])


def test_any_device_finds_what_the_cpu_finds_with_items_there_or_on_the_host(any_device):
    items, queries = whole_numbers(0, 70_000, 16), whole_numbers(1, 300, 16)
    exclude = torch.arange(600).view(300, 2)
    expected = top_k(queries, items, 100, exclude)
    for place in (any_device, "cpu"):
        found = top_k(queries.to(any_device), items.to(place).half(), 100, exclude.to(any_device))
        assert found.rows.device.type == any_device
        assert torch.equal(found.rows.cpu(), expected.rows)
        assert torch.equal(found.scores.cpu(), expected.scores)


@pytest.fixture(scope="module")
def tight():
    """Items and queries in tight clusters: the nearest list holds a few dozen of the 100 best for most queries."""
    random = torch.Generator().manual_seed(1)
    centres = torch.randn(60, 16, generator=random)

    def around(count):
        chosen = torch.randint(0, 60, (count,), generator=random)
        return centres[chosen] + 0.25 * torch.randn(count, 16, generator=random)

    return around(9000), around(120)


@pytest.fixture(scope="module")
def tight_index(tight):
    return ApproximateIndex.build(*tight)


@pytest.mark.parametrize("k", [10, 40, 100])
@pytest.mark.parametrize("num_excluded", [0, 30])
def test_one_request_finds_the_recall_that_the_report_says(tight, tight_index, k, num_excluded):
    items, queries = tight
    exclude = np.random.default_rng(k).integers(0, len(items), (len(queries), num_excluded))
    exact = sorted_by_numpy(queries, items, k, exclude)[1]
    left_out = torch.from_numpy(exclude)
    alone = [
        tight_index.search(queries[row : row + 1], k, left_out[row : row + 1]).rows[0].tolist()
        for row in range(len(queries))
    ]
    assert share_found(alone, exact) >= tight_index.report.recall - 2e-3 >= 0.95 - 2e-3


@pytest.mark.parametrize("k", [10, 100, 150])
def test_the_answer_does_not_depend_on_who_else_asks(tight, k):
    items, queries = tight
    index = ApproximateIndex.build(items, queries, k=10, recall=0.5)  # few lists, of which some are short of 100 rows
    exclude = torch.randint(0, len(items), (len(queries), 40), generator=torch.Generator().manual_seed(0))
    exclude[::3, 5:] = -1
    together = index.search(queries, k, exclude)
    assert (together.rows >= 0).all()
    for row in range(len(queries)):
        own = exclude[row : row + 1]
        alone = index.search(queries[row : row + 1], k, own[own >= 0][None])
        assert torch.equal(alone.rows[0], together.rows[row])
