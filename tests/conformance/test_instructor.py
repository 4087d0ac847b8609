"""instructor, unmodified, over OpenAI's package. It is never installed by us: see `docs/clients.md`."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel
from real_house import House

pytestmark = pytest.mark.filterwarnings("ignore")  # a package's own, on its import


class City(BaseModel):
    """A city."""

    name: str
    country: str


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_a_pydantic_model_is_filled(house: House, mode: str) -> None:
    instructor: Any = pytest.importorskip("instructor", reason="instructor is installed by hand only")
    with OpenAI(base_url=house.url + "/v1", api_key="any") as openai:
        client = instructor.from_openai(openai, mode=instructor.Mode[mode])
        city = client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "Name the capital of France."}],
            response_model=City,
            temperature=0,
            max_tokens=100,
        )
    assert isinstance(city, City)
