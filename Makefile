# tiltyard: `make up` serves everything on loopback; `make test` runs every test.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
JOBS ?= 2

.PHONY: help up test conformance peers check format bench soak clean

help:            ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# `set -m` gives the server the terminal, so that Ctrl-C reaches it alone and make can end with its exit status.
up:              ## serve models, gateway and arena on http://127.0.0.1:8000 (ARGS="--port 9000")
	@$(PYTHON) tools/bootstrap.py web evals
	@set -m 2>/dev/null; $(BIN)/tiltyard up $(ARGS)

# Two processes, a file at a time each: what a file's tests share is made once.
test:            ## every test (ARGS="tests/engine -k prefix", JOBS=0 for one process)
	@$(PYTHON) tools/bootstrap.py web dev
	@$(BIN)/tiltyard models pull
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

conformance:     ## other people's clients against the real model (npm's too, where there is npm), and schemathesis
	@$(PYTHON) tools/bootstrap.py web dev conformance
	@$(BIN)/tiltyard models pull
	@if command -v npm >/dev/null; then npm install --no-save --no-package-lock --silent --prefix tests/conformance openai; fi
	@$(BIN)/python -m pytest tests/conformance $(ARGS)

peers:           ## real engines of others as workers: llama.cpp's server, and vLLM (TILTYARD_VLLM_PYTHON=...)
	@$(PYTHON) tools/bootstrap.py web dev peers
	@$(BIN)/tiltyard models pull
	@$(BIN)/python -m pytest tests/peers $(ARGS)

check:           ## formatter, linter, types, room arrows
	@$(PYTHON) tools/bootstrap.py web dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/clang-format --dry-run --Werror $$(find native -name '*.[ch]pp' -o -name '*.inl')
	@$(BIN)/towncrier build --draft --version next >/dev/null

format:          ## rewrite files as the formatter wants them
	@$(PYTHON) tools/bootstrap.py web dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/clang-format -i $$(find native -name '*.[ch]pp' -o -name '*.inl')

bench:           ## measure everything, beside the peers that are installed; writes docs/performance.md
	@$(PYTHON) tools/bootstrap.py web dev
	@$(BIN)/tiltyard models pull
	@$(BIN)/python bench/report.py $(ARGS)

soak:            ## load, voters and chaos on a real server, then what it kept and leaked (ARGS="--minutes 10")
	@$(PYTHON) tools/bootstrap.py web dev
	@$(BIN)/python bench/soak.py $(ARGS)

clean:           ## remove what was built
	rm -rf .venv build
