"""Complete a prompt with the built-in model, printing text as it comes.

python examples/complete.py "import os"
"""

import sys

from deskside.core import SamplingParams
from deskside.llm import LLM


def main(prompt: str = "def fibonacci(n):\n") -> None:
    with LLM.open() as llm:
        for delta in llm.stream(prompt, SamplingParams(temperature=0.0, max_tokens=64)):
            print(delta.text, end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
