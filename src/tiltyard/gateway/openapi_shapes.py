"""The shapes of answers and errors as `/openapi.json` shows them; requests are described by their own models."""

from __future__ import annotations

from collections.abc import Mapping

from tiltyard.identity.canonical import Json

FINISH_REASONS: Json = ["stop", "length", "tool_calls", "content_filter", "deadline", "cancelled"]

SHAPES: Mapping[str, Json] = {
    "ChatCompletion": {
        "type": "object",
        "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"],
        "properties": {
            "id": {"type": "string", "pattern": "^gen_[0-9a-f]{32}$"},
            "object": {"const": "chat.completion"},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "system_fingerprint": {"type": "string"},
            "choices": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["index", "message", "logprobs", "finish_reason"],
                    "properties": {
                        "index": {"type": "integer"},
                        "message": {
                            "type": "object",
                            "required": ["role", "content", "refusal"],
                            "properties": {
                                "role": {"const": "assistant"},
                                "content": {"type": ["string", "null"]},
                                "refusal": {"type": "null"},
                            },
                        },
                        "logprobs": {"type": ["object", "null"]},
                        "finish_reason": {"enum": FINISH_REASONS},
                    },
                },
            },
            "usage": {"$ref": "#/components/schemas/Usage"},
        },
    },
    "Completion": {
        "type": "object",
        "required": ["id", "object", "created", "model", "system_fingerprint", "choices", "usage"],
        "properties": {
            "id": {"type": "string", "pattern": "^gen_[0-9a-f]{32}$"},
            "object": {"const": "text_completion"},
            "created": {"type": "integer"},
            "model": {"type": "string"},
            "system_fingerprint": {"type": "string"},
            "choices": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["index", "text", "logprobs", "finish_reason"],
                    "properties": {
                        "index": {"type": "integer"},
                        "text": {"type": "string"},
                        "logprobs": {"type": ["object", "null"]},
                        "finish_reason": {"enum": FINISH_REASONS},
                    },
                },
            },
            "usage": {"$ref": "#/components/schemas/Usage"},
        },
    },
    "Usage": {
        "type": "object",
        "required": ["prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details"],
        "properties": {
            "prompt_tokens": {"type": "integer", "minimum": 0},
            "completion_tokens": {"type": "integer", "minimum": 0},
            "total_tokens": {"type": "integer", "minimum": 0},
            "prompt_tokens_details": {"type": "object", "required": ["cached_tokens"]},
        },
    },
    "Tokenized": {
        "type": "object",
        "required": ["count", "max_model_len", "tokens", "token_strs"],
        "properties": {
            "count": {"type": "integer", "minimum": 0},
            "max_model_len": {"type": "integer", "minimum": 1},
            "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "token_strs": {"type": ["array", "null"], "items": {"type": "string"}},
        },
    },
    "Detokenized": {
        "type": "object",
        "required": ["prompt"],
        "properties": {"prompt": {"type": "string"}},
    },
    "Rendered": {
        "type": "object",
        "required": ["model", "system_fingerprint", "text", "token_ids", "count", "max_model_len"],
        "properties": {
            "model": {"type": "string"},
            "system_fingerprint": {"type": "string"},
            "text": {"type": "string"},
            "token_ids": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "count": {"type": "integer", "minimum": 0},
            "max_model_len": {"type": "integer", "minimum": 1},
        },
    },
    "ResponseObject": {
        "type": "object",
        "required": ["id", "object", "status", "model", "output", "usage"],
        "properties": {
            "id": {"type": "string", "pattern": "^resp_[0-9a-f]{32}$"},
            "object": {"const": "response"},
            "status": {"enum": ["completed", "incomplete", "cancelled", "failed"]},
            "output": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": "object"},
        },
    },
    "MessageObject": {
        "type": "object",
        "required": ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
        "properties": {
            "id": {"type": "string", "pattern": "^msg_[0-9a-f]{32}$"},
            "type": {"const": "message"},
            "role": {"const": "assistant"},
            "content": {"type": "array", "items": {"type": "object"}},
            "usage": {"type": "object"},
        },
    },
    "TokenCount": {
        "type": "object",
        "required": ["input_tokens"],
        "properties": {"input_tokens": {"type": "integer", "minimum": 1}},
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            },
            "usage": {"type": "object", "description": "of what was done before the failure"},
        },
    },
    "MessageError": {
        "type": "object",
        "required": ["type", "error"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
