"""A fault within a stream of messages or responses is its last event, and nothing claims an end."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from deskside.server import faults
from deskside.server.anthropic import messages
from deskside.server.openai.answer import Piece
from deskside.server.responses import respond
from deskside.server.responses.fields import ResponsesFields
from deskside.server.responses.writer import ItemWriter
from deskside.text.reasoning import Channel

LOST = faults.of_engine("NanLogitsError: the output is not a number")


def broken() -> Any:
    """Return an answer whose engine loses it behind its first piece."""
    closed: list[bool] = []

    async def pieces() -> AsyncIterator[tuple[int, Piece]]:
        try:
            yield 0, Piece([(Channel.REASONING, "why")], (1,))
            raise LOST
        finally:
            closed.append(True)

    choice = SimpleNamespace(prompt_tokens=3, cached=0, tokens=1, finish=None, calls=0)
    record = SimpleNamespace(finish="-")
    return SimpleNamespace(choices=[choice], pieces=pieces, record=record, closed=closed)


async def read(stream: AsyncIterator[bytes]) -> list[dict[str, Any]]:
    found = []
    async for event in stream:
        head, _, data = event.decode().partition("\ndata: ")
        body = json.loads(data)
        assert head == f"event: {body['type']}"
        found.append(body)
    return found


@pytest.fixture
def service() -> Any:
    return SimpleNamespace(model="deskside-mini")


def test_messages(service: Any) -> None:
    answer = broken()
    found = asyncio.run(read(messages._events(messages._Work(service, "msg_1", answer))))
    assert [event["type"] for event in found] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    assert found[-1]["error"]["type"] == "api_error"
    assert "not a number" in found[-1]["error"]["message"]
    assert answer.closed == [True]
    assert answer.record.finish == "nan_logits"


def test_responses(service: Any) -> None:
    answer = broken()
    fields = ResponsesFields.model_validate({"input": "x"})
    work = respond._Work(service, fields, "resp_1", 0, answer, ItemWriter())
    found = asyncio.run(read(respond._events(work)))
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.failed",
    ]
    last = found[-1]["response"]
    assert (last["status"], last["error"]["code"]) == ("failed", "server_error")
    assert last["output"][0]["status"] == "in_progress"
    assert answer.closed == [True]
