"""lm-evaluation-harness, unmodified, as a process: answers by chat, choices by log-likelihood, and its samples as a run here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_house import House

from tiltyard.evals.evidence import read_evidence
from tiltyard.evals.importing import import_run
from tiltyard.models.gguf import GgufFile
from tiltyard.models.gguf_tokenizer import read_gguf

PYTHON = os.environ.get("TILTYARD_TEST_LM_EVAL", sys.executable)
"""A Python that has `lm-eval[api]`; ours, unless named."""
pytestmark = pytest.mark.skipif(
    sys.executable == PYTHON and find_spec("lm_eval") is None,
    reason="lm-eval[api] adds about 600 MB: install it anywhere, and name its Python in TILTYARD_TEST_LM_EVAL (docs/clients.md)",
)

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
CAPITALS = """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 24, temperature: 0.0}
metric_list: [{metric: exact_match, regexes_to_ignore: ["The capital of France is ", "[.]"]}]
"""
CHOICES = """
output_type: multiple_choice
doc_to_choice: [Paris, zebra]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    (tmp_path / "data.jsonl").write_text(
        json.dumps({"question": "Name the capital of France. It is", "answer": "Paris"}) + "\n"
        + json.dumps({"question": "Say hello to", "answer": "zebra"}) + "\n"
    )  # fmt: skip
    for name, rest in (("ours_capitals", CAPITALS), ("ours_choices", CHOICES)):
        text = TASK.format(name=name, data=tmp_path / "data.jsonl") + rest
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def lm_eval(directory: Path, model: str, arguments: str, task: str, *more: str) -> Path:
    """The file of samples."""
    done = subprocess.run(
        [PYTHON, "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", task, "--include_path", str(directory),
         "--output_path", str(directory / "out"), "--log_samples", *more],
        cwd=directory, env={**os.environ, "OPENAI_API_KEY": "any", "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory / "hf")},
        capture_output=True, text=True, timeout=280, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (found,) = (directory / "out").rglob(f"samples_{task}_*.jsonl")
    return found


def has_transformers() -> bool:
    return not subprocess.run(
        [PYTHON, "-c", "import transformers"], capture_output=True, check=False
    ).returncode


async def test_answers_by_chat_are_had_as_it_is_and_its_samples_are_a_run(house: House, tasks: Path) -> None:
    samples = lm_eval(
        tasks, "local-chat-completions", f"model=chat,base_url={house.url}/v1/chat/completions", "ours_capitals",
        "--apply_chat_template",
    )  # fmt: skip
    done = await import_run(house.log, samples)
    run = read_evidence(house.log, done.run)
    assert (done.ended.samples, run.started.alias, done.identified) == (2, "chat", False)
    assert run.started.imported.startswith("lm_eval 0.")
    assert "Paris" in run.rows["0", 0].answer.at(-1).text
    assert (run.rows["0", 0].score, run.rows["1", 0].score) == (1.0, 0.0)


async def test_choices_are_scored_by_the_log_likelihoods_of_our_completions(
    house: House, tasks: Path, model_path: Path
) -> None:
    """It sends token ids with `echo` and `logprobs`, and needs the model's tokenizer for it."""
    if not has_transformers():
        pytest.skip("lm-eval reads tokenizers with transformers, which that Python does not have")
    with GgufFile.open(model_path) as file:
        vocabulary = read_gguf(file)
    tokenizer = tasks / "tokenizer"
    tokenizer.mkdir()
    vocabulary.fast.save(str(tokenizer / "tokenizer.json"))
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
    samples = lm_eval(
        tasks, "local-completions",
        f"model=chat,base_url={house.url}/v1/completions,tokenizer={tokenizer},tokenizer_backend=huggingface", "ours_choices",
    )  # fmt: skip
    run = read_evidence(house.log, (await import_run(house.log, samples)).run)
    assert (run.rows["0", 0].score, run.rows["0", 0].answer.at(-1).text) == (1.0, "Paris")
