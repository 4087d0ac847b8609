"""schemathesis reads our own document and asks a real server: no 5xx, nothing that the document does not say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest
from real_house import House

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "15"))
"""Requests of each phase for each route."""
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.skipif(find_spec("schemathesis") is None, reason="the conformance extra is not installed")
def test_no_answer_is_a_server_error_or_undocumented(house: House, tmp_path: Path) -> None:
    document = httpx2.get(house.url + "/openapi.json").json()
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request") and "model" in schema["properties"]:
            schema["properties"]["model"]["enum"] = ["chat"]  # else nearly every request would be a 404
    for methods in document["paths"].values():
        for operation in methods.values():  # a deadline of 1 ms asks for a 504
            parameters = operation.get("parameters", [])
            operation["parameters"] = [p for p in parameters if not p["name"].endswith("deadline-ms")]
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", house.url),
            *("--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--mode", "all"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--no-shrink", "--continue-on-failure"),
            # A valid request may ask for thousands of tokens; what is said by then is an answer too.
            *("--header", "x-tiltyard-deadline-ms:3000", "--request-timeout", "30"),
            *("--warnings", "off", "--generation-database", "none", "--no-color"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-1_000:]
    assert int(re.search(r"(\d[\d,]*) generated", done.stdout)[1].replace(",", "")) > 500, done.stdout  # type: ignore[index]
