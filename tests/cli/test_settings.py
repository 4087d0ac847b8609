"""Each mistake in `tiltyard.toml` is one line that names the file, the key and what should stand there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from tiltyard.cli.serving import check_exposure
from tiltyard.cli.settings import load_settings, parse
from tiltyard.cli.workers import check_machine, memory_bytes
from tiltyard.errors import ConfigurationError
from tiltyard.events.log import EventLog
from tiltyard.gateway.keyring import KeyRing
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.openai import SamplingRequest

MODEL = '[models.m]\nsource = "file:m.gguf"\n'
GOOD = MODEL + '[identities.x]\nmodel = "m"\n'
SAMPLING = f"{GOOD}sampling = "
DIGITS = "write 64 hex digits"
NO_NAME = "is no name; use up to 64 letters, digits, '.', '_' and '-', a letter or digit first"
IDENTITY_KEYS = (
    "model, quantization, kv_precision, adapter, rope_scaling, pooling, chat_template, tool_format, system_prompt, sampling, organization, license, "
    "description"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SAMPLING}{{ temperature = -1 }}", "identities.x.sampling.temperature: this is -1; it must be at least 0"),
        (f"{SAMPLING}{{ temperature = nan }}", "identities.x.sampling.temperature: this is nan; it must be a finite number"),
        (f"{SAMPLING}{{ temperature = true }}", "identities.x.sampling.temperature: this is true; it must be a number"),
        (f"{SAMPLING}{{ top_p = 1.5 }}", "identities.x.sampling.top_p: this is 1.5; it must be at most 1"),
        (f"{SAMPLING}{{ top_p = 0 }}", "identities.x.sampling.top_p: this is 0; it must be more than 0"),
        (f"{SAMPLING}{{ max_tokens = 0 }}", "identities.x.sampling.max_tokens: this is 0; it must be at least 1"),
        (f"{SAMPLING}{{ max_tokens = 1.0 }}", "identities.x.sampling.max_tokens: this is 1.0; it must be a whole number"),
        (f"{SAMPLING}5", "identities.x.sampling: this is 5; it must be a table"),
        (f"{GOOD}[server]\nport = true", "server.port: this is true; it must be a whole number"),
        (f"{GOOD}[server]\nport = 65536", "server.port: this is 65536; it must be at most 65,535"),
        (f"{GOOD}[server]\nhost = 5", "server.host: this is 5; it must be text in quotes"),
        (f"{GOOD}[server]\ndrain_seconds = inf", "server.drain_seconds: this is inf; it must be a finite number"),
        (f"{GOOD}[workers]\nthreads = 0", 'workers.threads: this is 0; it must be a whole number from 1 to 1,024, or "auto"'),
        (f'{GOOD}[workers]\nthreads = "all"', "workers.threads: this is 'all'; it must be a whole number from 1 to 1,024, or \"auto\""),
        (f'{GOOD}[workers]\nisa = "avx9"', "workers.isa: this is 'avx9'; it must be 'auto', 'avx512_vnni', 'avx512', 'avx2', 'neon_dot', 'neon' or 'scalar'"),
        (f'{GOOD}[arena]\ncontestants = "x"', "arena.contestants: this is 'x'; it must be a list of identity names"),
        (f"{GOOD}[arena]\ncontestants = [5]", "arena.contestants: this is 5; it must be a list of identity names"),
        (f'{GOOD}[arena]\ncontestants = ["y"]', "arena.contestants: there is no identity 'y'; declared: x"),
        (f'{GOOD}[identities."bad name/../x"]\nmodel = "m"', f"identities.bad name/../x: 'bad name/../x' {NO_NAME}"),
        (f'{GOOD}[models.".m"]\nsource = "file:m.gguf"', f"models..m: '.m' {NO_NAME}"),
        (f'{GOOD}[aliases]\n"a b" = "x"', f"aliases.a b: 'a b' {NO_NAME}"),
        (f'{GOOD}[aliases]\na = "y"', "aliases.a: there is no identity 'y'; declared: x"),
        (f"{GOOD}[aliases]\na = 5", "aliases.a: this is 5; it must be text in quotes"),
        (f'{GOOD}temprature = 1', f"identities.x.temprature: there is no key temprature here; known: {IDENTITY_KEYS}"),
        ('[models.m]\nsuorce = "file:m.gguf"\n[identities]', "models.m.suorce: there is no key suorce here; known: source, sha256, speculation, draft"),
        (f'{MODEL}speculation = "guess"\n[identities]', "models.m.speculation: this is 'guess'; it must be 'off', 'prompt-lookup' or 'draft'"),
        (f'{MODEL}speculation = "draft"\n[identities]', 'models.m.draft: speculation = "draft" and draft = { model = "..." } need each other'),
        (f'{MODEL}speculation = "draft"\ndraft = {{ model = "n" }}\n[identities]', "models.m.draft.model: there is no model 'n'; declared: m"),
        (f'{MODEL}speculation = "draft"\ndraft = {{ name = "n" }}\n[identities]', "models.m.draft.name: there is no key name here; known: model, quantization"),
        (f"{MODEL}[identity.x]\nmodel = 'm'", "identity: there is no key identity here; known: server, models, identities, aliases, tenants, arena, costs, data, workers, router, objectives"),
        (f"{MODEL}[identities.x]", "identities.x.model: this key is missing; write one"),
        (f"{MODEL}[identities.x]\nmodel = 'n'", "identities.x.model: there is no model 'n'; declared: m"),
        ("[models.m]\nsource = 'm.gguf'\n[identities]", "models.m.source: model source 'm.gguf' is not understood; "
         "write pypi:<package>==<version>, file:<path> or hf:<owner>/<repo>[@<revision>][/<file>.gguf]"),
        (f"{MODEL}sha256 = 'abc'\n[identities]", f"models.m.sha256: sha256 'abc' is not a digest; {DIGITS}"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_of_our_own_words(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse(text, "there.toml")
    assert refused.value.message == f"there.toml: {said}"


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty",
                                  "presence_penalty", "frequency_penalty", "max_tokens"])  # fmt: skip
def test_defaults_have_the_ranges_of_requests(name: str) -> None:
    def takes(make: type[DefaultSampling] | type[SamplingRequest], value: float) -> bool:
        try:
            make.model_validate({name: value} if make is DefaultSampling else {"model": "m", name: value})
        except ValidationError:
            return False
        return True

    values = [
        -3,
        -2,
        -1,
        -0.1,
        0,
        0.1,
        1,
        1.1,
        2,
        2.1,
        10,
        11,
        2**31 - 1,
        2**31,
        float("nan"),
        float("inf"),
        True,
    ]
    taken = [value for value in values if takes(SamplingRequest, value)]
    assert taken
    if name == "top_k":
        taken.remove(
            -1
        )  # vLLM's other word for 0: a request may use it, an identity has one word for one thing
    assert [value for value in values if takes(DefaultSampling, value)] == taken


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_bytes(b"x\xff")
    with pytest.raises(ConfigurationError, match=r"tiltyard\.toml is not UTF-8 at byte 1$"):
        load_settings(path)


def test_what_the_machine_does_not_have_is_found_before_anything_starts(tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text(f'{GOOD}chat_template = "none.jinja"\n')
    settings = load_settings(path, data_dir=tmp_path)
    with pytest.raises(ConfigurationError) as missing:
        check_machine(settings)
    assert missing.value.message == (
        f"{path}: identities.x.chat_template: there is no file {tmp_path / 'none.jinja'}; "
        'it must be "model", "off" or the path of a Jinja file'
    )
    (tmp_path / "none.jinja").touch()
    check_machine(settings)
    greedy = settings.file.workers.model_copy(update={"kv_memory_mb": 99_999_999})
    too_much = replace(settings, file=settings.file.model_copy(update={"workers": greedy}))
    with pytest.raises(ConfigurationError) as refused:
        check_machine(too_much)
    assert refused.value.message == (
        f"{path}: workers.kv_memory_mb: this is 99,999,999 for each worker; "
        f"the machine has {memory_bytes() >> 20:,} MB in all"
    )


def test_a_host_of_strangers_is_blamed_on_who_said_it(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"^there\.toml: server\.host: '0\.0\.0\.0' is not a loopback"
    ):
        check_exposure(settings, "0.0.0.0", said_by="there.toml: server.host")


def test_a_host_of_strangers_is_served_once_there_is_a_key_even_one_that_has_ended(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path)
    with EventLog.open(settings.log_place, keys=settings.keys_place) as log:
        with pytest.raises(ConfigurationError):
            check_exposure(settings, "192.0.2.1", said_by="--host")
        ring = KeyRing(log)
        ring.revoke(ring.issue("acme", ["inference"]).row.key)
    check_exposure(settings, "192.0.2.1", said_by="--host")


@pytest.mark.parametrize("key", ["require_keys", "serve_without_keys"])
def test_a_host_of_strangers_is_served_where_the_settings_say_so(key: str, tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text(f"[server]\n{key} = true\n[models]\n[identities]\n")
    check_exposure(load_settings(path, data_dir=tmp_path), "0.0.0.0", said_by="--host")


def test_an_adapter_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text(
        "[models.m]\nsource = 'file:m.gguf'\n[identities.a]\nmodel = 'm'\nadapter = 'adapters/a'\n"
    )
    with pytest.raises(ConfigurationError) as refused:
        check_machine(load_settings(path, data_dir=tmp_path))
    assert refused.value.message == (
        f"{path}: identities.a.adapter: there is no adapter_config.json in {tmp_path / 'adapters/a'}; "
        "it must be the directory of a LoRA adapter, as PEFT writes it"
    )
