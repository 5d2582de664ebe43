from __future__ import annotations

from typing import Any

import pytest

from inference.events import ChoiceEnd
from inference.generation import FinishReason, TokenLogprob, TokenLogprobs
from inference.lifecycle import Trigger
from ledger.models import InferenceRequest
from ledger.services import abort_open, events_record
from tests.cast import Member
from tests.unit.ledger.desk import Submit
from tests.unit.ledger.engine import Run

SECRET = [{"role": "user", "content": "nobody's business"}]


@pytest.fixture
def kept_for(settings: Any) -> Any:
    def days(count: int) -> None:
        settings.HALTLINE_RETENTION_DAYS = count

    return days


def content(row: InferenceRequest) -> list[Any]:
    row.refresh_from_db()
    choice = row.choices.get()
    return [row.prompt, choice.text, choice.token_ids, choice.logprobs]


def finish(row: InferenceRequest) -> None:
    run = Run.of(row)
    logprobs = [TokenLogprobs(TokenLogprob(1, "a", -0.1)), TokenLogprobs(TokenLogprob(2, "b", -1))]
    end = ChoiceEnd(
        index=0,
        finish_reason=FinishReason.STOP,
        token_ids=[1, 2],
        text="ab",
        logprobs=logprobs,
    )
    run.tokens = 2
    run._tell(Trigger.FINISH, choice_end=end)
    events_record(events=[run.event()])


def test_it_keeps_what_was_asked_and_answered(submit: Submit, owner: Member, kept_for: Any) -> None:
    kept_for(1)
    row = submit(owner, prompt=[SECRET])
    finish(row)
    prompt, text, token_ids, logprobs = content(row)
    assert (prompt, text, token_ids, len(logprobs)) == ([SECRET], "ab", [1, 2], 2)


def test_it_keeps_no_content_where_there_is_no_retention(
    submit: Submit, owner: Member, kept_for: Any
) -> None:
    kept_for(0)
    row = submit(owner, prompt=[SECRET], params={"max_tokens": 4})
    assert content(row)[0] == []
    finish(row)
    assert content(row) == [[], "", [], None]
    assert (row.output_token_count, row.choices.get().output_token_count) == (2, 2)
    assert (row.state, row.params) == ("finished", {"max_tokens": 4})


def test_it_keeps_a_prompt_until_its_request_has_ended_if_a_task_must_send_it(
    submit: Submit, owner: Member, kept_for: Any
) -> None:
    kept_for(0)
    row = submit(owner, placement=None, prompt=[SECRET])
    assert content(row)[0] == [SECRET]
    abort_open(caller=owner.caller, ids=[row.pk])
    assert content(row)[0] == []
    assert row.state == "aborted"
