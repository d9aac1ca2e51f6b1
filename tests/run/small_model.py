# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen3-MoE models of random weights, written as Hugging Face directories without torch."""
import json
import pathlib
import random
import shutil
import struct


def random_floats(rng, count, exponent):
    """Bytes of that many fp32 numbers of either sign between 2^exponent and twice that."""
    word = lambda value: int.from_bytes(value.to_bytes(4, "little") * count, "little")  # noqa: E731
    bits = int.from_bytes(rng.randbytes(4 * count), "little")
    return (bits & word(0x807FFFFF) | word(127 + exponent << 23)).to_bytes(4 * count, "little")


def moe_shapes_of(config):
    hidden, head, inner = config["hidden_size"], config["head_dim"], config["moe_intermediate_size"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(config["num_hidden_layers"]):
        layer = {"self_attn.q_proj.weight": [q, hidden], "self_attn.k_proj.weight": [kv, hidden], "self_attn.v_proj.weight": [kv, hidden],
                 "self_attn.o_proj.weight": [hidden, q], "self_attn.q_norm.weight": [head], "self_attn.k_norm.weight": [head],
                 "mlp.gate.weight": [config["num_experts"], hidden], "input_layernorm.weight": [hidden],
                 "post_attention_layernorm.weight": [hidden]}
        for e in range(config["num_experts"]):
            layer.update({f"mlp.experts.{e}.gate_proj.weight": [inner, hidden], f"mlp.experts.{e}.up_proj.weight": [inner, hidden],
                          f"mlp.experts.{e}.down_proj.weight": [hidden, inner]})
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def shapes_of(config):
    if config["model_type"] == "qwen3_moe":
        return moe_shapes_of(config)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(config["num_hidden_layers"]):
        for name, shape in {"self_attn.q_proj.weight": [hidden, hidden], "self_attn.q_proj.bias": [hidden],
                            "self_attn.k_proj.weight": [kv, hidden], "self_attn.k_proj.bias": [kv],
                            "self_attn.v_proj.weight": [kv, hidden], "self_attn.v_proj.bias": [kv],
                            "self_attn.o_proj.weight": [hidden, hidden], "mlp.gate_proj.weight": [inner, hidden],
                            "mlp.up_proj.weight": [inner, hidden], "mlp.down_proj.weight": [hidden, inner],
                            "input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden]}.items():
            shapes[f"model.layers.{i}.{name}"] = shape
    return shapes


def write_model(folder, config, seed=7, exponent=-6):
    """config.json and model.safetensors, in a new folder; the embedding is the head, too."""
    rng = random.Random(seed)
    header, blobs, at = {}, [], 0
    for name, shape in shapes_of(config).items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        blob = struct.pack("<f", 1.0) * count if "norm" in name else random_floats(rng, count, exponent)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder = pathlib.Path(folder)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    (folder / "config.json").write_text(json.dumps(dict(config, tie_word_embeddings=True, torch_dtype="float32"), indent=1))
    return folder


def tiny_config(vocab_size, eos):
    return {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 1, "vocab_size": vocab_size,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": eos}


def moe_config(vocab_size, eos):
    return {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": vocab_size,
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": eos}


def write_moe(folder, like):
    """A sparse model of random weights with the tokenizer of another."""
    config = json.loads(pathlib.Path(like, "config.json").read_text())
    write_model(folder, moe_config(config["vocab_size"], config["eos_token_id"]), exponent=-3)
    for path in pathlib.Path(like).glob("*token*"):
        shutil.copy(path, folder)
    return folder


def with_tokenizer(folder, model, like):
    """A copy of a model directory with the tokenizer of another, whose vocabulary is no larger."""
    shutil.copytree(model, folder)
    for path in pathlib.Path(like).glob("*token*"):
        shutil.copy(path, folder)
    return folder


def write_whole_text_tokenizer(folder, alphabet, texts, end="<end>"):
    """A tokenizer that knows the letters of `alphabet` and, as one token each, `end` and the texts. Returns the number of ids."""
    names = [*alphabet, end, *texts]
    added = [{"id": i, "content": name, "special": name == end, "normalized": False, "lstrip": False, "rstrip": False,
              "single_word": False} for i, name in enumerate(names) if i >= len(alphabet)]
    tokenizer = {"version": "1.0", "added_tokens": added, "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                 "decoder": None, "model": {"type": "BPE", "vocab": {c: i for i, c in enumerate(alphabet)}, "merges": []}}
    (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
    (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    return len(names)
