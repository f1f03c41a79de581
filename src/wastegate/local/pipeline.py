"""OpenVINO GenAI's continuous-batching pipeline, as the step loop needs it: load, warm up, add, step, read. The
only room that imports the runtime's pipeline; no queue, no socket."""

from __future__ import annotations

import os
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from wastegate.local.gguf import read_gguf
from wastegate.local.messages import RUNTIME_ERRORS, LoopConfig, Sampling, last_line
from wastegate.local.text import token_bytes

COLD = 1e-5
"""Temperatures below it are taken as 0: the runtime's 32-bit numbers make noise, or nothing, of smaller ones."""


class LoadError(RuntimeError):
    """The runtime cannot load the model; one line says why."""


class OutOfMemoryError(RuntimeError):
    """The pipeline gave a sequence up: its KV does not fit."""


class Pipeline:
    """A loaded model. Not for threads: ``step`` keeps the interpreter's lock for its whole length.

    Raises :class:`LoadError`.
    """

    def __init__(self, config: LoopConfig) -> None:
        import openvino_genai as genai

        self._genai = genai
        info = read_gguf(Path(config.model))
        tokenizer = genai.Tokenizer(config.model)
        self.table = token_bytes(_by_id(tokenizer.get_vocab()), info.control_tokens, info.tokenizer)
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = config.kv_blocks
        scheduler.max_num_seqs = config.max_sequences
        scheduler.max_num_batched_tokens = config.batched_tokens
        scheduler.enable_prefix_caching = config.prefix_caching
        self.properties = _properties(config)
        try:
            self._pipe = genai.ContinuousBatchingPipeline(config.model, tokenizer, scheduler, "CPU", **self.properties)
        except RUNTIME_ERRORS as error:
            raise LoadError(f"{config.model}: the runtime cannot load it: {last_line(error)}") from error
        defaults = self._pipe.get_config()
        self._ends = (defaults.eos_token_id, defaults.stop_token_ids)
        self._number = 0

    def add(self, prompt: np.ndarray[Any, Any], sampling: Sampling, seed: int = 0) -> Any:
        """A new sequence, from a (tokens,) int64 prompt; its handle, for :meth:`read` or its own ``cancel()``.

        Raises RuntimeError where the runtime refuses the sampling.
        """
        import openvino

        self._number += 1
        return self._pipe.add_request(
            self._number, openvino.Tensor(prompt.reshape(1, -1)), self._config(sampling, seed)
        )

    def step(self) -> None:
        self._pipe.step()

    @property
    def busy(self) -> bool:
        return bool(self._pipe.has_non_finished_requests())

    def read(self, handle: Any) -> tuple[list[int], str]:
        """Tokens since the last read, and "", "stop" or "length". Raises :class:`OutOfMemoryError`."""
        tokens: list[int] = []
        finish = ""
        while handle.can_read():
            for output in handle.read().values():
                tokens += output.generated_ids
                finish = _FINISH.get(output.finish_reason.name, "")
        if not finish and handle.get_status().name == "IGNORED":
            raise OutOfMemoryError
        return tokens, finish

    def kv(self) -> tuple[float, int]:
        """Share of KV blocks in use (0 to 1), and the bytes that the cache takes in all."""
        metrics = self._pipe.get_metrics()
        return metrics.cache_usage / 100, metrics.kv_cache_size_in_bytes

    def settings(self) -> dict[str, str]:
        """The runtime properties that were asked for and the cores that are allowed, as text."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        return {**{key: str(value) for key, value in self.properties.items()}, "cores": str(cores)}

    def warm_up(self, cap: int, batched_tokens: int) -> None:
        """Run one full prefill and a few decoding steps at batch widths up to the cap: the runtime prepares its kernels
        by shape on first use, which would otherwise be some client's wait."""
        for width in takewhile(lambda width: width <= cap, (1, 2, 4, 8, 16, 32, 64)):
            sampling = Sampling(max_tokens=3, temperature=0.0, ignore_eos=True)
            length = max(8, batched_tokens // width - 2)
            prompt = np.arange(length, dtype=np.int64) + 17
            # Held until they end: the pipeline drops a sequence whose handle is gone.
            handles = [self.add(np.roll(prompt, number), sampling) for number in range(width)]
            while self.busy:
                self.step()
            del handles

    def _config(self, sampling: Sampling, seed: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.ignore_eos = sampling.ignore_eos
        config.eos_token_id, config.stop_token_ids = self._ends
        config.presence_penalty = sampling.presence_penalty
        config.frequency_penalty = sampling.frequency_penalty
        config.repetition_penalty = sampling.repetition_penalty
        if sampling.temperature >= COLD:
            config.do_sample = True
            config.temperature = sampling.temperature
            config.top_p = max(sampling.top_p, COLD)
            config.rng_seed = seed
            if sampling.top_k > 0:
                config.top_k = sampling.top_k
            if sampling.min_p > 0:
                config.min_p = sampling.min_p
        return config


_FINISH = {"STOP": "stop", "TOOL_CALL": "stop", "LENGTH": "length"}


def _by_id(vocabulary: dict[bytes, int]) -> list[bytes]:
    table = [b""] * (max(vocabulary.values()) + 1)
    for piece, token in vocabulary.items():
        table[token] = piece
    return table


def _properties(config: LoopConfig) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    if config.hint:
        properties["PERFORMANCE_HINT"] = config.hint
    if config.threads:
        properties["INFERENCE_NUM_THREADS"] = config.threads
    if config.kv_precision:
        properties["KV_CACHE_PRECISION"] = config.kv_precision
    if config.inference_precision:
        properties["INFERENCE_PRECISION_HINT"] = config.inference_precision
    if config.cores and hasattr(os, "sched_getaffinity"):
        # Bound already; the runtime must not move its threads elsewhere by its own reckoning.
        properties["ENABLE_CPU_PINNING"] = False
    return properties
