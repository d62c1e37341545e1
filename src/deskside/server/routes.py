"""The smaller routes: models, tokens and text, version, health, metrics, administration."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from deskside.errors import InputError
from deskside.injection import Site, injections
from deskside.report.ranks import ranks_json
from deskside.server import faults
from deskside.server.openai.fields import TokenIds
from deskside.server.service import Service

__all__ = ["add_faults", "add_live", "add_routes"]


class _Model(BaseModel):
    """A served model. The two lengths are what is allocated and what its architecture reads."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["deskside"] = "deskside"
    max_model_len: int
    architecture_max_len: int


class _Models(BaseModel):
    object: Literal["list"] = "list"
    data: list[_Model]


class _Text(BaseModel):
    """A text to turn into token ids."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, max_length=512)
    prompt: str
    add_special_tokens: bool = True
    """Whether the model's start token comes first, as in a raw completion."""


class _Tokens(BaseModel):
    """Token ids to turn into text."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(None, max_length=512)
    tokens: TokenIds


class _Tokenized(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class _Detokenized(BaseModel):
    prompt: str


def add_routes(router: APIRouter, service: Service) -> None:
    """Add all of them but the live probe."""
    _add_models(router, service)
    _add_tokens(router, service)
    _add_health(router, service)
    _add_admin(router, service)


def _add_models(router: APIRouter, service: Service) -> None:
    def model() -> _Model:
        facts = service.engine.require_facts()
        return _Model(
            id=service.model,
            created=service.created,
            max_model_len=min(facts.kv_tokens, facts.max_positions),
            architecture_max_len=facts.max_positions,
        )

    @router.get("/v1/models")
    async def list_models() -> _Models:
        """List the one model of this service."""
        return _Models(data=[model()])

    @router.get("/v1/models/{name:path}")
    async def show_model(name: str) -> _Model:
        """Show a model by its name."""
        if name != service.model:
            raise faults.model_not_found(name, service.model)
        return model()

    @router.get("/version")
    async def version() -> dict[str, Any]:
        """Name the build, the model and what it runs with."""
        facts = service.engine.require_facts()
        return {
            "version": service.version,
            "fingerprint": service.fingerprint,
            "model": service.model,
            "kv_tokens": facts.kv_tokens,
            "max_running": facts.max_running,
            "max_queue": service.options.max_queue,
            "speculates": facts.speculates,
        }


def _add_tokens(router: APIRouter, service: Service) -> None:
    @router.post("/tokenize")
    async def tokenize(fields: _Text) -> _Tokenized:
        """Return the token ids of a text; names of control tokens in it become their ids."""
        service.check_model(fields.model)
        facts = service.engine.require_facts()
        tokenizer = service.tokenizer
        try:
            ids = await service.encode(fields.prompt, tokenizer.encode)
        except InputError as error:
            raise faults.of_input(error, "prompt") from error
        tokens = [tokenizer.bos, *ids] if fields.add_special_tokens else list(ids)
        return _Tokenized(tokens=tokens, count=len(tokens), max_model_len=facts.kv_tokens)

    @router.post("/detokenize")
    async def detokenize(fields: _Tokens) -> _Detokenized:
        """Return the text of token ids, as a completion shows it."""
        service.check_model(fields.model)
        vocab = service.engine.require_facts().vocab
        unknown = [token for token in fields.tokens if token >= vocab]
        if unknown:
            told = f"token id {unknown[0]} is not in the vocabulary of {vocab}"
            raise faults.bad_request(told, "tokens")
        return _Detokenized(prompt=await service.text_of(fields.tokens))


def add_live(router: APIRouter) -> None:
    """Add the one route that needs no key."""

    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """Say that the process is there."""
        return {"status": "live"}


def _add_health(router: APIRouter, service: Service) -> None:
    @router.get("/health/ready")
    @router.get("/health")
    async def ready() -> dict[str, Any]:
        """Say whether a request would be served now."""
        service.engine.check_health()
        gauges = service.engine.gauges
        return {
            "status": "ready",
            "running": gauges.running,
            "waiting": gauges.waiting,
            "last_token_age_s": service.engine.last_token_age,
        }

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return all counters in Prometheus' text form."""
        service.metrics.stand(service.engine.gauges)
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4")


class _Faults(BaseModel):
    """Faults for tests, as --test-faults spells them; none disarms what was armed."""

    model_config = ConfigDict(strict=True, extra="forbid")

    faults: Annotated[list[str], Field(fail_fast=True)]


def add_faults(router: APIRouter, service: Service) -> None:
    """Add the route that arms faults: only where `--test-faults` asked for it."""

    @router.post("/admin/faults")
    async def arm(fields: _Faults) -> dict[str, Any]:
        """Let faults happen at numbered sites. For tests, from this machine alone."""
        try:
            armed = injections(fields.faults, rank=None)
        except InputError as error:
            raise faults.of_input(error, "faults") from error
        if any(one.rank for one in armed):
            told = "other ranks than 0 hear of faults at the start alone: use --test-faults"
            raise faults.bad_request(told, "faults")
        service.engine.arm(armed)
        return {"armed": len(armed), "sites": {site.name.lower(): site.value for site in Site}}


def _add_admin(router: APIRouter, service: Service) -> None:
    @router.get("/admin/requests")
    async def list_requests() -> dict[str, Any]:
        """List the sequences that run or wait; for this machine alone."""
        gauges = service.engine.gauges
        return {
            "phase": service.engine.phase.value,
            "requests": service.engine.tickets.describe(),
            "free_pages": gauges.free_pages,
            "free_slots": gauges.free_slots,
            "running": gauges.running,
            "waiting": gauges.waiting,
            "step": gauges.step,
        }

    @router.get("/admin/placement")
    async def tell_placement() -> dict[str, Any]:
        """Tell what each rank holds, and where; for this machine alone."""
        return ranks_json(service.engine.require_facts().ranks)

    @router.delete("/admin/requests/{name}")
    async def abort_request(name: Annotated[str, Field(max_length=100)]) -> JSONResponse:
        """End a request; its client gets an error. For this machine alone."""
        aborted = faults.Fault(500, "the request was aborted", faults.SERVER, "aborted")
        if not service.engine.tickets.fail(aborted, name):
            told = f"no request {name!r} runs or waits"
            raise faults.Fault(404, told, code="request_not_found", param="name")
        return JSONResponse({"aborted": name})
