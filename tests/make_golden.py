"""Write minibert/data/golden.json: the stages of all-MiniLM-L6-v2 as transformers computes them.

python tests/make_golden.py
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch
import transformers

from minibert.checkpoints.hub import locate
from minibert.families.bert import BERT
from minibert.files import write_text_atomically
from minibert.parity.checkpoints import make_batch, open_upstream
from minibert.parity.golden import CHECKPOINT, entry
from minibert.parity.stages import record

FILE = Path(__file__).resolve().parent.parent / "minibert" / "data" / "golden.json"


def main() -> None:
    model, _ = open_upstream(locate(CHECKPOINT, download=False).folder, BERT, None, pooler=True)
    batch = make_batch(model.config, tokens=24)
    made_with = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "cpu": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
    }
    inputs = {name: getattr(batch, name).tolist() for name in ("input_ids", "attention_mask", "token_type_ids")}
    stages = [entry(place, tensor) for place, tensor in record(model, batch).items()]
    head = json.dumps({"checkpoint": CHECKPOINT, "made_with": made_with, **inputs})
    lines = ",\n".join(json.dumps(stage) for stage in stages)
    write_text_atomically(FILE, f'{head[:-1]}, "stages": [\n{lines}\n]}}\n')
    print(f"{FILE.name}: {len(stages)} stages, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
