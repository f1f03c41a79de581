"""The sequences in the pipeline: which prompt parts the next step computes, what each step brought, and how a
sequence leaves. No socket, no line: who may come in is decided before.

Prompts are cut here, not by the pipeline, and every part but the last ends on a block's edge. The pipeline (OpenVINO
GenAI 2026.4) files a block under its tokens as soon as it is begun; a sequence that is cancelled between two parts
then leaves a half-computed block that later prompts take for a whole one, and answer wrongly from. A part that ends
on an edge leaves none, so a client can leave at any step and harm nobody."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from wastegate.local.messages import BLOCK, RUNTIME_ERRORS, Piece, Sampling, last_line
from wastegate.local.pipeline import OutOfMemoryError, Pipeline
from wastegate.local.prefix import PrefixIndex, block_keys
from wastegate.local.text import Writer

Ticket = tuple[int, int]
"""A call and which of its answers: each answer is a sequence, and takes a place of its own."""

_PART = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)


class Sequence(Struct):
    """One answer in the making."""

    ticket: Ticket
    prompt: NDArray[np.int64]
    keys: list[int]
    sampling: Sampling
    seed: int
    writer: Writer
    done: int = 0
    """Prompt tokens whose KV is there."""
    part: int = 0
    """Where the part that the pipeline has now ends; 0 for none."""
    cached: int = 0
    handle: Any = None
    settled: bool = False
    """Its last step brought a token: what it holds is whole, so it may be dropped."""
    leaving: bool = False
    """Its client is gone; it is dropped once settled."""
    tokens: list[int] = []

    @property
    def decoding(self) -> bool:
        return bool(self.tokens)


class Outcome(Struct, frozen=True):
    """What one step did."""

    seconds: float
    prefill: int
    decoding: int
    sequences: int
    generated: int
    kv_tokens: int
    clean: bool
    pieces: tuple[Piece, ...]
    ended: tuple[Ticket, ...]
    """Sequences that are gone, whatever the reason: their places are free."""
    starved: tuple[Ticket, ...]
    """Those of them that the pipeline gave up for want of KV."""
    refused: tuple[tuple[Ticket, str], ...]
    """Those of them whose sampling the runtime would not take, and what it said."""


class Batch:
    """Everything that is between admission and the last token."""

    def __init__(self, pipeline: Pipeline, *, batched_tokens: int, kv_blocks: int, prefix_caching: bool) -> None:
        self._pipeline = pipeline
        self._budget = batched_tokens
        self._index = PrefixIndex(kv_blocks if prefix_caching else 0)
        self._caching = prefix_caching
        self._sequences: dict[Ticket, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def add(self, ticket: Ticket, prompt: NDArray[np.int64], sampling: Sampling, seed: int) -> None:
        """A sequence that computes from the next step on. ``prompt`` has shape (tokens,)."""
        keys = block_keys(prompt) if self._caching else []
        writer = Writer(self._pipeline.table, sampling.stop)
        self._sequences[ticket] = Sequence(ticket, prompt, keys, sampling, seed, writer)

    def cancel(self, call: int) -> list[Ticket]:
        """Drop a call's sequences; the places that are free at once. One that the pipeline has begun to compute and
        not finished (a part that took more than its step, or a recomputation) is dropped when it has."""
        free = []
        for ticket, sequence in list(self._sequences.items()):
            if ticket[0] != call:
                continue
            if self._caching and sequence.handle is not None and not sequence.settled:
                sequence.leaving = True
            else:
                self._drop(sequence)
                free.append(ticket)
        return free

    def step(self) -> Outcome:
        """Hand the pipeline its prompt parts, run one step and read what came."""
        news = _News()
        prefill = self._plan_parts(news) if self._caching else self._reckon_parts(news)
        computing = [sequence for sequence in self._sequences.values() if sequence.handle is not None]
        decoding = sum(sequence.decoding for sequence in computing)
        kv_tokens = sum(len(sequence.tokens) + (sequence.part or sequence.done) for sequence in computing)
        began = time.perf_counter()
        self._pipeline.step()
        seconds = time.perf_counter() - began
        for sequence in computing:
            self._read(sequence, news)
        return Outcome(
            seconds, prefill, decoding, len(computing), news.generated, kv_tokens, news.clean, tuple(news.pieces),
            tuple(news.ended), tuple(news.starved), tuple(news.refused),
        )  # fmt: skip

    def _read(self, sequence: Sequence, news: _News) -> None:
        try:
            tokens, finish = self._pipeline.read(sequence.handle)
        except OutOfMemoryError:
            self._drop(sequence)
            news.starved.append(sequence.ticket)
            news.ended.append(sequence.ticket)
            return
        sequence.settled = bool(tokens or finish)
        if not sequence.settled:
            # Computing still: by plan where the pipeline cuts prompts itself, else the reckoning was wrong.
            news.clean = news.clean and not self._caching and sequence.done < len(sequence.prompt)
            return
        whole = sequence.part in (0, len(sequence.prompt))
        if sequence.part:
            self._part_done(sequence, whole)
        if sequence.leaving:
            self._drop(sequence)
            news.ended.append(sequence.ticket)
        elif whole:
            news.generated += len(tokens)
            piece = self._take(sequence, tokens, finish)
            news.pieces.append(piece)
            if piece.finish:
                self._drop(sequence)
                news.ended.append(sequence.ticket)

    def _plan_parts(self, news: _News) -> int:
        """Give the pipeline the prompt parts of the next step; how many tokens they are."""
        sequences = list(self._sequences.values())
        left = budget = max(BLOCK, self._budget - sum(sequence.decoding for sequence in sequences))
        coming: set[int] = set()
        for sequence in sequences:
            if sequence.handle is not None:
                continue
            self._find(sequence)
            block = sequence.done // BLOCK
            if block < len(sequence.keys) and sequence.keys[block] in coming:
                continue  # another computes that very block in this step: it will be in the cache at the next
            rest = len(sequence.prompt) - sequence.done
            take = rest if rest <= left else left // BLOCK * BLOCK
            if not take:
                break
            if not self._send(sequence, sequence.done + take, news):
                continue
            coming.update(sequence.keys[block : sequence.part // BLOCK])
            left -= take
        return budget - left

    def _reckon_parts(self, news: _News) -> int:
        """Without the cache parts cannot be joined, so the pipeline gets whole prompts and cuts them itself: how many
        tokens it will compute in the next step (running sequences first, then prompts in order)."""
        sequences = list(self._sequences.values())
        left = budget = max(0, self._budget - sum(sequence.decoding for sequence in sequences))
        for sequence in sequences:
            if sequence.handle is None and not self._send(sequence, len(sequence.prompt), news):
                continue
            sequence.part = 0  # it is the pipeline's to cut
            take = min(len(sequence.prompt) - sequence.done, left)
            sequence.done += take
            left -= take
        return budget - left

    def _find(self, sequence: Sequence) -> None:
        """Pass over the prompt blocks that the cache holds; the last token is always computed."""
        found = self._index.found(sequence.keys, sequence.done // BLOCK) * BLOCK
        found = min(found, len(sequence.prompt) - 1)
        sequence.cached += max(0, found - sequence.done)
        sequence.done = max(found, sequence.done)

    def _send(self, sequence: Sequence, part: int, news: _News) -> bool:
        """Give the pipeline a prompt up to ``part``. False where the runtime refuses it: one call's odd sampling must
        not end the loop for all."""
        whole = part == len(sequence.prompt)
        sampling = sequence.sampling if whole else _PART
        try:
            sequence.handle = self._pipeline.add(sequence.prompt[:part], sampling, sequence.seed)
        except RUNTIME_ERRORS as problem:
            self._drop(sequence)
            news.ended.append(sequence.ticket)
            news.refused.append((sequence.ticket, last_line(problem)))
            return False
        sequence.part = part
        return True

    def _part_done(self, sequence: Sequence, whole: bool) -> None:
        sequence.done, sequence.part = sequence.part, 0
        self._index.keep(sequence.keys[: sequence.done // BLOCK])
        if not whole:
            sequence.handle = None  # it was for that part only
            sequence.settled = False

    def _take(self, sequence: Sequence, tokens: list[int], finish: str) -> Piece:
        text = ""
        for token in tokens:
            sequence.tokens.append(token)
            text += sequence.writer.feed(token)
            if sequence.writer.stopped:
                finish = "stop"
                break
        if finish and not sequence.writer.stopped:
            text += sequence.writer.close()
        call, index = sequence.ticket
        return Piece(call, index, text, len(sequence.tokens), finish, sequence.cached)

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.ticket]
        if sequence.handle is not None:
            sequence.handle.cancel()  # no effect on one that has ended
        if self._caching and sequence.tokens:
            # The last token's own KV was never computed.
            held = np.concatenate([sequence.prompt, np.array(sequence.tokens[:-1], dtype=np.int64)])
            self._index.keep(block_keys(held))


class _News:
    """What the sequences of one step bring, as it is gathered."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ended: list[Ticket] = []
        self.starved: list[Ticket] = []
        self.refused: list[tuple[Ticket, str]] = []
        self.generated = 0
        self.clean = True
