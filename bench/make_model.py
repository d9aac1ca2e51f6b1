#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_model.py tiny|small|0.5b FOLDER [--labels N]: a Qwen2 model with random weights and no tokenizer, of the shapes the benchmarks are
quoted for; with labels, a reward model (one) or classifier. Times do not depend on the values. Needs numpy."""
import argparse
import json
import pathlib
import struct

import numpy

SHAPES = {
    "tiny": {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
             "intermediate_size": 352, "vocab_size": 512, "max_position_embeddings": 4096},
    "small": {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
              "intermediate_size": 1408, "vocab_size": 8192, "max_position_embeddings": 8192},
    "0.5b": {"hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64,
             "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 8192},
}
COMMON = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6,
          "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
          "use_sliding_window": False, "sliding_window": None, "attention_dropout": 0.0, "initializer_range": 0.02}


def shapes_of(c):
    """Name -> shape of every tensor."""
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = (c[name] * c["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(c["num_hidden_layers"]):
        layer = {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
                 "self_attn.q_proj.weight": [q, hidden], "self_attn.k_proj.weight": [kv, hidden], "self_attn.v_proj.weight": [kv, hidden],
                 "self_attn.q_proj.bias": [q], "self_attn.k_proj.bias": [kv], "self_attn.v_proj.bias": [kv],
                 "self_attn.o_proj.weight": [hidden, q], "mlp.gate_proj.weight": [inner, hidden], "mlp.up_proj.weight": [inner, hidden],
                 "mlp.down_proj.weight": [hidden, inner]}
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def write_model(shape, folder, labels=0, seed=0):
    config = {**COMMON, **SHAPES[shape], "max_window_layers": SHAPES[shape]["num_hidden_layers"]}
    shapes = shapes_of(config)
    if labels:
        config["architectures"] = ["Qwen2ForSequenceClassification"]
        config["id2label"] = {i: f"LABEL_{i}" for i in range(labels)}
        shapes["score.weight"] = [labels, config["hidden_size"]]
    random = numpy.random.default_rng(seed)
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, dims in shapes.items():
        values = random.standard_normal(dims, dtype=numpy.float32) * numpy.float32(0.02)
        blobs.append((values + ("norm" in name)).astype("<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": dims, "data_offsets": [at, at + len(blobs[-1])]}
        at += len(blobs[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--labels", type=int, default=0, help="scores a token gets in place of logits")
    options = parser.parse_args()
    write_model(options.shape, options.folder, options.labels)


if __name__ == "__main__":
    main()
