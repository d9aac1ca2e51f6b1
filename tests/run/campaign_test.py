#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/device/campaign: a dry run in a minute; rows that hang, crash, are missing or print garbage are named and leave the others whole;
the report marks what is worse; a file in parts comes together."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import run_folder as rf
from run_folder import said

CAMPAIGN = rf.ROOT / "bench/device/campaign"
DRY_RUN_S = 60
# Prints figures; starts a child and hangs with it; dies; prints no figures, in two ways.
GOOD = "print('a word'); print('{\"step_s\": 1.5}')"
HANGS = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '300']); open(sys.argv[1], 'w').write(str(p.pid)); time.sleep(300)"
CRASHES = "import os, signal; print('{\"half\": 1}', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
PRINTS_GARBAGE = "print('step_s: 1.5')"
OTHER_OBJECT = "print('{\"rows\": {\"step_s\": 3}}')"


def loaded():
    """The script as a module."""
    sys.dont_write_bytecode = True  # none beside the script
    loader = importlib.machinery.SourceFileLoader("campaign", str(CAMPAIGN))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("campaign", loader))
    loader.exec_module(module)
    return module


def called(*words, code=0, **options):
    out = subprocess.run([sys.executable, CAMPAIGN, *map(str, words)], capture_output=True, encoding="utf-8", timeout=300, check=False,
                         **options)
    assert out.returncode == code, (words, out.returncode, out.stdout[-2000:], out.stderr[-2000:])
    return out


def rows_in(folder):
    return {row["name"]: row for row in json.loads((folder / "campaign.json").read_text())["rows"]}


def check_dry_run(program, scratch):
    begin = time.monotonic()
    called("--dry-run", "--tandem", program.tandem, "--out", scratch / "dry", "--work", scratch / "work")
    seconds = time.monotonic() - begin
    rows = rows_in(scratch / "dry")
    ended = {name: row["state"] for name, row in rows.items()}
    assert all(state == "done" or (state == "skipped" and rows[name]["said"] == "needs a device") for name, state in ended.items()), \
        {name: row["said"] for name, row in rows.items() if row["said"]}
    done = [name for name, state in ended.items() if state == "done"]
    for name in ("card", "ceilings", "starts", "wrong_option", "reward_raises", "models", "decode_tiny", "decode_tiny_eager", "train_tiny",
                 "grpo_tiny"):
        assert name in done, ended
    assert rows["decode_tiny"]["figures"]["4x16 ms_per_step"] > 0 and rows["grpo_tiny"]["figures"]["response_tokens"] > 0
    assert rows["reward_raises"]["figures"]["exit_code"] in (2, 3) and rows["reward_raises"]["figures"]["saved"] == "step_1"
    assert seconds < DRY_RUN_S, f"{seconds:.0f} s"
    said(f"a dry run ends in {seconds:.0f} s: {len(done)} rows done, {len(rows) - len(done)} need a device")


def planted(scratch):
    """Rows that go wrong, each with one that needs it, between rows that do not."""
    python = lambda name, text, *more: {"name": name, "command": [sys.executable, "-c", text, *map(str, more)], "seconds": 20,
                                        "needs": []}  # noqa: E731
    hangs = {**python("hangs", HANGS, scratch / "child"), "seconds": 2}
    missing = {**python("missing", ""), "command": [str(scratch / "no_such_program")]}
    rows = [python("first", GOOD), hangs, python("crashes", CRASHES), missing, python("garbage", PRINTS_GARBAGE),
            python("other", OTHER_OBJECT),
            {**python("needs_the_crash", GOOD), "needs": ["first", "crashes"]}, {**python("needs_a_tool", GOOD), "needs": ["no-such-tool"]},
            {**python("after_first", GOOD), "needs": ["first"]}, {**python("long", GOOD), "seconds": 10_000}, python("last", GOOD)]
    path = scratch / "rows.json"
    path.write_text(json.dumps(rows))
    return path


def check_planted(scratch):
    rows_file, out = planted(scratch), scratch / "planted"
    shown = called("--device", "cpu", "--rows", rows_file, "--out", out, "--work", scratch / "work", "--budget", 300).stdout
    rows = rows_in(out)
    wanted = {"first": ("done", ""), "hangs": ("hung", "killed after 2 s"), "crashes": ("failed", "signal SIGSEGV"),
              "missing": ("missing", "no_such_program: No such file"), "garbage": ("garbage", "prints no JSON object; last: step_s: 1.5"),
              "other": ("garbage", "object without figures"), "needs_the_crash": ("skipped", "needs crashes"),
              "needs_a_tool": ("skipped", "needs no-such-tool"), "after_first": ("done", ""), "long": ("skipped", "does not fit: 10000 s"),
              "last": ("done", "")}
    assert list(rows) == list(wanted), list(rows)
    for name, (state, words) in wanted.items():
        assert rows[name]["state"] == state and words in rows[name]["said"], (name, rows[name])
        assert name in shown and (state != "done" or rows[name]["figures"]["step_s"] == 1.5), shown
    child = int((scratch / "child").read_text())
    stat = pathlib.Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", "what a row started outlives its limit"
    assert "a word" in (out / "campaign.log").read_text()
    said("rows that hang, crash, are missing or print garbage are named, and the others are whole")

    called("--device", "cpu", "--rows", rows_file, "--out", out, "--work", scratch / "work", "--only", "after_first")
    assert list(rows_in(out)) == ["first", "after_first"], "a row and what it needs"
    called("--device", "cpu", "--rows", rows_file, "--out", out, "--only", "nothing", code=2)
    said("--only runs the rows that are named and those that they need")


def check_whole_after_each(scratch):
    """Whoever ends the campaign in a row finds those before it, and the row's processes are gone."""
    out = scratch / "ended"
    process = subprocess.Popen([sys.executable, CAMPAIGN, "--device", "cpu", "--rows", scratch / "ended.json", "--out", out],
                               stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    rf.wait_until(lambda: (scratch / "child2").exists() and (scratch / "child2").read_text(), 60, "the row does not begin")
    process.terminate()
    assert process.wait(timeout=60) == 143
    assert [row["state"] for row in rows_in(out).values()] == ["done"]
    stat = pathlib.Path(f"/proc/{(scratch / 'child2').read_text()}/stat")
    rf.wait_until(lambda: not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z", 20, "a row outlives its campaign")
    said("a campaign that is ended leaves a whole file, and no process")


def check_report(module, scratch):
    figures = {"decode_0.5b": {"1x128 ms_per_step": 1.0, "64x128 decode_tok_s": 1000}, "train_0.5b": {"step_s": 0.5},
               "peer_graph": {"0.5b 1x128 ms_per_step": 2}}
    campaign = lambda begun, **more: {"begun": begun, "commit": "abc", "card": "NVIDIA H200", "device": "cuda", "rows": [  # noqa: E731
        {"name": name, "state": "done", "said": "", "figures": {**row, **more.get(name.replace(".", "_"),
                                                                                  {})}} for name, row in figures.items()]}
    module.RESULTS = scratch / "results"
    module.RESULTS.mkdir()
    file = scratch / "campaign.json"
    for begun, more in (("2026-12-01T10:00:00Z", {}),
                        ("2026-12-02T10:00:00Z", {"decode_0_5b": {"1x128 ms_per_step": 1.04, "64x128 decode_tok_s": 900},
                                                  "train_0_5b": {"step_s": 0.6}})):
        file.write_text(json.dumps(campaign(begun, **more)))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            module.report(module.parser_of("report").parse_args([str(file), "--write"]))
    page = (module.RESULTS / "2026-12-02_h200.md").read_text()
    assert "2026-12-01_h200.json" in page, page
    worse = page.split("## Over 5 % worse\n")[1].split("\n\n")[0]
    assert worse.count("\n") == 1 and "64x128 decode_tok_s: 900, worse than last by 11 %" in worse, worse
    assert "train_0.5b step_s: 0.6, worse than last by 20 % and worse than predicted by 22 %" in worse, worse
    peers = json.loads((module.RESULTS / "peers_h200.json").read_text())
    assert [row["name"] for row in peers["rows"]] == ["peer_graph"]
    kept = {"name": "peer_graph", "needs": []}
    assert module.lacking(kept, {}, module.Place("cpu", "x", "y"),
                          "bench/results/peers_h200.json") == "they are in bench/results/peers_h200.json"
    names = {row["name"] for row in module.rows_of(module.Place("cuda", module.ROOT / "build/device/tandem", "/tmp"))}
    unknown = {figure for figure in module.PREDICTED if figure.split()[0] not in names}
    assert not unknown, f"predicted of no row: {unknown}"
    said("the report sets figures beside the last ones of the card and the predictions, and marks what is over 5 % worse")


def check_kernel_times(module):
    text = ('==PROF== Connected to process 7\n"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
            '"0","7","draw(const float *, long long)","gpu__time_duration.sum","ns","180,000"\n'
            '"1","7","void flash_fwd_splitkv_kernel<Flash>(Params)","gpu__time_duration.sum","ns","20,500"\n'
            '"2","7","nvjet_tst_64x8","gpu__time_duration.sum","ns","5000"\n'
            '"3","7","nvjet_tst_64x8","gpu__time_duration.sum","ns","7000"\n')
    launches = module.kernel_times(text)
    assert [us for _, us in launches] == [180, 20.5, 5, 7], launches
    figures = module.by_kind(launches)
    assert [figures[name] for name in ("launches", "draw_us", "product_us", "attention_us")] == [4, 180, 12, 20.5], figures
    assert "nvjet_tst_64x8 2 x 6.0 us" in figures["longest"], figures
    assert module.kernel_times("no kernels were profiled") == []
    said("what ncu prints is read, and summed by kind of kernel")


def check_parts(scratch):
    whole = scratch / "weights.bin"
    whole.write_bytes(bytes(range(256)) * 1000)
    called("carry", whole, scratch / "parts", "--part-bytes", 100_000)
    parts = sorted((scratch / "parts").glob("weights.bin.part[0-9]"))
    assert [part.stat().st_size for part in parts] == [100_000, 100_000, 56_000]
    for turn, part in enumerate(parts):  # one a call
        there = scratch / f"call{turn}"
        there.mkdir()
        for path in (part, scratch / "parts/weights.bin.parts.json"):
            (there / path.name).write_bytes(path.read_bytes())
        if turn == 1:
            (there / part.name).write_bytes(part.read_bytes()[:-1] + b"x")
            assert "not the part that was cut" in called("join", there / "weights.bin.parts.json", scratch / "joined", code=1).stderr
            (there / part.name).write_bytes(part.read_bytes())
        out = called("join", there / "weights.bin.parts.json", scratch / "joined").stdout
        assert turn == 2 or f"{turn + 1} of 3 parts" in out, out
    assert (scratch / "joined/weights.bin").read_bytes() == whole.read_bytes() and len(list((scratch / "joined").iterdir())) == 1
    said("a file that was cut into parts comes together, and a part that changed is named")


def main():
    program, module = rf.built_program(), loaded()
    with tempfile.TemporaryDirectory(prefix="tandem_campaign_") as name:
        scratch = pathlib.Path(name)
        (scratch / "ended.json").write_text(json.dumps([
            {"name": "good", "command": [sys.executable, "-c", GOOD], "seconds": 20, "needs": []},
            {"name": "hangs", "command": [sys.executable, "-c", HANGS, str(scratch / "child2")], "seconds": 60, "needs": []}]))
        check_dry_run(program, scratch)
        check_planted(scratch)
        check_whole_after_each(scratch)
        check_report(module, scratch)
        check_kernel_times(module)
        check_parts(scratch)


if __name__ == "__main__":
    main()
