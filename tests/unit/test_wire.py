"""What crosses between server and engine comes out as it went in, and nothing else is taken."""

import json

import pytest
from pydantic import ValidationError

from deskside.config.engine import EngineOptions
from deskside.core import Emission, FinishReason, Pause, Request, SamplingParams, TokenLogprob
from deskside.errors import InputError
from deskside.wire.messages import (
    COMMAND,
    EVENT,
    Abort,
    Command,
    Event,
    Gauges,
    Order,
    Step,
    Stop,
    Submit,
)

PARAMS = SamplingParams(
    temperature=0.7,
    seed=2**62,
    stop=("a", "é\0"),
    stop_token_ids=(3,),
    logit_bias=((5, -1.5),),
    logprobs=2,
    stop_after="</think>",
)


@pytest.mark.parametrize(
    "command",
    [Submit(keys=["k", "l"], request=Request((1, 2), PARAMS, 3)), Abort(keys=["k"]), Stop()],
)
def test_commands_come_out_as_they_went_in(command: Command) -> None:
    assert COMMAND.validate_json(command.model_dump_json()) == command


def test_a_step_comes_out_as_it_went_in() -> None:
    emission = Emission(
        kept=3,
        tokens=(4, 5),
        finish=FinishReason.STOP,
        verified=3,
        accepted=1,
        pause=Pause.TRIP,
        logprobs=(TokenLogprob(-0.1234567890123, ((4, -0.5), (9, -1e-300))), TokenLogprob(0.0)),
    )
    event: Event = Step(emissions={"k": emission}, gauges=Gauges(running=1), rows=4, seconds=0.1)
    assert EVENT.validate_json(event.model_dump_json()) == event


def test_an_order_carries_every_option() -> None:
    options = EngineOptions(kv_tokens=77, speculation="off", threads=3, fallback=False)
    order = Order(parent=1, commands="ipc://a", events="ipc://b", model="m", options=options)
    assert Order.model_validate_json(order.model_dump_json()).options == options


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "submit", "keys": ["k"]},
        {"kind": "unheard-of"},
        {"kind": "stop", "more": 1},
        {"kind": "abort", "keys": "k"},
        ["stop"],
    ],
)
def test_what_is_no_command_is_refused(message: object) -> None:
    with pytest.raises(ValidationError):
        COMMAND.validate_json(json.dumps(message))


def test_a_request_is_checked_again_where_it_arrives() -> None:
    sent = json.loads(Submit(keys=["k"], request=Request((1,), PARAMS)).model_dump_json())
    sent["request"]["params"]["temperature"] = -1
    with pytest.raises(InputError, match="temperature"):
        COMMAND.validate_json(json.dumps(sent))
