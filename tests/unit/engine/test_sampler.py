"""The sampler against plain definitions of what each parameter means."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.sampler import Sampler
from inference.engine.sampling.draw import drawn
from inference.engine.sampling.filters import Filters, filtered
from inference.engine.sequence import Sequence
from inference.errors import EngineError
from tests.unit.engine.model_bench import sequence

_VOCAB = 700  # more than the head of 256 that filters look at first, and no multiple of a block


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def some_logits(rows: int, *, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, _VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def asking(output: int = 0, *, seq_id: int = 0, **params: Any) -> Sequence:
    """A sequence of three prompt tokens and some output that wants its next token."""
    found = sequence([5, 6, 5], seq_id=seq_id, **params)
    found.output_ids = [7 + place % 3 for place in range(output)]
    return found


def many(logits: torch.Tensor, count: int, **params: Any) -> torch.Tensor:
    """How often each token comes in `count` independent draws from one row."""
    rows = [asking(seq_id=number, **{"temperature": 1.0} | params) for number in range(count)]
    tokens, _ = Sampler(_VOCAB, salt="fixed").sample(logits.repeat(count, 1), rows)
    return torch.bincount(torch.tensor(tokens), minlength=_VOCAB) / count


def kept(
    logits: torch.Tensor, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> set[int]:
    """The tokens that the filters leave, by their definitions, one after the other."""
    probabilities = logits.double().softmax(-1)
    order = probabilities.argsort(descending=True, stable=True).tolist()
    order = [t for t in order if probabilities[t] >= min_p * probabilities.max()]
    order = order[:top_k] if top_k else order
    mass, total, found = 0.0, sum(probabilities[t].item() for t in order), set()
    for token in order:
        if found and mass >= top_p * total:
            break
        found.add(token)
        mass += probabilities[token].item()
    return found


def test_greedy_takes_the_largest() -> None:
    logits = some_logits(4)
    for params in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}):
        tokens, reports = Sampler(_VOCAB).sample(logits.clone(), [asking(**params)] * 4)
        assert tokens == logits.argmax(-1).tolist()
        assert reports == [None] * 4


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_it_draws_in_proportion(temperature: float) -> None:
    logits = some_logits(1)[0]
    found = many(logits, 20_000, temperature=temperature)
    expected = (logits / temperature).softmax(-1)
    assert (found - expected).abs().sum() / 2 < 0.05
    assert (found - expected).abs().max() < 0.015


@given(
    seed=st.integers(0, 10_000),
    spread=st.sampled_from([0.0, 0.02, 1.0, 4.0]),
    top_k=st.sampled_from([0, 2, 40, 255, 256, 257, 600, 5_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.001, 0.1, 1.0]),
)
def test_the_filters_keep_what_their_definitions_say(
    seed: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = some_logits(1, seed=seed, spread=spread)[0]
    weights = (logits - logits.max()).exp()
    found = filtered(weights[None].clone(), [Filters(top_k, top_p, min_p)])[0]
    ours = set(found.nonzero()[:, 0].tolist())
    expected = kept(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    if spread == 0.0:  # all are equal: what is at the threshold stays
        assert ours == set(range(_VOCAB))
    else:
        edge = weights[list(expected)].min()
        assert expected <= ours
        assert all(weights[token] >= edge * (1 - 1e-5) for token in ours)


def test_each_row_has_its_own_filters() -> None:
    weights = (some_logits(1) - some_logits(1).max()).exp().repeat(4, 1)
    rules = [Filters(3, 1.0, 0.0), Filters(0, 1.0, 0.0), Filters(0, 0.5, 0.0), Filters(0, 1.0, 0.2)]
    whole = filtered(weights.clone(), rules)
    for row, rule in enumerate(rules):
        assert torch.equal(whole[row], filtered(weights[row : row + 1].clone(), [rule])[0])
    assert int((whole[0] > 0).sum()) == 3
    assert torch.equal(whole[1], weights[1])


@given(seed=st.integers(0, 10_000), number=st.floats(0, 1, exclude_max=True))
def test_a_draw_never_takes_what_has_no_weight(seed: int, number: float) -> None:
    random = torch.Generator().manual_seed(seed)
    weights = torch.rand(1, _VOCAB, generator=random)
    weights[torch.rand(1, _VOCAB, generator=random) < 0.99] = 0.0
    weights[0, seed % _VOCAB] = 1e-30
    for uniform in (number, 0.0, math.nextafter(1.0, 0.0)):
        token = drawn(weights, torch.tensor([uniform], dtype=torch.float64))
        assert weights[0, token] > 0


def test_a_draw_inverts_the_cumulative_sum() -> None:
    weights = some_logits(64).softmax(-1)
    numbers = torch.linspace(0.001, 0.999, 64, dtype=torch.float64)
    ends = weights.double().cumsum(-1)
    expected = (ends <= numbers[:, None] * ends[:, -1:]).sum(-1)
    assert torch.equal(drawn(weights, numbers), expected)


def test_a_seed_gives_the_same_alone_and_in_any_batch() -> None:
    logits = some_logits(9)
    rows = [
        asking(
            output=n,
            seq_id=n,
            temperature=1.0,
            seed=n % 4,
            top_p=1.0 - n / 20,
            presence_penalty=n / 9,
        )
        for n in range(9)
    ]
    together, _ = Sampler(_VOCAB).sample(logits.clone(), rows)
    for place, row in enumerate(rows):
        alone, _ = Sampler(_VOCAB).sample(logits[place : place + 1].clone(), [row])
        assert alone == [together[place]]


def test_without_a_seed_no_two_engines_draw_alike() -> None:
    logits = torch.zeros(64, _VOCAB)
    rows = [asking(seq_id=number, temperature=1.0) for number in range(64)]
    first, _ = Sampler(_VOCAB).sample(logits.clone(), rows)
    second, _ = Sampler(_VOCAB).sample(logits.clone(), rows)
    assert first != second
    assert len(set(first)) > 40


def test_places_of_one_sequence_draw_independently() -> None:
    rows = [asking(output=place, temperature=1.0, seed=3) for place in range(64)]
    tokens, _ = Sampler(_VOCAB).sample(torch.zeros(64, _VOCAB), rows)
    assert len(set(tokens)) > 40


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"presence_penalty": 2.0}, {7: -2.0, 8: -2.0, 5: 0.0}),
        ({"frequency_penalty": 0.5}, {7: -1.0, 8: -0.5, 5: 0.0}),
        ({"frequency_penalty": 0.5, "presence_penalty": 2.0}, {7: -3.0, 8: -2.5, 5: 0.0}),
        ({"logit_bias": {9: 5.0, 5: -100.0}}, {9: 5.0, 5: -100.0, 7: 0.0}),
    ],
)
def test_penalties_and_biases_shift_what_they_should(
    params: dict[str, Any], expected: dict[int, float]
) -> None:
    before = some_logits(1)
    after = edited(before, asking(output=4, **params))  # 7, 8, 9, 7
    for token, shift in expected.items():
        assert after[token] - before[0, token] == pytest.approx(shift, abs=1e-5)


def edited(logits: torch.Tensor, row: Sequence) -> torch.Tensor:
    copy = logits.clone()
    Sampler(_VOCAB).sample(copy, [row])
    return copy[0]


def test_a_repetition_penalty_counts_prompt_and_output() -> None:
    before = torch.ones(1, _VOCAB)
    before[0, 6] = -1.0
    after = edited(before, asking(output=1, repetition_penalty=2.0))
    assert [after[token].item() for token in (5, 6, 7, 8)] == [0.5, -2.0, 0.5, 1.0]


def test_counts_grow_with_the_sequence_and_are_forgotten() -> None:
    sampler, row = Sampler(_VOCAB), asking(seq_id=4, frequency_penalty=1.0)
    for length in range(200):
        row.output_ids = [token % 150 for token in range(length)]
        logits = torch.zeros(1, _VOCAB)
        sampler.sample(logits, [row])
        expected = torch.bincount(torch.tensor(row.output_ids, dtype=torch.int64), minlength=_VOCAB)
        assert torch.equal(logits[0], -expected.float())
    sampler.forget([4, 5])
    row.output_ids = []
    logits = torch.zeros(1, _VOCAB)
    sampler.sample(logits, [row])
    assert not logits.any()


def test_nothing_ends_a_sequence_before_min_tokens() -> None:
    logits = torch.zeros(1, _VOCAB)
    logits[0, 2], logits[0, 3], logits[0, 4] = 9.0, 8.0, 7.0
    found = []
    for length in range(3):
        row = asking(output=length, min_tokens=2, stop_token_ids=(3,))
        row.eos_ids = frozenset({2})
        found += Sampler(_VOCAB).sample(logits.clone(), [row])[0]
    assert found == [4, 4, 2]


def test_logprobs_are_the_model_s_own() -> None:
    logits = some_logits(3)
    expected = logits.log_softmax(-1)
    rows = [
        asking(logprobs=2, temperature=0.3, seed=1, presence_penalty=2.0, logit_bias={9: 50.0}),
        asking(),
        asking(logprobs=0),
    ]
    tokens, reports = Sampler(_VOCAB).sample(logits.clone(), rows)
    assert tokens[0] == 9
    assert reports[1] is None
    first, last = reports[0], reports[2]
    assert first is not None
    assert last is not None
    assert (first.token_id, last.token_id) == (9, tokens[2])
    assert first.logprob == pytest.approx(expected[0, 9].item(), abs=1e-4)
    assert first.top_ids == tuple(expected[0].topk(2).indices.tolist())
    assert first.top_logprobs == pytest.approx(expected[0].topk(2).values.tolist(), abs=1e-4)
    assert (last.top_ids, last.top_logprobs) == ((), ())


def test_a_tiny_temperature_is_as_good_as_none() -> None:
    logits = some_logits(1)
    for temperature in (1e-300, 1e-6, 1e-4):
        tokens, _ = Sampler(_VOCAB).sample(logits.clone(), [asking(temperature=temperature)])
        assert tokens == logits.argmax(-1).tolist()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_an_error(bad: float) -> None:
    logits = some_logits(2)
    logits[1, 3] = bad
    with pytest.raises(EngineError, match="no numbers"):
        Sampler(_VOCAB).sample(logits, [asking(), asking()])
