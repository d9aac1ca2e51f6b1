#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models, tokenizers and rows as others publish them: what a file says is followed, or one line says what is not and names the file."""
import json
import pathlib
import shutil
import struct
import tempfile

import run_folder as rf
import small_model

checks = rf.Checks()
program = rf.built_program()
IDS = json.dumps({"ids": [1, 5, 3, 7, 2, 9, 4]}) + "\n"
ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 ?+:{}="
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def changed(model, name, **keys):
    """A copy of a model with other keys in its config.json; None takes a key out."""
    folder = model.parent / name
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config.update(keys)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


def add_tensor(folder, name, entry_of):
    """Writes one more tensor: entry_of takes header and values, and gives shape and bytes."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header, values = json.loads(data[8:8 + size]), data[8 + size:]
    shape, more = entry_of(header, values)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(values), len(values) + len(more)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + values + more)
    return folder


def add_head(folder, change):
    """Writes an lm_head.weight beside the embeddings: the same numbers, or others in its first bytes."""
    def head(header, values):
        begin, end = header[EMBEDDING]["data_offsets"]
        return header[EMBEDDING]["shape"], (struct.pack("<f", 3.0) if change else values[begin:begin + 4]) + values[begin + 4:end]

    return add_tensor(folder, HEAD, head)


def add_frequencies(folder):
    """As checkpoints of Llama's first years have them."""
    return add_tensor(folder, "model.layers.0.self_attn.rotary_emb.inv_freq", lambda header, values: ([8], bytes(32)))


def logprobs(model):
    return json.loads(program.done(["logprobs", "--model", model, "--threads", 1], stdin=IDS).stdout)["logprobs"]


def heads(model):
    tied = logprobs(model)
    checks.check(logprobs(add_head(changed(model, "same"), False)) == tied, "a tied head may be stored")
    untied = logprobs(add_head(changed(model, "own", tie_word_embeddings=False), True))
    checks.check(untied != tied, "a head of its own is used")
    checks.check(logprobs(add_head(changed(model, "absent-key", tie_word_embeddings=None), False)) == tied, "an absent key means not tied")
    checks.check(logprobs(add_frequencies(changed(model, "frequencies"))) == tied, "stored frequencies follow from config.json")
    other = add_head(changed(model, "other"), True)
    for command in (["logprobs"], ["generate"]):
        program.refused([*command, "--model", other], 2, f"{other}/config.json", "tie_word_embeddings", "true", HEAD, "differs from",
                        EMBEDDING, stdin=IDS if command == ["logprobs"] else '{"prompt_ids": [1]}\n')
    for name, value in (("no-head", False), ("no-head-no-key", None)):
        lacking = changed(model, name, tie_word_embeddings=value)
        program.refused(["logprobs", "--model", lacking], 2, str(lacking), f"holds no tensor `{HEAD}`", '"tie_word_embeddings": true',
                        stdin=IDS)
    rf.said("a head that differs from the embeddings it is tied to, and one that is missing, are refused")


def positions(model):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    alone = logprobs(changed(model, "yarn", rope_scaling=yarn))
    checks.check(alone != logprobs(model), "yarn is another rope")
    for name, keys in (("beside", {"rope_parameters": plain, "rope_scaling": yarn}),
                       ("inside", {"rope_parameters": {**yarn, "rope_theta": 1e4}}),
                       ("typed", {"rope_scaling": {**yarn, "rope_type": None, "type": "yarn"}}),
                       ("equal", {"rope_parameters": {**yarn, "rope_theta": 1e4}, "rope_scaling": {**yarn, "rope_theta": 1e4}})):
        checks.check(logprobs(changed(model, name, **keys)) == alone, f"yarn {name}")
    theta = changed(model, "two-thetas", rope_theta=None, rope_parameters={**plain, "rope_theta": 5e5}, rope_scaling=yarn)
    program.refused(["logprobs", "--model", theta], 2, f"{theta}/config.json: rope_parameters", "rope_theta is 500000", stdin=IDS)
    rf.said("rope_scaling counts beside rope_parameters, as in transformers")


def weights(model):
    empty = changed(model, "empty")
    (empty / "model.safetensors").unlink()
    line = program.refused(["logprobs", "--model", empty], 2, f"{empty}: holds no weights", "model.safetensors", stdin=IDS)
    checks.check("stdin" not in line, line)
    (empty / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    program.refused(["logprobs", "--model", empty], 2, f"{empty}: holds no weights that are read: it has pytorch_model.bin", stdin=IDS)
    (empty / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    program.refused(["logprobs", "--model", empty], 2, f"{empty}/model.safetensors: is a pointer of Git LFS", stdin=IDS)
    (empty / "config.json").write_text("<!DOCTYPE html><html>404</html>")
    program.refused(["logprobs", "--model", empty], 2, f"{empty}/config.json: is a web page", stdin=IDS)
    gguf = empty / "model.gguf"
    gguf.write_bytes(b"GGUF\x03\0\0\0")
    program.refused(["logprobs", "--model", gguf], 2, "model.gguf: is a GGUF file, no directory", stdin=IDS)
    rf.said("a model without weights that are read is named for what it has")


def adapters(model, root):
    adapter = model.parent / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base", "peft_type": "LORA"}')
    (adapter / "adapter_model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    for path in model.glob("*token*"):
        shutil.copy(path, adapter)
    for command in (["logprobs"], ["generate", "--prompt", "a"], ["talk"], ["eval", "--data", "synthetic", "--reward", "exact"],
                    ["run", rf.tiny_recipe(root / "adapter.yaml"), "--run-dir", root / "adapter_run"]):
        program.refused([*command, "--model", adapter], 2, f"{adapter}: holds a PEFT adapter of `org/base` and no model", "merge",
                        stdin=IDS)
    for path in adapter.glob("*token*"):
        path.unlink()
    program.refused(["tokenize", "--model", adapter], 2, f"{adapter}: holds a PEFT adapter and no tokenizer")
    beside = changed(model, "beside-adapter")
    shutil.copy(adapter / "adapter_config.json", beside)
    out = program.done(["generate", "--model", beside, "--prompt", "a", "--max-new-tokens", 2])
    checks.check(out.stderr.count("the PEFT adapter beside the model (adapter_config.json) is not applied") == 1, out.stderr)
    rf.said("an adapter is named in every command that takes a model, and one beside a model is not applied without a word")


def tokens(model):
    """Ids beyond tokenizer.json: read, and drawn."""
    beyond = changed(model, "beyond")
    count = len(ALPHABET) + 1
    (beyond / "added_tokens.json").write_text(json.dumps({"<new>": count}))
    out = program.done(["tokenize", "--model", beyond], stdin='{"text": "a <new> b"}\n')
    checks.check(json.loads(out.stdout)["ids"] == [0, ALPHABET.index(" "), count, ALPHABET.index(" "), 1], out.stdout)
    out = program.done(["detokenize", "--model", beyond], stdin=json.dumps({"ids": [0, count, 1]}) + "\n")
    checks.check(json.loads(out.stdout)["text"] == "a <new> b", out.stdout)
    out = program.done(["generate", "--model", beyond, "--prompt", "a", "--n", 40, "--max-new-tokens", 40, "--ignore-eos"])
    drawn = json.loads(out.stdout)
    checks.check(any(count in one["ids"] for one in drawn["completions"]), "the new token is drawn")
    checks.check(all(max(one["ids"]) <= count for one in drawn["completions"]), "and none beyond it")
    (beyond / "added_tokens.json").write_text(json.dumps({"<new>": 0}))
    program.refused(["generate", "--model", beyond, "--prompt", "a"], 2, "added_tokens.json", "<new>", "tokenizer.json gives that to `a`")
    rf.said("tokens that other files declare are read, drawn, and compared with tokenizer.json")


TEMPLATE = ("{% for m in messages %}{{ m.role }}{% if m.name is defined %}({{ m.name }}){% endif %}:{{ m.content }}"
            "{% if m.n is defined %}{{ m.n }}{% endif %} {% endfor %}")


def rows(model, root):
    """Null fields and long integers of messages, in chat, generate and a run."""
    template = root / "fields.jinja"
    template.write_text(TEMPLATE)
    messages = [{"role": "user", "content": "a?", "name": None}, {"role": "assistant", "content": None, "n": 12345678901234567890123}]
    written = "user:a? assistant:12345678901234567890123 "
    row = json.dumps({"messages": messages}) + "\n"
    out = program.done(["chat", "--model", model, "--template", template], stdin=row)
    checks.check(json.loads(out.stdout)["text"] == written, out.stdout)
    out = program.done(["generate", "--model", model, "--chat-template", template, "--max-new-tokens", 1], stdin=row)
    checks.check(json.loads(out.stdout)["prompt_ids"] == [ALPHABET.index(c) for c in written], out.stdout)
    data = root / "rows.jsonl"
    data.write_text(json.dumps({"question": messages, "answer": 123456789012345678901234567890}) + "\n")
    out = program.done(["eval", "--model", model, "--data", data, "--reward", "math", "--max-new-tokens", 2, "--chat-template", template])
    line = json.loads(out.stdout.splitlines()[0])
    checks.check(line["gold"] == "123456789012345678901234567890" and line["prompt"] == written, out.stdout)
    answer = "123456789012345678901234567890"
    out = program.done(["grade", "--rule", "exact"], stdin=f'{{"response": "{answer}", "gold": {answer}}}\n')
    checks.check(json.loads(out.stdout)["score"] == 1, out.stdout)

    twice = root / "twice.jsonl"
    twice.write_text('{"question": "2+2?", "answer": 4}\n{"question": "{prompt}", "answer": 5}\n'.replace("{prompt}", "a {prompt}"))
    run = root / "twice"
    program.done(["run", rf.tiny_recipe(root / "twice.yaml"), "--model", model, "--run-dir", run, "--steps", 1, "--no-eval",
                  *rf.sets({"data.train": twice, "data.prompt_template": "{prompt} again: {prompt}", "schedule.groups_per_step": 2})])
    seen = {prompt for (prompt,) in rf.rows(run, "SELECT DISTINCT prompt FROM samples")}
    checks.check(seen == {"2+2? again: 2+2?", "a {prompt} again: a {prompt}"}, str(seen))
    rf.said("null fields are absent, integers keep their digits, and each {prompt} of a template is filled")


def endings(model, root):
    """generation_config.json: what ends a response is followed by all, the rest is said by all."""
    said = changed(model, "said")
    free = json.loads(program.done(["generate", "--model", said, "--prompt", "a", "--temperature", 0, "--max-new-tokens", 12]).stdout)
    text = free["completions"][0]["text"]
    (said / "generation_config.json").write_text(json.dumps({
        "stop_strings": [text[2:4]], "eos_token_id": [len(ALPHABET), 7], "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1,
        "suppress_tokens": [1, 2], "presence_penalty": 0.5, "top_p": "0.9",
        "begin_suppress_tokens": None, "bad_words_ids": [], "num_beams": 1, "max_new_tokens": 99}))
    parts = [f"{said}/generation_config.json is not followed in: temperature 0.6, top_p \"0.9\", top_k 20, max_new_tokens 99, "
             "suppress_tokens [1,2], repetition_penalty 1.1, presence_penalty 0.5;"]
    out = program.done(["generate", "--model", said, "--prompt", "a", "--max-new-tokens", 12])
    checks.check(all(out.stderr.count(part) == 1 for part in parts), out.stderr)
    checks.check("begin_suppress" not in out.stderr and "num_beams" not in out.stderr and "bad_words" not in out.stderr, out.stderr)
    quiet = program.done(["generate", "--model", said, "--prompt", "a", "--temperature", 0, "--max-new-tokens", 12])
    first = json.loads(quiet.stdout)["completions"][0]
    checks.check(text[2:4] not in first["text"] and first["finish_reason"] == "stop" and text.startswith(first["text"]), quiet.stdout)
    longer = program.done(["generate", "--model", said, "--prompt", "a", "--temperature", 0, "--max-new-tokens", 12, "--ignore-eos"])
    checks.check(json.loads(longer.stdout)["completions"][0]["text"] == text, "no end of the model's counts where they are ignored")
    talked = program.done(["talk", "--model", said, "--chat-template", template_of(root), "--temperature", 0], stdin="a\n")
    checks.check("is not followed in: " in talked.stderr, talked.stderr)
    out = program.done(["eval", "--model", said, "--data", root / "twice.jsonl", "--reward", "exact", "--max-new-tokens", 12])
    checks.check("suppress_tokens [1,2]" in out.stderr, out.stderr)
    run = root / "said_run"
    settings = {"schedule.groups_per_step": 2, "rollout.max_new_tokens": 12, "data.max_rows": 2}
    out = program.done(["run", rf.tiny_recipe(root / "said.yaml"), "--model", said, "--run-dir", run, "--steps", 1, "--no-eval",
                        *rf.sets(settings)])
    checks.check("suppress_tokens [1,2], repetition_penalty 1.1, presence_penalty 0.5" in out.stderr, out.stderr)
    answers = [answer for (answer,) in rf.rows(run, "SELECT response FROM samples")]
    checks.check(answers and all(text[2:4] not in answer for answer in answers), "stop strings end answers of a run")
    rf.said("stop strings and several ends are followed, what is not is said in one line")


def template_of(root):
    path = root / "plain.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return path


def main():
    with tempfile.TemporaryDirectory(prefix="tandem_strange_models_") as name:
        root = pathlib.Path(name)
        config = small_model.tiny_config(64, len(ALPHABET))
        model = small_model.write_model(root / "model", config, exponent=-3)
        small_model.write_whole_text_tokenizer(model, ALPHABET, [])
        heads(model)
        positions(model)
        weights(model)
        adapters(model, root)
        tokens(model)
        rows(model, root)
        endings(model, root)
    checks.exit()


if __name__ == "__main__":
    main()
