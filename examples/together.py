"""Several prompts in one forward: each gets the tokens that it would get alone."""

from deskside.core import SamplingParams
from deskside.llm import LLM

PROMPTS = ("import ", "def main():\n", "class Stack:\n    def push(self, item):\n")


def main() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=32)
    with LLM.open() as llm:
        together = llm.generate(PROMPTS, params)
        alone = [llm.generate([prompt], params)[0] for prompt in PROMPTS]
    for prompt, one, other in zip(PROMPTS, together, alone, strict=True):
        assert one.token_ids == other.token_ids
        print(f"--- {len(one.token_ids)} tokens, {one.finish}\n{prompt}{one.text}")


if __name__ == "__main__":
    main()
