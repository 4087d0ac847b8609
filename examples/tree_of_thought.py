"""Tree of thought: several thoughts a level, each judged by the model itself, the best ones go on.

    python examples/tree_of_thought.py "How do I move a piano down five floors?"
    python examples/tree_of_thought.py --url http://127.0.0.1:8000 --breadth 4 --keep 2 --depth 3

Needs a running server (`tiltyard up`, or any with the OpenAI protocol). A judgment is a `select`: on tiltyard and vLLM
it is the log-likelihood of "good" against "bad", elsewhere the model has to say one of the two.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import NamedTuple

from tiltyard.client import DEFAULT_URL, Program, Prompt

QUESTION = "How do I move a piano down five floors without a lift?"
SYSTEM = "You solve problems step by step. Each step is one short sentence."


class Chain(NamedTuple):
    """A conversation of thoughts and what the model thinks of it."""

    score: float
    prompt: Prompt


def how_good(critic: Prompt) -> float:
    """Nats by which the judgment says good rather than bad."""
    step = critic.step("judgment")
    scores = {one.text: one.logprob for one in step.scores}
    if not scores:  # a server that does not score: the choice is all there is
        return 1.0 if step.text == "good" else -1.0
    return scores["good"] - scores["bad"]


async def think(prompt: Prompt, score: float, words: int) -> Chain:
    """One more thought, and the judgment of it, which stays out of the conversation that goes on."""
    await prompt.user("What is the next step?").gen("thought", max_tokens=words)
    (critic,) = prompt.fork(1)
    critic.user("Is this step good or bad? Answer with one word.")
    await critic.select("judgment", ["good", "bad"], normalize="sum")
    return Chain(score + how_good(critic), prompt)


async def solve(
    program: Program, question: str, *, depth: int = 3, breadth: int = 3, keep: int = 2, words: int = 24
) -> Chain:
    """The best of the chains: at each level every one that was kept grows `breadth` branches."""
    beam = [Chain(0.0, program.prompt().system(SYSTEM).user(question))]
    for _ in range(depth):
        grown = [think(branch, chain.score, words) for chain in beam for branch in chain.prompt.fork(breadth)]
        chains = await asyncio.gather(*grown)
        beam = sorted(chains, key=lambda chain: -chain.score)[:keep]
    return beam[0]


async def main() -> None:
    """Solve one question and show the chain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", nargs="?", default=QUESTION)
    parser.add_argument("--url", default=DEFAULT_URL)
    parser.add_argument("--model", default="chat")
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--breadth", type=int, default=3)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--words", type=int, default=24, help="most tokens of a thought")
    options = parser.parse_args()
    async with Program(options.url, model=options.model, temperature=0.7, seed=1) as program:
        score, best = await solve(
            program,
            options.question,
            depth=options.depth,
            breadth=options.breadth,
            keep=options.keep,
            words=options.words,
        )
        print(options.question)
        for number, step in enumerate((one for one in best.steps if one.name == "thought"), 1):
            print(f"{number}. {step.text}")
        used = program.used
        print(
            f"score {score:.2f}; {used.requests} requests, {used.prompt_tokens} prompt tokens, "
            f"{used.cached_tokens} of them cached, {used.completion_tokens} generated"
        )


if __name__ == "__main__":
    asyncio.run(main())
