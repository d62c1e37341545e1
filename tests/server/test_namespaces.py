"""Functions that come in a namespace, as Codex sends them: offered, called and sent back."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from deskside.server.responses.fields import ResponsesFields
from tests.server.rig import Server, serving

D = "｜DSML｜"
MODEL = "deskside-mini"
SCHEMA = {"type": "object", "properties": {"task": {"type": "string"}}}
SPAWN = {"type": "function", "name": "spawn", "description": "Spawns.", "parameters": SCHEMA}
TOOLS: Any = [
    {"type": "function", "name": "spawn", "parameters": SCHEMA},
    {"type": "namespace", "name": "team", "description": "Of others.", "tools": [SPAWN]},
]


def call(name: str) -> str:
    return (
        f'\n\n<{D}tool_calls>\n<{D}invoke name="{name}">\n'
        f'<{D}parameter name="task" string="true">x</{D}parameter>\n</{D}invoke>\n</{D}tool_calls>'
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--kv-tokens", "4096", "--speculation", "3") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="x", base_url=server.url + "/v1", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(
    ("called", "want"),
    [
        ("team.spawn", {"namespace": "team", "name": "spawn"}),
        ("spawn", {"name": "spawn"}),
        ("unheard.of", {"name": "unheard.of"}),
    ],
)
def test_a_call_names_its_namespace(
    client: openai.OpenAI, server: Server, called: str, want: dict[str, str]
) -> None:
    whole = client.responses.create(model=MODEL, input=call(called), tools=TOOLS, temperature=0)
    items = [whole.output[-1].to_dict()]
    events = server.client.post(
        server.url + "/v1/responses",
        json={"input": call(called), "tools": TOOLS, "temperature": 0, "stream": True},
    ).text.splitlines()
    said = [json.loads(line[6:]) for line in events if line.startswith("data: ")]
    kinds = ("response.output_item.added", "response.output_item.done")
    items += [one["item"] for one in said if one["type"] in kinds]
    assert len(items) == 3
    for item in items:
        assert item["type"] == "function_call"
        assert {key: item[key] for key in ("namespace", "name") if key in item} == want


def count(server: Server, said: list[Any], **fields: Any) -> int:
    answer = server.post("/v1/responses", {"input": said, "max_output_tokens": 1, **fields})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["input_tokens"])


def test_what_was_called_is_sent_back(server: Server) -> None:
    """The prompt is that of functions which have the whole name."""
    flat = {**SPAWN, "name": "team.spawn", "description": "Of others.\nSpawns."}
    talk: list[Any] = [
        {"role": "user", "content": "q"},
        {"type": "function_call", "call_id": "1", "name": "spawn", "arguments": '{"task": "x"}'},
        {"type": "function_call_output", "call_id": "1", "output": "done"},
    ]
    apart = [talk[0], {**talk[1], "namespace": "team"}, talk[2]]
    joined = [talk[0], {**talk[1], "name": "team.spawn"}, talk[2]]
    want = count(server, joined, tools=[TOOLS[0], flat])
    assert count(server, apart, tools=TOOLS) == want
    assert count(server, talk, tools=TOOLS) < want
    assert count(server, talk, tools=TOOLS[:1]) < count(server, talk, tools=TOOLS)


@pytest.mark.parametrize(("space", "want"), [("team", "team.spawn"), (None, "spawn")])
def test_a_choice_names_a_namespace(space: str | None, want: str) -> None:
    choice = {"type": "function", "namespace": space, "name": "spawn"}
    fields = ResponsesFields.model_validate({"input": "q", "tools": TOOLS, "tool_choice": choice})
    assert [tool.name for tool in fields.conversation().forced] == [want]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools", "tools[0].name must be text"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools", "tools[0].tools must be a list"),
        (
            {"tools": [{"type": "namespace", "name": "a", "tools": [1]}]},
            "tools",
            "tools[0].tools must be a list of tools",
        ),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "namespace": "x", "name": "add"}},
            "tool_choice",
            "there is no tool 'x.add'",
        ),
        ({"tools": [*TOOLS, TOOLS[1]]}, "tools", "the name 'team.spawn' stands twice"),
    ],
)
def test_refusals(server: Server, fields: dict[str, Any], param: str, words: str) -> None:
    answer = server.post("/v1/responses", {"input": "q", **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]
