"""Draw once, then again with the seed that the first run chose: the same tokens come out."""

from dataclasses import replace

from deskside.core import SamplingParams
from deskside.llm import LLM

PROMPT = "class Stack:\n"


def main() -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=48)
    with LLM.open() as llm:
        first = llm.generate([PROMPT], params)[0]
        again = llm.generate([PROMPT], replace(params, seed=first.seed))[0]
    assert again.token_ids == first.token_ids
    print(f"{PROMPT}{first.text}\n\nseed {first.seed} gives this text every time")


if __name__ == "__main__":
    main()
