from __future__ import annotations

import pytest

from tiltyard.arena.identity_leak import leaks, names_of

OWN = names_of("smollm2-hot", "Hugging Face")


@pytest.mark.parametrize(
    "answer",
    [
        "I'm ChatGPT, how can I help?",  # FastChat #1210
        "I am a large language model, trained by Google.",
        "As a language model developed by OpenAI, I cannot feel.",
        "My name is Claude.",
        "我是通義千問,由阿里巴巴訓練。",
        "Sure! SmolLM2 was made for this.",
        "hugging face has taught me that.",
        "No, I'm not ChatGPT. I am Llama-3.",
    ],
)
def test_an_answer_that_says_who_wrote_it_leaks(answer: str) -> None:
    assert leaks(["The sky is blue.", answer], OWN, ["Hello", "Who are you?"])


@pytest.mark.parametrize(
    "answer",
    [
        "The sky is blue because of Rayleigh scattering.",
        "I am not sure. Google it.",
        "I'm familiar with GPT and Llama models.",
        "As an AI language model, I cannot browse Google.",
        "Android was developed by Google.",
        "I like it. Windows was made by Microsoft.",
        "GPT-4 was built by OpenAI, and Claude by Anthropic.",
        "I am a metallurgist.",
        "",
    ],
)
def test_an_answer_about_others_does_not(answer: str) -> None:
    assert not leaks([answer], OWN, ["What is what?"])


def test_a_name_that_the_voter_brought_up_is_no_leak_unless_the_answer_claims_it() -> None:
    asked = ["Compare smollm2 with others."]
    assert not leaks(["smollm2 is a small model."], OWN, asked)
    assert leaks(["I am smollm2."], OWN, asked)


def test_common_words_are_nobodys_names() -> None:
    assert names_of("chat", "") == ()
    assert names_of("qwen2.5-7b", "Alibaba") == ("qwen2.5-7b", "qwen2", "Alibaba")
