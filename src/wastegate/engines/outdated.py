"""Flags that guides still name and engines do not have, each with what stands in its place today. Checked against the
flags of the versions that the engines' rooms were read in."""

from __future__ import annotations

_STREAM = 'no engine has such a flag: a client asks for streaming call by call, with "stream": true'
_TTL = (
    "no engine has it: a prefix cache has no time to live, the least recently used blocks go when room is needed; "
    "what the gateway believes of them expires by its own settings"
)
_FALLBACK = (
    "no engine has it: where a call goes when a replica fails is the gateway's, see [retry] and a route's failover in "
    "wastegate.toml"
)
_EVERYWHERE = {
    "--enable-streaming": _STREAM,
    "--cache-ttl": _TTL,
    "--fallback-strategy": _FALLBACK,
    "--fallback-to-original": _FALLBACK,
}

_DRAFT = (
    'gone: vLLM takes --speculative-config \'{"method": "draft_model", "model": …, "num_speculative_tokens": …}\'; '
    "here: --speculation draft --draft MODEL --draft-tokens K"
)
_NGRAM = (
    'gone: a key of --speculative-config, as in {"method": "ngram", "prompt_lookup_max": 4}; here: --speculation ngram'
)

VLLM: dict[str, str] = {
    **_EVERYWHERE,
    "--speculative-model": _DRAFT,
    "--num-speculative-tokens": _DRAFT,
    "--ngram-prompt-lookup-max": _NGRAM,
    "--ngram-prompt-lookup-min": _NGRAM,
    "--speculative-disable-by-batch-size": 'gone: "num_speculative_tokens_per_batch_size" in --speculative-config '
    "drafts less in wider batches; here: --draft-table 1-4:5,5-16:2,17-256:0",
    "--use-v2-block-manager": "gone: there is only one block manager now",
    "--num-scheduler-steps": "gone: --async-scheduling overlaps the host's work with a step, and is on by itself",
    "--swap-space": "gone: preempted sequences are computed again; --kv-offloading-size keeps KV in the host's memory "
    "(here: --kv-offload-gb)",
    "--preemption-mode": "gone: preempted sequences are computed again",
    "--num-lookahead-slots": "gone: the scheduler reckons the room for drafted tokens itself",
    "--max-seq-len-to-capture": "gone: --max-cudagraph-capture-size counts sequences, not tokens",
    "--guided-decoding-backend": "gone: --structured-outputs-config '{\"backend\": …}'",
    "--disable-log-requests": "gone: requests are not logged unless --enable-log-requests asks for it",
    "--task": "gone: --runner generate|pooling, and --convert",
}

SGLANG: dict[str, str] = {
    **_EVERYWHERE,
    "--speculative-model": "SGLang has --speculative-draft-model-path; here: --speculation standalone --draft MODEL",
    "--num-speculative-tokens": "SGLang has --speculative-num-steps and --speculative-num-draft-tokens; here: "
    "--draft-tokens K",
    "--speculative-config": "that is vLLM's: SGLang has --speculative-algorithm and its kin; here: --speculation",
    "--max-num-seqs": "that is vLLM's: SGLang calls it --max-running-requests; here: --sequences",
    "--max-model-len": "that is vLLM's: SGLang calls it --context-length; here: --context",
    "--gpu-memory-utilization": "that is vLLM's: SGLang calls it --mem-fraction-static; here: --memory",
    "--enable-prefix-caching": "that is vLLM's: SGLang's is on unless --disable-radix-cache; here: --no-prefix-caching",
}

_SPEC_MAX = "removed: --spec-draft-n-max for a draft model, --spec-ngram-mod-n-max for n-grams; here: --draft-tokens"

LLAMACPP: dict[str, str] = {
    **_EVERYWHERE,
    "--speculative-model": "llama.cpp calls it --spec-draft-model; here: --speculation draft-simple --draft MODEL",
    "--num-speculative-tokens": "llama.cpp calls it --spec-draft-n-max; here: --draft-tokens K",
    "--draft-max": _SPEC_MAX,
    "--draft": _SPEC_MAX,
    "--draft-n": _SPEC_MAX,
    "--draft-min": "removed: --spec-draft-n-min",
    "--draft-n-min": "removed: --spec-draft-n-min",
    "--max-num-seqs": "that is vLLM's: llama.cpp calls it --parallel; here: --sequences",
    "--max-model-len": "that is vLLM's: llama.cpp has --ctx-size for all slots together; here: --context, of each",
    "--gpu-memory-utilization": "that is vLLM's: llama.cpp puts --n-gpu-layers on the GPU; here: --gpu-layers",
}

LOCAL: dict[str, str] = {
    **_EVERYWHERE,
    "--speculative-model": "the engine that comes with wastegate has no speculation yet",
    "--num-speculative-tokens": "the engine that comes with wastegate has no speculation yet",
    "--max-num-seqs": "that is vLLM's; here: --sequences",
    "--max-model-len": "that is vLLM's; here: --context",
}
