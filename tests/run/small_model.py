# SPDX-License-Identifier: Apache-2.0
"""Qwen2, Qwen3-MoE and DeepSeek-V3 models of random weights, written as Hugging Face directories without torch."""
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
        layer.update(expert_shapes("mlp.experts.", config["num_experts"], hidden, inner))
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def expert_shapes(prefix, count, hidden, inner):
    return {f"{prefix}{e}.{name}_proj.weight": [hidden, inner] if name == "down" else [inner, hidden]
            for e in range(count) for name in ("gate", "up", "down")}


def mla_shapes_of(config):
    hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["moe_intermediate_size"]
    nope, rope, value, rank = (config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden],
              "lm_head.weight": [config["vocab_size"], hidden]}
    for i in range(config["num_hidden_layers"]):
        layer = {"self_attn.q_a_proj.weight": [config["q_lora_rank"], hidden], "self_attn.q_a_layernorm.weight": [config["q_lora_rank"]],
                 "self_attn.q_b_proj.weight": [heads * (nope + rope), config["q_lora_rank"]],
                 "self_attn.kv_a_proj_with_mqa.weight": [rank + rope, hidden], "self_attn.kv_a_layernorm.weight": [rank],
                 "self_attn.kv_b_proj.weight": [heads * (nope + value), rank], "self_attn.o_proj.weight": [hidden, heads * value],
                 "input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden]}
        if i < config["first_k_dense_replace"]:
            layer.update({f"mlp.{name}": shape for name, shape in expert_shapes("", 1, hidden, config["intermediate_size"]).items()})
            layer = {name.replace("mlp.0.", "mlp."): shape for name, shape in layer.items()}
        else:
            layer.update({"mlp.gate.weight": [config["n_routed_experts"], hidden],
                          "mlp.gate.e_score_correction_bias": [config["n_routed_experts"]],
                          **expert_shapes("mlp.experts.", config["n_routed_experts"], hidden, inner)})
            layer.update({name.replace("0.", "", 1): shape
                          for name, shape in expert_shapes("mlp.shared_experts.", 1, hidden, inner * config["n_shared_experts"]).items()})
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    return shapes


def shapes_of(config):
    special = {"qwen3_moe": moe_shapes_of, "deepseek_v3": mla_shapes_of}.get(config["model_type"])
    if special:
        return special(config)
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
    """config.json and model.safetensors, in a new folder."""
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
    tied = "lm_head.weight" not in header
    (folder / "config.json").write_text(json.dumps(dict(config, tie_word_embeddings=tied, torch_dtype="float32"), indent=1))
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


def mla_config(vocab_size, eos):
    return {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
            "num_attention_heads": 2, "num_hidden_layers": 2, "num_key_value_heads": 2, "vocab_size": vocab_size,
            "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1, "n_group": 2,
            "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "moe_layer_freq": 1,
            "scoring_func": "sigmoid", "topk_method": "noaux_tc", "attention_bias": False,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "eos_token_id": eos}


def write_moe(folder, like, config_of=moe_config, **changed):
    """A model of random weights with the tokenizer of another; sparse unless told otherwise."""
    config = json.loads(pathlib.Path(like, "config.json").read_text())
    write_model(folder, {**config_of(config["vocab_size"], config["eos_token_id"]), **changed}, exponent=-3)
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


def reward_model_of(language_model, folder):
    """The same layers with a score head in place of the logits."""
    shutil.copytree(language_model, folder)
    config = json.loads((folder / "config.json").read_text())
    family = config["architectures"][0].removesuffix("ForCausalLM")
    config.update(architectures=[family + "ForSequenceClassification"], id2label={"0": "score"}, pad_token_id=0)
    (folder / "config.json").write_text(json.dumps(config))
    weights = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", weights[:8])[0]
    header, data = json.loads(weights[8:8 + length]), weights[8 + length:]
    hidden = config["hidden_size"]
    head = b"".join(struct.pack("<f", ((i * 37) % 19 - 9) / 19) for i in range(hidden))
    header["score.weight"] = {"dtype": "F32", "shape": [1, hidden], "data_offsets": [len(data), len(data) + len(head)]}
    header.pop("lm_head.weight", None)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + head)
    return folder
