"""`python -m tiltyard.worker SPEC.json`: where a worker process begins, before anything large is imported."""

from __future__ import annotations

import gc
import importlib
import sys

if __name__ == "__main__":
    # Imports and loading make hundreds of thousands of objects that stay; looking through them for garbage, again
    # and again, takes a tenth of the time until the worker is ready. It collects from then on.
    gc.disable()
    raise SystemExit(importlib.import_module("tiltyard.worker.process").main(sys.argv[1:]))
