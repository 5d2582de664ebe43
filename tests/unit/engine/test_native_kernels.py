"""The native kernels one by one, beside torch's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from inference.engine.kv_cache import LayerCache, PageMap
from inference.engine.layers.attention import SdpaAttention
from inference.engine.layers.int8_linear import Int8Linear, int8_linear_maker, int8_works
from inference.engine.layers.native_attention import NativeAttention
from inference.engine.layers.native_linear import NativeLinear
from inference.engine.layers.step import DecodeRows, PrefillRows
from inference.engine.native.arena import Arena
from inference.engine.native.library import Library
from inference.engine.native.packing import can_pack, packed
from inference.engine.native.structures import Kind

CPU = torch.device("cpu")
F32, BF16 = torch.float32, torch.bfloat16
KINDS = {Kind.FLOAT32: 1e-6, Kind.BFLOAT16: 5e-3, Kind.GROUPED8: 1.5e-2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mask_of(
    queries: torch.Tensor, tokens: int, span: int | None, dtype: torch.dtype
) -> torch.Tensor:
    columns = torch.arange(tokens)[None, :]
    hidden = columns > queries[:, None]
    if span is not None:
        hidden |= columns <= queries[:, None] - span
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


class Pages:
    """A cache of random pages; the rows handed out lie scattered over it."""

    def __init__(self, dtype: torch.dtype, *, kv_heads: int, size: int, block: int) -> None:
        self.map = PageMap(200, block, kv_heads, CPU)
        self.cache = LayerCache(self.map, head_dim=size, dtype=dtype)
        self.cache.keys[:-1] = drawn(200, kv_heads, block, size, seed=1)
        self.cache.values[:-1] = drawn(200, kv_heads, block, size, seed=2)
        self._order = torch.randperm(200, generator=torch.Generator().manual_seed(3))

    def decodes(self, lengths: list[int], span: int | None) -> DecodeRows:
        width = max(map(self.map.blocks_for, lengths))
        tables = torch.full((len(lengths), width), self.map.empty_block)
        used = 0
        for row, length in enumerate(lengths):
            count = self.map.blocks_for(length)
            tables[row, :count] = self._order[used : used + count]
            used += count
        ends = torch.tensor(lengths)
        mask = mask_of(ends - 1, width * self.map.block_size, span, self.cache.keys.dtype)
        masks = {span: mask[:, None, None, :]}
        return DecodeRows(len(lengths), tables, ends, self.map.pages(tables), masks)

    def chunk(self, start: int, count: int, span: int | None) -> PrefillRows:
        blocks = self._order[None, : self.map.blocks_for(start + count)]
        queries = torch.arange(start, start + count)
        mask = mask_of(queries, start + count, span, self.cache.keys.dtype)
        return PrefillRows(0, count, start, self.map.pages(blocks), {span: mask})


def agree(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == expected.dtype == dtype
    assert found.shape == expected.shape
    worst = (found - expected).float().abs().max() / expected.float().abs().max()
    assert worst <= (1e-5 if dtype == F32 else 2e-2)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (14, 2), (6, 1)])
@pytest.mark.parametrize(("size", "block", "span"), [(64, 32, None), (80, 16, None), (16, 8, 20)])
def test_it_attends_to_each_sequence_s_own_past(
    library: Library,
    dtype: torch.dtype,
    heads: tuple[int, int],
    size: int,
    block: int,
    span: int | None,
) -> None:
    pages = Pages(dtype, kv_heads=heads[1], size=size, block=block)
    rows = pages.decodes([1, block, 37, 255, 256, 257, 530], span)
    q = drawn(7, heads[0], size).to(dtype)
    found = NativeAttention(library).decode(q, pages.cache, rows, span)
    agree(found, SdpaAttention().decode(q, pages.cache, rows, span), dtype)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("heads", [(9, 3), (4, 4), (14, 2)])
@pytest.mark.parametrize("place", [(0, 2), (0, 64), (0, 133), (63, 65), (200, 70), (5, 3)])
@pytest.mark.parametrize(("size", "span"), [(64, None), (80, 50), (32, 7)])
def test_it_attends_to_a_chunk_and_what_came_before(
    library: Library,
    dtype: torch.dtype,
    heads: tuple[int, int],
    place: tuple[int, int],
    size: int,
    span: int | None,
) -> None:
    pages = Pages(dtype, kv_heads=heads[1], size=size, block=32)
    rows = pages.chunk(*place, span)
    q = drawn(place[1], heads[0], size).to(dtype)
    found = NativeAttention(library).prefill(q, pages.cache, rows, span)
    agree(found, SdpaAttention().prefill(q, pages.cache, rows, span), dtype)


def test_it_attends_alike_alone_in_company_and_by_several_threads(library: Library) -> None:
    pages, kernel = Pages(BF16, kv_heads=3, size=64, block=32), NativeAttention(library)
    q = drawn(4, 9, 64)
    together = kernel.decode(q, pages.cache, pages.decodes([600, 31, 257, 1], None), None)
    alone = kernel.decode(q[:1], pages.cache, pages.decodes([600], None), None)
    torch.set_num_threads(3)
    threads = kernel.decode(q, pages.cache, pages.decodes([600, 31, 257, 1], None), None)
    assert torch.equal(together[:1], alone)
    assert torch.equal(together, threads)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_it_weighs_scores_that_differ_hugely(library: Library, dtype: torch.dtype) -> None:
    pages = Pages(dtype, kv_heads=1, size=64, block=32)
    kernel, reference = NativeAttention(library), SdpaAttention()
    q = (drawn(3, 2, 64) * 60).to(dtype)
    rows, chunk = pages.decodes([600, 300, 64], None), pages.chunk(100, 3, None)
    agree(
        kernel.decode(q, pages.cache, rows, None),
        reference.decode(q, pages.cache, rows, None),
        dtype,
    )
    agree(
        kernel.prefill(q, pages.cache, chunk, None),
        reference.prefill(q, pages.cache, chunk, None),
        dtype,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5, 32), (31, 64), (33, 96), (100, 576), (64, 1536)])
@pytest.mark.parametrize("biased", [False, True])
def test_it_multiplies_as_torch_does(
    library: Library, kind: Kind, shape: tuple[int, int], biased: bool
) -> None:
    weight, bias = drawn(*shape, seed=1), drawn(shape[0], seed=2) if biased else None
    linear = NativeLinear(weight, bias, library=library, kind=kind)
    for rows in (1, 2, 6, 7, 11, 13, 40):
        x = drawn(rows, shape[1], seed=rows)
        found, expected = linear(x), functional.linear(x, weight, bias)
        assert found.shape == expected.shape
        assert (found - expected).norm() <= KINDS[kind] * expected.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_it_gives_a_row_the_same_product_in_any_batch(library: Library, kind: Kind) -> None:
    linear = NativeLinear(drawn(96, 128), None, library=library, kind=kind)
    x = drawn(14, 128, seed=4)
    alone = torch.cat([linear(row[None]) for row in x])
    torch.set_num_threads(2)
    for rows in range(1, 15):
        assert torch.equal(linear(x[:rows]), alone[:rows])


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_and_gives_bfloat16_as_well(library: Library, kind: Kind) -> None:
    weight, x = drawn(64, 64), drawn(3, 64).bfloat16()
    found = NativeLinear(weight, None, library=library, kind=kind)(x)
    assert found.dtype == BF16
    assert (found.float() - x.float() @ weight.T).norm() <= 2e-2 * found.float().norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_it_does_not_hide_what_is_no_number(library: Library, kind: Kind, wrong: float) -> None:
    x = drawn(2, 64)
    x[1, 37] = wrong
    found = NativeLinear(drawn(40, 64) + 5.0, None, library=library, kind=kind)(x)
    assert torch.isfinite(found[0]).all()
    assert not torch.isfinite(found[1]).any()


@pytest.mark.parametrize("kind", KINDS)
def test_it_multiplies_zeros_and_tiny_numbers(library: Library, kind: Kind) -> None:
    weight, x = drawn(32, 64), drawn(2, 64)
    for w, each in ((weight * 0, x), (weight, x * 0), (weight * 1e-9, x), (weight, x * 1e-30)):
        found = NativeLinear(w, None, library=library, kind=kind)(each)
        assert torch.isfinite(found).all()
        assert (found - each @ w.T).abs().max() <= 1e-4 * (each @ w.T).abs().max() + 1e-5


def lattice(levels: int, minimum: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Weights [64, 96] on a grid of that many levels in each group of 32, both ends in use."""
    random = torch.Generator().manual_seed(9)
    steps = torch.randint(0, levels, (64, 3, 32), generator=random)
    steps[..., 3], steps[..., 17] = 0, levels - 1
    return (steps * scale.half().float() + minimum.half().float()).view(64, 96)


def test_it_keeps_the_weights_of_a_4_bit_file_as_they_are(library: Library) -> None:
    scale = drawn(64, 3, 1).abs() * 0.01 + 0.001
    between_ends = lattice(16, drawn(64, 3, 1) * 0.1, scale)
    half = scale.half().float()
    around_zero = lattice(16, -8 * half, half)
    for weight in (between_ends, around_zero, -around_zero):
        linear = NativeLinear(weight, None, library=library, kind=Kind.GROUPED8)
        assert linear.kind is Kind.GROUPED4
        x = drawn(9, 96)
        assert (linear(x) - x @ weight.T).norm() <= 1e-2 * (x @ weight.T).norm()
    assert linear.num_bytes == 64 * 96 * 5 // 8


def test_it_takes_eight_bits_where_four_would_lose(library: Library) -> None:
    weight = drawn(64, 96)
    linear = NativeLinear(weight, None, library=library, kind=Kind.GROUPED8)
    assert linear.kind is Kind.GROUPED8
    assert linear.num_bytes == 64 * 96 * 34 // 32
    almost = lattice(16, drawn(64, 3, 1) * 0.1, drawn(64, 3, 1).abs() * 0.01 + 0.001)
    almost[50, 40] += 0.002
    assert NativeLinear(almost, None, library=library, kind=Kind.GROUPED8).kind is Kind.GROUPED8


def test_it_multiplies_integers_exactly(library: Library) -> None:
    """Whole numbers up to 127 in weights and rows: nothing is rounded, so nothing differs."""
    random = torch.Generator().manual_seed(1)
    weight = torch.randint(-127, 128, (64, 64), generator=random).float()
    x = torch.randint(-127, 128, (5, 64), generator=random).float()
    for whole in (weight, x):
        whole[:, ::32] = 127.0
    linear = NativeLinear(weight, None, library=library, kind=Kind.GROUPED8)
    assert torch.equal(linear(x), x @ weight.T)


def test_it_refuses_rows_that_fill_no_group() -> None:
    assert not can_pack(Kind.GROUPED8, inputs=48)
    with pytest.raises(ValueError, match="48 inputs"):
        packed(drawn(4, 48), Kind.GROUPED8, Arena())


def test_it_lays_tensors_side_by_side_in_the_arena() -> None:
    arena = Arena()
    tensors = [drawn(7), drawn(3, 5).bfloat16(), torch.arange(130, dtype=torch.uint8), drawn(0)]
    kept = [arena.kept(tensor) for tensor in tensors]
    for copy, tensor in zip(kept, tensors, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
    assert all(copy.data_ptr() % 64 == 0 for copy in kept[:3])
    assert 0 < kept[1].data_ptr() - kept[0].data_ptr() <= 64


@pytest.mark.skipif(not int8_works(), reason="this build of torch has no dynamic int8 products")
def test_it_multiplies_integers_by_torch_where_there_are_no_native_kernels() -> None:
    weight, bias, x = drawn(96, 64), drawn(96, seed=1), drawn(5, 64, seed=2)
    x[2] *= 50
    linear = Int8Linear(weight, bias)
    found, expected = linear(x), functional.linear(x, weight, bias)
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.max() <= 2e-2
    for row in range(5):
        assert torch.equal(linear(x[row : row + 1])[0], found[row])


@pytest.mark.skipif(not int8_works(), reason="this build of torch has no dynamic int8 products")
def test_it_leaves_the_delicate_products_alone() -> None:
    make = int8_linear_maker()
    assert make is not None
    kinds = [
        isinstance(make(drawn(*shape), None), Int8Linear)
        for shape in ((64, 64), (32, 64), (1024, 64))
    ]
    assert kinds == [True, False, False]
