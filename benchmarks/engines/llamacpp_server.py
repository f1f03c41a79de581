"""llama.cpp's server, as the package xllamacpp embeds it: runs in that package's environment and prints its address.

python llamacpp_server.py MODEL.gguf STREAMS CONTEXT
"""

from __future__ import annotations

import os
import signal
import sys

import xllamacpp


def main(model: str, streams: int, context: int) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.endpoint_metrics = True
    params.n_parallel = streams
    params.n_ctx = streams * context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    server = xllamacpp.Server(params)
    print(f"ready {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
