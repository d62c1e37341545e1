"""What a coding agent must be told to work with a service: text to read and paste, no more."""

import json
from typing import Literal, TypeAlias

__all__ = ["Agent", "configuration"]

Agent: TypeAlias = Literal["claude", "codex", "opencode"]

KEY = "DESKSIDE_API_KEY"


FIRST_PROMPT = 31 * 1024
"""Tokens of Claude Code's first prompt with its tools, in the vocabulary of the small model."""
ANSWER, LEAST_ANSWER, MOST_ANSWER = 4096, 1024, 32_000
"""Tokens of an answer: where no service says what fits, and the bounds where one does."""


def configuration(agent: Agent, url: str, model: str, capacity: int | None = None) -> str:
    """Return an agent's configuration for a model at a service; the key stays in its variable.

    Args:
        agent: which one.
        url: where the service answers.
        model: its name there.
        capacity: tokens of prompt and answer that fit the service, if it could be asked.
    """
    url = url.rstrip("/")
    if agent == "claude":
        return _claude(url, model, capacity)
    return _codex(url, model, capacity) if agent == "codex" else _opencode(url, model)


def _answer(capacity: int | None) -> int:
    """Return how long answers may be: half of what a first prompt leaves."""
    if capacity is None:
        return ANSWER
    return min(MOST_ANSWER, max(LEAST_ANSWER, (capacity - FIRST_PROMPT) // 2))


def _claude(url: str, model: str, capacity: int | None) -> str:
    names = ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_")
    lines = [
        "# Claude Code: lines for the shell, before `claude`",
        f'export ANTHROPIC_BASE_URL="{url}"',
        f'export ANTHROPIC_AUTH_TOKEN="${{{KEY}:-none}}"',
        "unset ANTHROPIC_API_KEY",
        *(f'export ANTHROPIC_{name}MODEL="{model}"' for name in names),
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
        "# prompt and answer must fit --kv-tokens together; without a word it asks for 32000",
        f"export CLAUDE_CODE_MAX_OUTPUT_TOKENS={_answer(capacity)}",
    ]
    if capacity is not None:
        lines.append(f"export CLAUDE_CODE_AUTO_COMPACT_WINDOW={capacity}")
    return "\n".join(lines)


def _codex(url: str, model: str, capacity: int | None) -> str:
    quoted = json.dumps(model)
    window = [] if capacity is None else [f"model_context_window = {capacity}"]
    return "\n".join(
        [
            "# Codex CLI: lines for ~/.codex/config.toml",
            f"model = {quoted}",
            'model_provider = "deskside"',
            *window,
            "",
            "[model_providers.deskside]",
            'name = "deskside"',
            f'base_url = "{url}/v1"',
            'wire_api = "responses"',
            f'# with a key: env_key = "{KEY}"',
        ]
    )


def _opencode(url: str, model: str) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "deskside",
        "options": {"baseURL": f"{url}/v1", "apiKey": f"{{env:{KEY}}}"},
        "models": {model: {"name": model}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {"deskside": provider},
        "model": f"deskside/{model}",
    }
    return json.dumps(settings, indent=2)
