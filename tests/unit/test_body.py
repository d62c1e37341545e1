"""Bodies of requests: what long ones leave to others, and how little is told of wrong ones."""

import asyncio
import json
import threading
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, TypeAdapter, ValidationError, field_validator

from deskside.server.anthropic.fields import MessagesFields
from deskside.server.body import AT_ONCE, JsonRoute
from deskside.server.openai.chat_fields import ChatFields
from deskside.server.openai.fields import PIECE, CompletionFields, TokenIds
from deskside.server.responses.fields import ResponsesFields

PATIENCE = 30.0
CHECKING, GO_ON = threading.Event(), threading.Event()


class _Waiting(BaseModel):
    """Fields whose check goes on only when the event loop has said so."""

    text: str

    @field_validator("text")
    @classmethod
    def _wait(cls, value: str) -> str:
        CHECKING.set()
        assert GO_ON.wait(PATIENCE), "the event loop stood still"
        return value[:1]


def app() -> FastAPI:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/long")
    async def long(fields: _Waiting) -> dict[str, str]:
        return {"text": fields.text}

    @router.get("/live")
    async def live() -> dict[str, str]:
        return {}

    made = FastAPI()
    made.include_router(router)
    return made


def test_the_event_loop_goes_on_while_a_long_body_is_checked() -> None:
    async def both() -> None:
        transport = httpx.ASGITransport(app())
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            long = asyncio.ensure_future(client.post("/long", json={"text": "x" * AT_ONCE}))
            while not CHECKING.is_set():
                await asyncio.sleep(0.001)
            assert (await client.get("/live")).status_code == 200
            assert not long.done()
            GO_ON.set()
            assert (await long).json() == {"text": "x"}

    asyncio.run(both())


WRONG: list[Any] = [1] * 1000
LISTS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (CompletionFields, {"prompt": ["a", *WRONG]}),
    (CompletionFields, {"prompt": [1, *("a" for _ in WRONG)]}),
    (CompletionFields, {"prompt": [[1], *WRONG]}),
    (CompletionFields, {"prompt": [1], "stop_token_ids": ["a"] * 1000}),
    (ChatFields, {"messages": WRONG}),
    (ChatFields, {"messages": [{}], "tools": WRONG}),
    (MessagesFields, {"max_tokens": 1, "messages": WRONG}),
    (MessagesFields, {"max_tokens": 1, "messages": [{}], "tools": WRONG}),
    (MessagesFields, {"max_tokens": 1, "messages": [{}], "system": WRONG}),
    (MessagesFields, {"max_tokens": 1, "messages": [{}], "stop_sequences": WRONG}),
    (ResponsesFields, {"input": WRONG}),
    (ResponsesFields, {"input": "a", "tools": WRONG}),
    (ResponsesFields, {"input": "a", "include": WRONG}),
]


@pytest.mark.parametrize(("fields", "body"), LISTS)
def test_a_thousand_wrong_elements_are_told_as_a_few(
    fields: type[BaseModel], body: dict[str, Any]
) -> None:
    """An error for each element of a long list would take the event loop for many seconds."""
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(fields).validate_python({"model": "m", **body})
    assert refused.value.error_count() < 100


@pytest.mark.parametrize("wrong", [-1, 2**31, True, "a", 1.0, None])
@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE + 1])
def test_a_wrong_token_id_is_found_where_it_stands(wrong: object, place: int) -> None:
    ids: list[object] = [5] * (2 * PIECE + 2)
    kept: TypeAdapter[list[int]] = TypeAdapter(TokenIds)
    assert kept.validate_python(ids, strict=True) == ids
    ids[place] = wrong
    with pytest.raises(ValidationError) as refused:
        kept.validate_python(ids, strict=True)
    (error,) = refused.value.errors()
    assert error["msg"] == f"element {place} must be a token id, got {wrong!r}"


@pytest.mark.parametrize("prompt", ["a", "", ["a", "b"], [1, 2], [], [[1], [2]], [[]]])
def test_every_kind_of_prompt_is_taken_as_it_is(prompt: Any) -> None:
    assert CompletionFields.model_validate_json(json.dumps({"prompt": prompt})).prompt == prompt
