"""What a coding agent must be told to work with a service: text to read and paste, no more."""

import json
from typing import Literal, TypeAlias

__all__ = ["Agent", "configuration"]

Agent: TypeAlias = Literal["claude", "codex", "opencode"]

KEY = "DESKSIDE_API_KEY"


def configuration(agent: Agent, url: str, model: str) -> str:
    """Return an agent's configuration for a model at a service; the key stays in its variable."""
    url = url.rstrip("/")
    if agent == "claude":
        return _claude(url, model)
    return _codex(url, model) if agent == "codex" else _opencode(url, model)


def _claude(url: str, model: str) -> str:
    names = ("", "DEFAULT_OPUS_", "DEFAULT_SONNET_", "DEFAULT_HAIKU_")
    lines = [
        "# Claude Code: lines for the shell, before `claude`",
        f'export ANTHROPIC_BASE_URL="{url}"',
        f'export ANTHROPIC_AUTH_TOKEN="${{{KEY}:-none}}"',
        "unset ANTHROPIC_API_KEY",
        *(f'export ANTHROPIC_{name}MODEL="{model}"' for name in names),
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
    ]
    return "\n".join(lines)


def _codex(url: str, model: str) -> str:
    quoted = json.dumps(model)
    return "\n".join(
        [
            "# Codex CLI: lines for ~/.codex/config.toml",
            f"model = {quoted}",
            'model_provider = "deskside"',
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
