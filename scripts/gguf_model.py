#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a Hugging Face folder of a Llama's GGUF file with a byte-level BPE: scripts/gguf_model.py FILE FOLDER. Needs numpy and gguf.

The weights become bfloat16, in which the model was published: rounding moves them by at most 1/256 of their size, 4-bit blocks moved
them by up to half a step of the block before."""
import json
import pathlib
import re
import sys

import gguf
import numpy

CONTROL = 3  # gguf's type of tokens that no text is split into
DTYPE = "bfloat16"
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head", "attn_norm": "input_layernorm",
         "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# How each pre-tokenizer that we know cuts a text before the byte-level expression of GPT-2.
PRE_TOKENIZERS = {"smollm": [{"type": "Digits", "individual_digits": True}], "gpt-2": []}


class Unfit(Exception):
    """The file is another than what this makes a folder of."""


def hugging_face_name(name):
    """blk.3.attn_q.weight is model.layers.3.self_attn.q_proj.weight."""
    layer, part = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name).groups() if name.endswith(".weight") else (None, name)
    if part not in NAMES:
        raise Unfit(f"holds a tensor {name}, which no Llama has")
    return (f"model.layers.{layer}." if layer else "") + NAMES[part] + ".weight"


def halves_of_heads(rows, heads):
    """GGUF has the two parts that a rotation turns side by side, Hugging Face each in its half of the head."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def weights_of(reader, config):
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        part = tensor.name.split(".")[-2]
        yield hugging_face_name(tensor.name), halves_of_heads(values, heads[part]) if part in heads else values


def bfloat16_bytes(values):
    """Rounded to the nearest, ties to even."""
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, weights):
    header, data = {"__metadata__": {"format": "pt"}}, bytearray()
    for name, values in weights:
        begin = len(data)
        data += bfloat16_bytes(values)
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return header


def config_of(value):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "vocab_size": len(value("tokenizer.ggml.tokens")), "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"), "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": value("llama.attention.head_count"), "num_key_value_heads": value("llama.attention.head_count_kv"),
        "max_position_embeddings": value("llama.context_length"), "rope_theta": value("llama.rope.freq_base"), "rope_scaling": None,
        "rms_norm_eps": float(f"{value('llama.attention.layer_norm_rms_epsilon'):.6g}"), "torch_dtype": DTYPE, **ids_of(value)}


def ids_of(value):
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": value(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}


def tokenizer_of(value):
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    pre = value("tokenizer.ggml.pre")
    if value("tokenizer.ggml.model") != "gpt2" or pre not in PRE_TOKENIZERS:
        raise Unfit(f"has a tokenizer {value('tokenizer.ggml.model')}, {pre}; known is gpt2 with one of {', '.join(PRE_TOKENIZERS)}")
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": bytes_of,
        "added_tokens": [{"id": i, "content": tokens[i], **special} for i, kind in enumerate(types) if kind == CONTROL],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*PRE_TOKENIZERS[pre], bytes_of]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": value("tokenizer.ggml.merges")}}


def tokenizer_config_of(value):
    tokens = value("tokenizer.ggml.tokens")
    named = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False,
        "model_max_length": value("llama.context_length"), "chat_template": value("tokenizer.chat_template"),
        **{name: tokens[value(f"tokenizer.ggml.{key}_token_id")] for name, key in named.items()}}


def convert(file, folder):
    reader = gguf.GGUFReader(file)

    def value(key):
        if key not in reader.fields:
            raise Unfit(f"says nothing of {key}")
        return reader.fields[key].contents()

    if value("general.architecture") != "llama":
        raise Unfit(f"holds a {value('general.architecture')}, and only a Llama is known here")
    config = config_of(value)
    written = write_safetensors(folder / "model.safetensors", weights_of(reader, config))
    config["tie_word_embeddings"] = "lm_head.weight" not in written
    for name, content in {"config.json": config, "generation_config.json": ids_of(value), "tokenizer.json": tokenizer_of(value),
                          "tokenizer_config.json": tokenizer_config_of(value)}.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    try:
        convert(sys.argv[1], pathlib.Path(sys.argv[2]))
    except Unfit as e:
        sys.exit(f"{sys.argv[1]}: {e}")
