"""langchain-openai, unmodified."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from real_house import House

pytestmark = pytest.mark.filterwarnings("ignore")  # a package's own, on its import
QUESTION = "Name the capital of France."


class City(BaseModel):
    """A city."""

    name: str
    country: str


@pytest.fixture
def langchain_openai() -> Any:
    return pytest.importorskip("langchain_openai", reason="the conformance extra is not installed")


def model(langchain_openai: Any, house: House, **settings: object) -> Any:
    return langchain_openai.ChatOpenAI(
        model="chat", base_url=house.url + "/v1", api_key="any", temperature=0, max_tokens=80, **settings
    )


def test_invoked_and_streamed(langchain_openai: Any, house: House) -> None:
    chat = model(langchain_openai, house)
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert "".join(piece.content for piece in chat.stream(QUESTION)) == answer.content


async def test_invoked_asynchronously(langchain_openai: Any, house: House) -> None:
    assert "Paris" in (await model(langchain_openai, house).ainvoke(QUESTION)).content


def test_structured_output(langchain_openai: Any, house: House) -> None:
    structured = model(langchain_openai, house).with_structured_output(City, method="json_schema")
    assert isinstance(structured.invoke(QUESTION), City)


def test_tools(langchain_openai: Any, house: House) -> None:
    bound = model(langchain_openai, house).bind_tools([City], tool_choice="required")
    (call,) = bound.invoke(QUESTION).tool_calls
    assert call["name"] == "City"


def test_by_the_responses_api(langchain_openai: Any, house: House) -> None:
    chat = model(langchain_openai, house, use_responses_api=True)
    answer = chat.invoke(QUESTION)
    assert "Paris" in answer.text
    streamed = [piece.text for piece in chat.stream(QUESTION)]
    assert "".join(streamed) == answer.text


def test_embeddings(langchain_openai: Any, house: House) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model="chat", base_url=house.url + "/v1", api_key="any", check_embedding_ctx_length=False
    )
    dog, hound = embeddings.embed_documents(["a dog", "a hound"])
    assert len(dog) == len(hound) == 576
