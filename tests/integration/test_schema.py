"""The schema as served: valid OpenAPI without a warning, and a page that loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from django.test import Client
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.validation import validate_schema
from jsonschema import Draft7Validator  # type: ignore[import-untyped]

from tests.cast import Member

pytestmark = pytest.mark.django_db


@pytest.fixture
def schema(operator: Member) -> dict[str, Any]:
    GENERATOR_STATS.reset()
    answer = Client().get("/schema/openapi.json", headers=operator.headers)
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")
    found: dict[str, Any] = answer.json()
    return found


def test_it_is_valid_and_made_without_a_warning(schema: dict[str, Any]) -> None:
    validate_schema(schema)  # type: ignore[no-untyped-call]
    assert not GENERATOR_STATS, (GENERATOR_STATS._warn_cache, GENERATOR_STATS._error_cache)


def test_every_default_is_a_value_that_its_own_schema_takes(schema: dict[str, Any]) -> None:
    wrong = []
    for part in parts_with_a_default(schema):
        if part.get("nullable") and part["default"] is None:
            continue
        judge = Draft7Validator({**part, "components": schema["components"]})
        wrong += [(part, problem.message) for problem in judge.iter_errors(part["default"])]
    assert wrong == []


def parts_with_a_default(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict) and "default" in part and not isinstance(part["default"], dict):
        yield part
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    for one in inner:
        yield from parts_with_a_default(one)


def test_it_comes_as_yaml_too(operator: Member, schema: dict[str, Any]) -> None:
    answer = Client().get("/schema/openapi.yaml", headers=operator.headers)
    assert yaml.safe_load(answer.content) == schema


def test_its_page_loads_nothing_from_elsewhere(staff: Any) -> None:
    browser = Client()
    browser.force_login(staff)
    page = browser.get("/schema/").content.decode()
    assert "/static/drf_spectacular_sidecar/" in page
    assert re.findall(r"""(?:src|href|url)\s*[=:]\s*["'](?:https?:)?//[^"']*""", page) == []
    assert "cdn" not in page
