"""The pipeline's own step loop, with nothing around it: what HTTP is measured against. Reads a number of streams a
line and answers with the seconds that they took.

    python raw_loop.py MODEL.gguf PROMPT_TOKENS OUTPUT_TOKENS [OPTIONS]

OPTIONS are fields of EngineOptions as JSON, in place of the engine's defaults.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from wastegate.local.messages import Sampling
from wastegate.local.pipeline import Pipeline
from wastegate.local.settings import EngineOptions, configure


def main(model: str, prompt: int, output: int, options: str = "{}") -> None:
    config = configure(EngineOptions(**{"name": "raw", **json.loads(options)}), Path(model)).loop
    pipeline = Pipeline(config)
    pipeline.warm_up(config.limits.cap, config.batched_tokens)
    print("ready", flush=True)
    chance = np.random.default_rng()
    sampling = Sampling(output, temperature=0.0, ignore_eos=True)
    for line in sys.stdin:
        prompts = [chance.integers(1000, 40_000, prompt).astype(np.int64) for _ in range(int(line))]
        began = time.perf_counter()
        handles = [pipeline.add(tokens, sampling) for tokens in prompts]
        while pipeline.busy:
            pipeline.step()
            for handle in handles:
                pipeline.read(handle)
        print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
