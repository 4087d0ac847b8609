"""What OpenAI's API and its relatives know and we do not honour, with the values that ask for nothing.

A neutral value is accepted and dropped; any other is refused by name, with what to do instead where there is something.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_core import PydanticCustomError

from tiltyard.identity.canonical import Json
from tiltyard.wire.problems import NOT_SUPPORTED

Table = Mapping[str, tuple[Json, ...]]

# vLLM and SGLang.
FAMILY: Table = {
    "add_special_tokens": (True,),
    "cache_salt": (),
    "detokenize": (True,),
    "ebnf": (),
    "guided_choice": (),
    "guided_decoding_backend": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_whitespace_pattern": (),
    "length_penalty": (1, 1.0),
    "logprob_token_ids": (),
    "logits_processors": ([],),
    "regex": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "thinking_token_budget": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
# llama-server.
LLAMA: Table = {
    "adaptive_target": (-1, -1.0),
    "cache_prompt": (True,),
    "dry_allowed_length": (2,),
    "dry_base": (1.75,),
    "dry_multiplier": (0, 0.0),
    "dry_penalty_last_n": (-1, 0),
    "dry_sequence_breakers": (["\n", ":", '"', "*"],),
    "dynatemp_exponent": (1, 1.0),
    "dynatemp_range": (0, 0.0),
    "grammar": ("",),
    "grammar_lazy": (False,),
    "id_slot": (-1,),
    "json_schema": (),
    "min_keep": (0,),
    "mirostat": (0,),
    "mirostat_eta": (0.1,),
    "mirostat_tau": (5, 5.0),
    "n_indent": (0,),
    "n_keep": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "repeat_last_n": (-1,),
    "repeat_penalty": (1, 1.0),
    "samplers": (),
    "t_max_predict_ms": (0,),
    "top_n_sigma": (-1, -1.0),
    "typical_p": (1, 1.0),
    "xtc_probability": (0, 0.0),
    "xtc_threshold": (0.1,),
}
CHAT_REFUSED: Table = {
    **FAMILY,
    **LLAMA,
    "add_generation_prompt": (True,),
    "audio": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "documents": ([],),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "safety_identifier": (),
    "store": (False,),
    "verbosity": (),
    "web_search_options": (),
}
COMPLETION_REFUSED: Table = {**FAMILY, **LLAMA, "best_of": (1,), "suffix": ("",)}
MESSAGE_REFUSED: Table = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}
INSTEAD: Mapping[str, str] = {
    "best_of": "there is no search over whole answers here: ask for n answers with logprobs and choose",
    "ebnf": "send structured_outputs.grammar",
    "function_call": "send tool_choice (in messages: tool_calls)",
    "functions": "send tools",
    "grammar": "send structured_outputs.grammar",
    "guided_choice": "send structured_outputs.choice",
    "guided_grammar": "send structured_outputs.grammar",
    "guided_json": "send structured_outputs.json",
    "guided_regex": "send structured_outputs.regex",
    "guided_whitespace_pattern": "send structured_outputs.disable_any_whitespace",
    "json_schema": "send response_format or structured_outputs.json",
    "n_predict": "send max_tokens",
    "n_probs": "send logprobs",
    "regex": "send structured_outputs.regex",
    "repeat_penalty": "send repetition_penalty",
    "t_max_predict_ms": "send max_tokens",
    "use_beam_search": "ask for n answers with logprobs and choose",
}
"""What to send in place of a field that is refused."""


def drop_what_asks_for_nothing(value: object, known: Mapping[str, object], refused: Table) -> object:
    """Leave out nulls and neutral values of known fields; refuse the rest of what we do not honour."""
    if not isinstance(value, dict):
        return value
    kept: dict[str, object] = {}
    for name, member in value.items():
        if member is None and (name in known or name in refused):
            continue
        if name in refused:
            neutral = refused[name]
            if member in neutral and not (
                isinstance(member, bool) ^ any(isinstance(v, bool) for v in neutral)
            ):
                continue
            accepted = f" (only {', '.join(map(repr, neutral))})" if neutral else ""
            raise PydanticCustomError(
                NOT_SUPPORTED,
                "not supported yet{accepted}; {instead}",
                {"accepted": accepted, "field": name, "instead": INSTEAD.get(name, "remove it")},
            )
        kept[name] = member
    return kept
