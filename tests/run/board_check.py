#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Looks at the page of a growing run with a headless Chromium: the curves move, a sample opens on a click, text of a run is
never taken as HTML; and TensorBoard's own reader lists the scalars. Exit code 77: skipped, with the reason."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import webdriver  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 60


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def said(text):
    print(f"ok  {text}", flush=True)


def install_chromium():
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        skip("no chromium and chromium-driver, and no right to install them")
    print("installing chromium and chromium-driver")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = ["apt-get", "install", "-y", "--no-install-recommends", "chromium", "chromium-driver", "fonts-dejavu-core"]
    if subprocess.run(command, **quiet).returncode != 0:
        subprocess.run(["apt-get", "update"], **quiet)
        if subprocess.run(command, **quiet).returncode != 0:
            skip("apt-get could not install chromium")


def check_live(browser, url):
    browser.open(url)
    browser.wait("window.tandemState && tandemState.lines > 2", "the first lines are drawn")
    before = browser.run("return {...tandemState}")
    after = browser.wait(f"tandemState.points > {before['points']} && tandemState.step > {before['step']} && {{...tandemState}}",
                         "the curves move while the run goes on")
    assert after["run_state"] == "running", after
    said(f"curves move: step {before['step']} -> {after['step']}, points drawn {before['points']} -> {after['points']}, "
         f"{after['charts']} panels")
    painted = browser.run("return [...document.querySelectorAll('.panel')].filter(p => { const c = p.querySelector('canvas:last-of-type');"
                          " return c && c.width > 0; }).length")
    assert painted == after["charts"], (painted, after["charts"])
    for metric in ("reward/mean", "eval/accuracy", "actor/kl_ref", "actor/entropy", "staleness/lag_max", "time/train_s",
                   "throughput/tokens_per_s", "memory/kv_cache_bytes", "actor/grad_norm", "actor/lr"):
        assert browser.run(f"return !!document.querySelector('[title^=\"{metric} \"]')"), metric
    said("every asked-for metric has its curve")
    of = lambda metric: f"document.querySelector('[title^=\"{metric} \"]').closest('.panel')"  # noqa: E731
    assert browser.run(f"return {of('time/rollout_s')} === {of('time/train_s')}")
    for inner in ("time/reward_s", "time/wait_s"):
        assert browser.run(f"return {of(inner)} !== {of('time/rollout_s')}"), inner
    said("the stack of stages does not count again what happens within one")


def check_hover(browser):
    browser.run("""const it = document.querySelector('.canvas canvas:last-of-type'); const box = it.getBoundingClientRect();
        it.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 60}));""")
    browser.wait("""(() => { const at = [...document.querySelectorAll('.at')].map(it => it.textContent);
        return at.length > 5 && at[0].startsWith('step ') && at.every(it => it === at[0]); })()""", "hover shows one step everywhere")
    said("hover shows the values of one step in all panels")


def check_samples(browser):
    browser.run("location.hash = '#samples'")
    browser.wait("document.querySelectorAll('#groups .row').length > 0", "groups are listed")
    browser.run("document.getElementById('follow').click()")
    browser.wait("document.querySelector('#groups .row .snippet')", "groups stay")
    browser.click("#groups .row")
    opened = browser.wait("tandemState.open_samples > 0 && {...tandemState}", "a group opens on a click")
    cards = browser.run("return [...document.querySelectorAll('#group .sample')].map(c => c.innerText)")
    assert len(cards) == opened["open_samples"] == 8, opened
    assert all("advantage" in card and "answer" in card and "<answer>" in card for card in cards), cards[0]
    head = browser.run("return document.querySelector('#group .card').innerText")
    assert "expected answer" in head and "lag" in head and "<script>" in head, head
    said(f"a click opens group {opened['open_group']}: prompt, expected answer, {len(cards)} answers with score, parts, advantage")
    assert not browser.run("return window.tandemBroken || document.querySelector('#group script, #group img')"), "HTML of a sample ran"
    said("a prompt with <script> and <img onerror> is shown as text")


def check_step_back(browser):
    step = browser.run("return Number(document.getElementById('sample-step').textContent)")
    browser.run("document.getElementById('step-back').click()")
    browser.wait(f"tandemState.open_group < {12 * (step - 1)} && document.querySelectorAll('#group .sample').length === 8",
                 "the step before shows the group at the same place")
    said("the step slider goes back through the run")


def check_finished(browser):
    browser.run("location.hash = '#curves'")
    done = browser.wait(f"tandemState.run_state === 'finished' && tandemState.step === {STEPS} && {{...tandemState}}", "the run ends", 60)
    assert done["lines"] == STEPS, done
    said(f"finished run: {done['lines']} lines, {done['points']} points")


def check_tensorboard(run_dir):
    venv = ROOT / "build/tb-venv"
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=False)
    if subprocess.run([python, "-c", "import tensorboard"], capture_output=True).returncode != 0:
        if subprocess.run([venv / "bin/pip", "install", "-q", "tensorboard"], capture_output=True).returncode != 0:
            print("--  tensorboard could not be installed: its reader was not asked")
            return
    script = """if True:
        import json, sys
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        reader = EventAccumulator(sys.argv[1], size_guidance={'tensors': 0, 'scalars': 0}).Reload()
        from tensorboard.util import tensor_util
        number = lambda event: float(tensor_util.make_ndarray(event.tensor_proto))
        read = {tag: [(e.step, number(e)) for e in reader.Tensors(tag)] for tag in reader.Tags()['tensors']}
        read.update({tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()['scalars']})
        print(json.dumps(read))"""
    out = subprocess.run([python, "-c", script, run_dir + "/tensorboard"], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    read = json.loads(out.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in open(run_dir + "/metrics.jsonl")]
    names = {name for line in lines for name in line} - {"step"}
    assert set(read) == names, set(read) ^ names
    for line in lines:
        for name, value in line.items():
            if name != "step":
                step_value = dict(read[name])[line["step"]]
                assert abs(step_value - value) <= 1e-6 * abs(value), (name, line["step"], step_value, value)
    said(f"TensorBoard's reader lists {len(read)} scalars, all equal to metrics.jsonl")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixture", default=str(ROOT / "build/release/tests/unit/board/board_fixture"))
    parser.add_argument("--no-install", action="store_true", help="skip instead of installing Chromium")
    parser.add_argument("--screenshots", metavar="DIR", help="leave pictures of the page there")
    args = parser.parse_args()
    if not webdriver.installed():
        skip("no chromium and chromium-driver") if args.no_install else install_chromium()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = folder + "/addition"
        fixture = subprocess.Popen([args.fixture, run_dir, str(STEPS), "250"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            url = fixture.stdout.readline().strip()
            with webdriver.Browser() as browser:
                picture = lambda name: args.screenshots and browser.screenshot(f"{args.screenshots}/{name}.png")
                check_live(browser, url)
                check_hover(browser)
                picture("live")
                check_samples(browser)
                picture("samples")
                check_step_back(browser)
                check_finished(browser)
                picture("curves")
                for view in ("evaluation", "recipe"):
                    browser.run(f"location.hash = '#{view}'")
                    browser.wait("document.querySelectorAll('#evals .card, #summary .tile').length > 0", view)
                    picture(view)
                errors = browser.console_errors()
                assert not errors, errors
                said("no error in the browser's console")
        finally:
            fixture.stdin.close()
            fixture.wait(20)
        if not args.no_install:
            check_tensorboard(run_dir)
        trace = json.load(open(run_dir + "/trace.json"))
        said(f"trace.json holds {len(trace['traceEvents'])} events")
    print("board check passed")


if __name__ == "__main__":
    main()
