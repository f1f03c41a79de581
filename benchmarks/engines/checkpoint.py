"""Writes a llama-like GGUF's weights as a BF16 checkpoint of the kind that vLLM reads. Runs in vLLM's environment.

    python checkpoint.py MODEL.gguf FOLDER

Every number comes from the GGUF (4-bit weights are spread out to BF16), so both engines hold the same model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_up": "mlp.up_proj", "ffn_gate": "mlp.gate_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip


def main(source: Path, folder: Path) -> None:
    reader = gguf.GGUFReader(str(source))
    beside = folder.with_name(folder.name + ".making")
    beside.mkdir(parents=True, exist_ok=True)
    config = read_config(reader)
    weights = {name_of(tensor.name): weight_of(tensor, config) for tensor in reader.tensors}
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    save_file(weights, beside / "model.safetensors", metadata={"format": "pt"})
    (beside / "config.json").write_text(json.dumps(config, indent=1))
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(beside)
    os.replace(beside, folder)


def read_config(reader: Any) -> dict[str, Any]:
    """The header in the words of a Hugging Face configuration."""

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    kind = field("general.architecture")
    if kind != "llama":
        raise SystemExit(f"{kind} checkpoints are not written here, only llama's")
    width, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": width,
        "head_dim": width // heads,
        "num_attention_heads": heads,
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "num_hidden_layers": field("llama.block_count"),
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": field("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": field("llama.rope.freq_base"),
        "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
    }


def name_of(tensor: str) -> str:
    """blk.3.attn_q.weight → model.layers.3.self_attn.q_proj.weight"""
    parts = tensor.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    return f"{WHOLE[parts[0]]}.weight"


def weight_of(tensor: Any, config: dict[str, Any]) -> torch.Tensor:
    weight = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        # GGUF keeps the two numbers of a rotary pair side by side; here the pair's halves are apart.
        heads = config["num_attention_heads" if "attn_q" in tensor.name else "num_key_value_heads"]
        rows, columns = weight.shape
        pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
        weight = np.concatenate([pairs[:, :, 0], pairs[:, :, 1]], axis=1).reshape(rows, columns)
    return torch.from_numpy(np.ascontiguousarray(weight)).to(torch.bfloat16)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
