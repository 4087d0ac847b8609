"""Ask Transformers for the logits and greedy tokens of the tests' tiny models; write tests/golden/families.npz.

    python -m venv /tmp/oracle && /tmp/oracle/bin/pip install torch transformers gguf pydantic rfc8785
    PYTHONPATH=src:tests /tmp/oracle/bin/python tools/make_family_goldens.py

Weights are made from a seed (tests/family_models.py), in float32 with eager attention. A case whose greedy choice is
ever narrower than `MARGIN` is refused: its tokens would test rounding, not the family.
"""

from __future__ import annotations

import numpy as np

from family_models import CASES, GOLDENS
from family_oracle import oracle

MARGIN = 0.02


def main() -> None:
    """Write the file and say what is in it."""
    arrays = {}
    for name, case in CASES.items():
        logits, greedy, narrowest = oracle(case)
        print(f"{name}: spread {logits.std():.2f}, narrowest choice {narrowest:.3f}, {greedy[:6]}")
        if narrowest < MARGIN:
            raise SystemExit(f"{name}: give it another seed")
        arrays[f"{name}/logits"] = logits
        arrays[f"{name}/greedy"] = np.array(greedy, np.int32)
    np.savez_compressed(GOLDENS, **arrays)
    print(f"{GOLDENS}: {GOLDENS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
