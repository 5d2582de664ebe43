"""The body of an abort call: what is not clear to the letter stops nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from adminapi.aborts.orders import LONGEST_KEY, body_digest, idempotency_key, wait_seconds
from adminapi.aborts.serializers import MOST_IDS, AbortRequestsSerializer
from gateway.api.errors import as_haltline_error
from inference.errors import InvalidRequestError


def refusal(body: Any) -> InvalidRequestError:
    with pytest.raises(ValidationError) as caught:
        AbortRequestsSerializer(data=body).is_valid(raise_exception=True)
    error = as_haltline_error(caught.value)
    assert isinstance(error, InvalidRequestError)
    return error


def order(body: Any) -> Any:
    serializer = AbortRequestsSerializer(data=body)
    serializer.is_valid(raise_exception=True)
    return serializer.order()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, None),
        (None, None),
        ([], None),
        ("abc", None),
        (1, None),
        ({"req_ids": []}, "req_ids"),
        ({"req_ids": [""]}, "req_ids.0"),
        ({"req_ids": ["a", " \t"]}, "req_ids.1"),
        ({"req_ids": [1]}, "req_ids.0"),
        ({"req_ids": [None]}, "req_ids.0"),
        ({"req_ids": [True]}, "req_ids.0"),
        ({"req_ids": [["a"]]}, "req_ids.0"),
        ({"req_ids": "abcdef"}, "req_ids"),
        ({"req_ids": {"a": "b"}}, "req_ids"),
        ({"req_ids": 7}, "req_ids"),
        ({"req_ids": ["x" * 201]}, "req_ids.0"),
        ({"req_ids": ["a\x00b"]}, "req_ids.0"),
        ({"req_ids": ["a"] * (MOST_IDS + 1)}, "req_ids"),
        ({"request_ids": []}, "request_ids"),
        ({"abort_all": "false"}, "abort_all"),
        ({"abort_all": "true"}, "abort_all"),
        ({"abort_all": 1}, "abort_all"),
        ({"abort_all": []}, "abort_all"),
        ({"abort_all": False}, None),
        ({"abort_all": None}, None),
        ({"req_ids": None}, None),
        ({"filter": None}, None),
        ({"stop_all": True}, "stop_all"),
        ({"req_ids": ["a"], "stop_all": True}, "stop_all"),
        ({"req_ids": ["a"], "request_ids": ["b"]}, None),
        ({"req_ids": ["a"], "abort_all": True}, None),
        ({"abort_all": True, "filter": {"model": "m"}}, None),
        ({"filter": {}}, "filter"),
        ({"filter": []}, "filter"),
        ({"filter": "model=m"}, "filter"),
        ({"filter": {"modell": "m"}}, "filter.modell"),
        ({"filter": {"model": ""}}, "filter.model"),
        ({"filter": {"model": None}}, "filter.model"),
        ({"filter": {"model": 3}}, "filter.model"),
        ({"filter": {"state": "sleeping"}}, "filter.state"),
        ({"filter": {"state": "finished"}}, "filter.state"),
        ({"filter": {"state": ["queued"]}}, "filter.state"),
        ({"filter": {"older_than": "30"}}, "filter.older_than"),
        ({"filter": {"older_than": True}}, "filter.older_than"),
        ({"filter": {"older_than": -1}}, "filter.older_than"),
        ({"filter": {"older_than": 10**400}}, "filter.older_than"),
        ({"filter": {"older_than": float("inf")}}, "filter.older_than"),
        ({"filter": {"metadata": {}}}, "filter.metadata"),
        ({"filter": {"metadata": {"job": 7}}}, "filter.metadata.job"),
        ({"filter": {"metadata": [["job", "7"]]}}, "filter.metadata"),
        ({"req_ids": ["a"], "reason": 5}, "reason"),
        ({"req_ids": ["a"], "reason": "x" * 1001}, "reason"),
        ({"req_ids": ["a"], "dry_run": "yes"}, "dry_run"),
        ({"req_ids": ["a"], "dry_run": 0}, "dry_run"),
        ({"req_ids": ["a"], "tombstone": 301}, "tombstone"),
        ({"req_ids": ["a"], "tombstone": -1}, "tombstone"),
        ({"req_ids": ["a"], "tombstone": 0}, "tombstone"),
        ({"req_ids": ["a"], "tombstone": "30"}, "tombstone"),
        ({"abort_all": True, "tombstone": 30}, "tombstone"),
        ({"req_ids": ["a"], "fence": True}, "fence"),
        ({"abort_all": True, "fence": "true"}, "fence"),
    ],
)
def test_it_refuses_what_is_not_clear_and_names_the_field(body: Any, param: str | None) -> None:
    """Case 3."""
    error = refusal(body)
    assert error.param == param
    assert error.message


def test_it_takes_each_selector_alone() -> None:
    assert order({"req_ids": ["a", "b"]}).ids == ["a", "b"]
    assert order({"request_ids": ["a"]}).ids == ["a"]
    assert order({"abort_all": True}).everything
    assert order({"filter": {"state": "queued"}}).filters == {"state": "queued"}


def test_it_counts_null_and_false_selectors_as_absent() -> None:
    taken = order({"req_ids": ["a"], "request_ids": None, "abort_all": False, "filter": None})
    assert (taken.ids, taken.everything, taken.filters) == (["a"], False, None)


def test_it_keeps_ids_as_they_were_sent() -> None:
    assert order({"req_ids": [" a ", "a"]}).ids == [" a ", "a"]


def test_it_takes_as_many_ids_as_a_call_may_have() -> None:
    assert len(order({"req_ids": ["a"] * MOST_IDS}).ids) == MOST_IDS


def test_it_takes_every_option() -> None:
    taken = order(
        {"req_ids": ["a"], "reason": "over budget", "dry_run": True, "tombstone": 30, "fence": None}
    )
    assert (taken.reason, taken.dry_run, taken.tombstone) == ("over budget", True, 30.0)
    assert order({"abort_all": True, "fence": True}).fence


def test_it_digests_a_body_whatever_the_order_of_its_fields() -> None:
    assert body_digest({"a": 1, "b": [1, 2]}) == body_digest({"b": [1, 2], "a": 1})
    assert body_digest({"b": [1, 2]}) != body_digest({"b": [2, 1]})


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("respond-async", None),
        ("wait=5", 5.0),
        ("wait=0", 0.0),
        ("respond-async, wait=2.5", 2.5),
        ('WAIT = "7"; x=y', 7.0),
        ("return=minimal;wait=9, wait=60", 60.0),
    ],
)
def test_it_reads_how_long_to_wait(header: str | None, seconds: float | None) -> None:
    assert wait_seconds(header) == seconds


@pytest.mark.parametrize("header", ["wait", "wait=", "wait=-1", "wait=61", "wait=nan", "wait=1e1"])
def test_it_refuses_a_wait_that_is_no_number_of_seconds(header: str) -> None:
    with pytest.raises(InvalidRequestError):
        wait_seconds(header)


@pytest.mark.parametrize("header", ["", " ", "x" * (LONGEST_KEY + 1), "a\x00", "ü"])
def test_it_refuses_an_idempotency_key_that_is_none(header: str) -> None:
    with pytest.raises(InvalidRequestError):
        idempotency_key(header)


def test_it_takes_an_idempotency_key() -> None:
    assert idempotency_key("step-7") == "step-7"
    assert idempotency_key(None) is None


@pytest.mark.parametrize("seconds", [0, 0.5, 301])
def test_it_says_how_long_a_tombstone_may_last(seconds: float) -> None:
    said = refusal({"req_ids": ["a"], "tombstone": seconds}).message
    assert said == "A tombstone lasts from 1 to 300 seconds."
