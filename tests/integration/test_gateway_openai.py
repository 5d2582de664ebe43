"""The official client against a real web process and a real worker (with a double for a model)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.gateway_server import MODEL, WebServer, serving

pytestmark = pytest.mark.processes
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", params=["1", "0"], ids=["eager", "usual"])
def server(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[WebServer]:
    home: Path = tmp_path_factory.mktemp("web") / "home"
    with serving(home, HALTLINE_EAGER_SEND=request.param) as running:
        yield running


@pytest.fixture
def client(server: WebServer) -> openai.OpenAI:
    return server.openai()


def test_it_answers_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=7)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert len(choice.message.content or "") == 7
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7


def test_it_streams_the_same_chat(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=HELLO,
            max_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_it_streams_several_choices(client: openai.OpenAI) -> None:
    ends: dict[int, str | None] = {}
    texts = {0: "", 1: "", 2: ""}
    stream = client.completions.create(
        model=MODEL, prompt="once", n=3, max_tokens=9, stream=True, seed=1
    )
    for chunk in stream:
        for choice in chunk.choices:
            assert choice.index not in ends
            texts[choice.index] += choice.text
            if choice.finish_reason:
                ends[choice.index] = choice.finish_reason
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert {len(text) for text in texts.values()} == {9}


def test_it_completes_several_prompts(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["a", "bc"], max_tokens=4, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text.startswith("a")
    assert answer.choices[1].text.startswith("bc")
    assert [len(choice.text) for choice in answer.choices] == [5, 6]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_it_takes_token_ids_and_gives_them_back(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt=[[104, 105], [106]],
        max_tokens=3,
        extra_body={"return_token_ids": True},
    )
    for choice in answer.choices:
        assert choice.model_extra is not None
        ids = choice.model_extra["token_ids"]
        assert bytes(ids).decode() == choice.text


def test_it_gives_logprobs_of_both_shapes(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=2
    )
    entries = chat.choices[0].logprobs
    assert entries is not None
    assert entries.content is not None
    assert [len(entry.top_logprobs) for entry in entries.content] == [2] * 5
    text = client.completions.create(model=MODEL, prompt="xy", max_tokens=5, logprobs=2, echo=True)
    found = text.choices[0].logprobs
    assert found is not None
    assert found.tokens is not None
    assert found.text_offset is not None
    assert found.token_logprobs is not None
    assert len(found.tokens) == len(found.text_offset) == len(found.token_logprobs)
    assert found.token_logprobs[0] is None
    assert len(found.tokens) == (answer_prompt := text.usage.prompt_tokens if text.usage else 0) + 5
    assert answer_prompt > 0


def test_it_puts_the_token_itself_among_the_likeliest(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="xy", max_tokens=5, logprobs=1, echo=True, temperature=1, seed=3
    )
    found = answer.choices[0].logprobs
    assert found is not None
    entries = list(zip(found.tokens or [], found.top_logprobs or [], strict=True))[1:]
    assert len(entries) > 5
    assert all(token in top and len(top) <= 2 for token, top in entries)


@pytest.mark.parametrize("stream", [False, True])
def test_it_scores_a_prompt_and_samples_nothing(client: openai.OpenAI, stream: bool) -> None:
    fields: Any = {"model": MODEL, "prompt": "xyz", "max_tokens": 0, "logprobs": 1, "echo": True}
    if stream:
        chunks = list(client.completions.create(**fields, stream=True))
        choice = chunks[-1].choices[0]
        assert len(chunks) == 1
    else:
        answer = client.completions.create(**fields)
        choice = answer.choices[0]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 0
    assert (choice.text, choice.finish_reason) == ("xyz", "length")
    assert choice.logprobs is not None
    told = choice.logprobs.token_logprobs
    assert told is not None
    assert told[0] is None
    assert all(isinstance(one, float) for one in told[1:])
    assert "".join(choice.logprobs.tokens or []) == "xyz"


def test_it_lists_its_model(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "haltline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_it_names_the_field_that_is_wrong(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=HELLO, extra_body={"n": "3"})
    assert (caught.value.param, caught.value.type) == ("n", "invalid_request_error")


def test_it_refuses_before_the_first_byte_of_a_stream(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="a" * 30_000, stream=True)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as chat:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a" * 30_000}]
        )
    assert (chat.value.code, chat.value.param) == ("context_length_exceeded", "messages")
    with pytest.raises(openai.NotFoundError) as absent:
        client.completions.create(model="another", prompt="a", stream=True)
    assert absent.value.code == "model_not_found"


def test_it_wants_a_key(server: WebServer) -> None:
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="no.key", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model=MODEL, prompt="a")


def test_it_names_the_request_in_the_headers(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model=MODEL, prompt="a", max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    internal = raw.headers["X-Haltline-Request-Id"]
    assert raw.headers["X-Request-Id"] == "mine-1"
    assert raw.parse().id == internal.replace("req_", "cmpl-")
    other = client.completions.with_raw_response.create(model=MODEL, prompt="a", max_tokens=1)
    assert other.headers["X-Request-Id"] == other.headers["X-Haltline-Request-Id"]
