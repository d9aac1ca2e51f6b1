#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Walks the page of a running, a finished, a failed and a killed run with a headless Chromium, in a wide and a narrow window, light and
dark; and TensorBoard's own reader lists the scalars. Exit code 77: skipped, with the reason."""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import webdriver  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 60
VIEWS = ("curves", "samples", "evaluation", "recipe")
WINDOWS = {"wide": (1400, 900), "narrow": (390, 844)}
SCHEMES = ("light", "dark")


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


class Run:
    """A made-up run and its page. `grow` may end by itself, or be killed."""

    def __init__(self, fixture, folder, steps, pause_ms, end="finish"):
        self.folder = pathlib.Path(folder)
        self.grow = subprocess.Popen([fixture, "grow", folder, str(steps), str(pause_ms), end], stderr=subprocess.DEVNULL)
        deadline = time.time() + 30
        while not (self.folder / "config.yaml").exists() and time.time() < deadline:
            time.sleep(0.05)
        self.serve = subprocess.Popen([fixture, "serve", folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.serve.stdout.readline().strip()

    def ask(self, sql, *values):
        with contextlib.closing(sqlite3.connect(self.folder / "samples.sqlite", timeout=10)) as store:
            return store.execute(sql, values).fetchall()

    def close(self):
        if self.grow.poll() is None:
            self.grow.kill()
        self.grow.wait(20)
        self.serve.stdin.close()
        self.serve.wait(20)


def open_page(browser, run, view):
    """Anew: another hash alone would not load the page again."""
    browser.open("about:blank")
    browser.open(f"{run.url}#{view}")
    browser.wait("window.tandemState && tandemState.polls > 0", "the page asked its server")


def show(browser, view):
    browser.run(f"location.hash = '#{view}'")
    browser.wait(f"tandemState.view === '{view}'", view)


def check_live(browser, run):
    open_page(browser, run, "curves")
    browser.wait("tandemState.lines > 2 && tandemState.charts > 5", "the first lines are drawn")
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
    browser.wait("tandemState.stages >= 8", "the timeline shows the stages of the last steps")
    lanes = browser.run("return [...document.querySelectorAll('#timeline .rank')].map(r => [r.firstChild.textContent, "
                        "r.querySelectorAll('.stage:not(.waits)').length, r.querySelectorAll('.waits').length])")
    assert [lane[0] for lane in lanes[:2]] == ["rank 0", "rank 1"] and lanes[0][1] == lanes[1][1] >= 4, lanes
    assert lanes[0][2] >= 2 and lanes[1][2] == 0, lanes
    said(f"the timeline has a row for each rank, {lanes[0][1]} stages, and shows where it waits")


def check_hover(browser):
    browser.run("""const it = document.querySelector('.canvas canvas:last-of-type'); const box = it.getBoundingClientRect();
        it.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 60}));""")
    browser.wait("""(() => { const at = [...document.querySelectorAll('.at')].map(it => it.textContent);
        return at.length > 5 && at[0].startsWith('step ') && at.every(it => it === at[0]); })()""", "hover shows one step everywhere")
    said("hover shows the values of one step in all panels")


# Panels whose picture has not the size of its place, or no picture.
WRONG_SIZES = """[...document.querySelectorAll('.panel:not(.example)')].filter(p => !p.hidden && !(() => {
    const place = p.querySelector('.canvas'), canvas = place.querySelector('canvas');
    if (!canvas) return false;
    const drawn = canvas.getBoundingClientRect(), panel = p.getBoundingClientRect();
    return Math.abs(drawn.width - place.clientWidth) <= 1 && drawn.width > panel.width - 40 && drawn.right <= panel.right &&
           Math.abs(drawn.height - 176) <= 1; })()).map(p => p.querySelector('h3').firstChild.textContent)"""


def check_chart_sizes(browser, run):
    """Whichever view the page was opened with, and whatever became of the window meanwhile."""
    for first in ("samples", "evaluation", "recipe", "curves"):
        browser.emulate(*WINDOWS["wide"], "light")
        open_page(browser, run, first)
        browser.wait("tandemState.lines > 2", "lines")
        if first == "evaluation":
            browser.emulate(*WINDOWS["narrow"], "light")
        if first == "recipe":
            browser.emulate(*WINDOWS["wide"], "dark")
        time.sleep(0.3)
        show(browser, "curves")
        browser.wait("tandemState.charts > 5", f"charts, opened from {first}")
        wrong = browser.run(f"return {WRONG_SIZES}")
        assert not wrong, f"opened from #{first}, drawn at a wrong size: {wrong}"
    show(browser, "samples")
    browser.emulate(*WINDOWS["narrow"], "dark")
    show(browser, "curves")
    browser.emulate(900, 900, "dark")
    time.sleep(0.3)
    wrong = browser.run(f"return {WRONG_SIZES}")
    assert not wrong, wrong
    browser.emulate(*WINDOWS["wide"], "light")
    time.sleep(0.3)
    said("charts have the size of their place, whichever view came first and however the window changed")


def check_colours(browser, run):
    open_page(browser, run, "curves")
    browser.wait("tandemState.charts > 5", "charts")
    panels = browser.run("""return [...document.querySelectorAll('.panel')].map(p => [p.querySelector('h3').firstChild.textContent,
        [...p.querySelectorAll('.legend i')].map(i => getComputedStyle(i).backgroundColor.match(/[0-9]+/g).map(Number))])""")
    most = max(len(colours) for _, colours in panels)
    assert most >= 12, most
    for title, colours in panels:
        for a, b in itertools.combinations(colours, 2):
            distance = sum((x - y) ** 2 for x, y in zip(a, b)) ** 0.5
            assert distance > 35, f"{title}: {a} and {b} look alike"
    said(f"no two series of a panel have one colour; the largest has {most}")


def check_curve_search(browser):
    browser.type("#curve-search", "KV_cache")
    shown = "[...document.querySelectorAll('.panel')].filter(p => p.offsetParent).map(p => p.querySelector('h3').firstChild.textContent)"
    browser.wait(f"{shown}.length === 1", "one panel is left")
    assert browser.run(f"return {shown}") == ["Memory by owner"]
    headings = browser.run("return [...document.querySelectorAll('#charts h2')].filter(h => h.offsetParent).length")
    assert headings == 1, "empty sections are gone"
    browser.emulate(1200, 900, "light")
    browser.run("""const it = document.getElementById('curve-search'); it.value = ''; it.dispatchEvent(new Event('input'));""")
    browser.wait(f"{shown}.length > 5", "all panels are back")
    assert not browser.run(f"return {WRONG_SIZES}"), "what was hidden while the window changed has its size"
    browser.emulate(*WINDOWS["wide"], "light")
    said("a part of a metric's name finds its curve")


TEMPLATES = """return import('/prompt.js').then(({Template}) => {
    const cases = {
      chat: ['<|im_start|>system\\nBe brief.<|im_end|>\\n<|im_start|>user\\n', '<|im_end|>\\n<|im_start|>assistant\\n',
             ['What is 12 + 3?', 'What is 14 + 5?', 'What is 14 + 58?']],
      no_head: ['', " Let's think step by step and output the final answer after ####.",
                ['Natalia sold clips. How many?', 'Weng earns $12 an hour. Tell me how much.', 'Nobody came. Why?']],
      inline: ['Answer the following question: ', '', ['Who was first?', 'Who was last?']],
      deepseek: ['<｜begin▁of▁sentence｜><｜User｜>', '<｜Assistant｜><think>\\n', ['Is x > 5 when y < 3?', 'Is x > 6 when y < 3?']],
      llama: ['<|start_header_id|>user<|end_header_id|>\\n\\n', '<|eot_id|><|start_header_id|>assistant<|end_header_id|>\\n\\n',
              ['Sum it: 1', 'Sum it: 2']],
      long_rule: ['user\\nSolve the problem below step by step and put the answer in a box. Problem: ', '', ['1 + 1', '1 + 2']],
      mistral: ['[INST] ', ' [/INST]', ['[1, 2]?', '[1, 3]?']],
      bare: ['', '', ['12 + 34 = ?', '12 + 35 = ?', '7 + 1 = ?']],
      empty: ['', '', ['', ' ']],
    };
    const wrong = [];
    for (const [name, [before, after, questions]] of Object.entries(cases)) {
      const template = new Template();
      template.learn(questions.map(it => before + it + after));
      for (const it of questions) {
        const parts = template.parts(before + it + after), got = template.snippet(before + it + after);
        if (parts.join('') !== before + it + after) wrong.push([name, 'parts', parts]);
        if (got !== (it.trim() || '(empty prompt)')) wrong.push([name, it, got]);
      }
    }
    const alone = new Template(), only = cases.chat[0] + 'Why?' + cases.chat[1] + '<think>\\n';
    alone.learn([only]);
    if (alone.snippet(only) !== 'Why?') wrong.push(['alone', alone.snippet(only)]);
    const few = new Template();  // one prompt of another kind changes nothing for the others
    few.learn(['Add.\\n1 + 2', 'Add.\\n3 + 4', 'Add.\\n5 + 6', 'Write a poem.']);
    if (few.snippet('Add.\\n3 + 4') !== '3 + 4') wrong.push(['few', few.snippet('Add.\\n3 + 4')]);
    if (few.snippet('Write a poem.') !== 'Write a poem.') wrong.push(['few', few.snippet('Write a poem.')]);
    const kept = new Template(), asked = 'How many books?', prompt = 'Solve in one short line: ' + asked;  // is not guessed
    if (kept.snippet(prompt, asked) !== asked) wrong.push(['kept', kept.snippet(prompt, asked)]);
    const [pale, own] = [...kept.shown(prompt, asked).children].map(it => it.textContent);
    if (pale !== 'Solve in one short line: ' || own !== asked) wrong.push(['kept', pale, own]);
    if (kept.folded('21+3', '12+3').textContent !== '12+321+3') wrong.push(['other words', kept.folded('21+3', '12+3').textContent]);
    return wrong;
  })"""


def check_example(browser, run):
    """Among the first curves: a question that was wrong and became right, with both answers."""
    open_page(browser, run, "curves")
    box = "document.querySelector('.grid .example')"
    text = browser.wait(f"{box} && {box}.innerText", "a question that became right")
    chips = browser.run(f"return [...{box}.querySelectorAll('.chip')].map(c => Number(c.innerText))")
    assert len(chips) == 2 and chips[0] < 0.5 <= chips[1], text
    assert "after step 1" in text and f"after step {STEPS}" in text and "became right" in text and "Let's think" not in text, text
    browser.emulate(1280, 800, "light")
    seen = browser.run("""const panels = [...document.querySelectorAll('.panel')];
        return ['Accuracy', 'Reward', 'A question before and after'].map(title =>
            panels.find(p => p.querySelector('h3').firstChild.textContent === title).getBoundingClientRect().bottom)""")
    assert max(seen) <= 800, f"{seen}: below the first screen"
    assert browser.run("return document.querySelectorAll('#tiles .tile')[0].innerText.startsWith('Accuracy')")
    said("the first screen has accuracy, reward and a question before and after training")


def check_snippets(browser, run):
    open_page(browser, run, "samples")
    snippets = "[...document.querySelectorAll('#groups .snippet')].map(s => s.innerText)"
    texts = browser.wait(f"{snippets}.length && {snippets}", "groups are listed")
    prompts = run.ask("SELECT DISTINCT prompt FROM samples")
    questions = {prompt.split("user\n")[1].split("\n")[0] for (prompt,) in prompts}
    strange = [text for text in texts if text not in questions]
    assert len(texts) == 12 and not strange, f"not the question: {strange}"
    wrong = browser.run(TEMPLATES)
    assert not wrong, wrong
    said(f"the list shows the questions, as in {texts[1]!r}")


def check_first_group(browser, run):
    open_page(browser, run, "samples")
    browser.wait("tandemState.open_samples > 0", "a group is open without a click", 5)
    assert browser.run("return document.querySelector('#groups .row').classList.contains('on')"), "the first one"
    assert browser.run("return document.querySelectorAll('#group .sample').length") == 8
    greedy = browser.run("return document.querySelector('#group .card').innerText")
    assert "greedy answer scored" in greedy, greedy
    said("the first group is open, with the score of its greedy answer")


def check_samples(browser, run):
    open_page(browser, run, "samples")
    browser.wait("document.querySelectorAll('#groups .row').length > 0", "groups are listed")
    browser.run("document.getElementById('follow').click()")
    browser.wait("document.querySelector('#groups .row .snippet')", "groups stay")
    browser.run("tandemState.open_samples = 0")
    browser.click("#groups .row")
    opened = browser.wait("tandemState.open_samples > 0 && {...tandemState}", "a group opens on a click")
    cards = browser.run("return [...document.querySelectorAll('#group .sample')].map(c => c.innerText)")
    assert len(cards) == opened["open_samples"] == 8, opened
    assert all("advantage" in card and "answer" in card and "<answer>" in card for card in cards), cards[0]
    head = browser.run("return document.querySelector('#group .card').innerText")
    assert "expected answer" in head and "lag" in head and "<script>" in head, head
    said(f"a click opens group {opened['open_group']}: prompt, expected answer, {len(cards)} answers with score, parts, advantage")
    browser.run("document.querySelector('#group .tokens summary').click()")
    names = "[...document.querySelectorAll('#group .tokens tr:first-child th')].map(it => it.innerText)"
    names = browser.wait(f"{names}.length && {names}", "what each token carries")
    assert names[:3] == ["", "response_ids", "logprobs"] and "versions" in names, names
    said("a click shows what each token of an answer carries")
    assert not browser.run("return window.tandemBroken || document.querySelector('#group script, #group img')"), "HTML of a sample ran"
    said("a prompt with <script> and <img onerror> is shown as text")


def check_step_back(browser):
    step = browser.run("return Number(document.getElementById('sample-step').textContent)")
    browser.run("document.getElementById('step-back').click()")
    browser.wait(f"tandemState.open_group < {12 * (step - 1)} && document.querySelectorAll('#group .sample').length === 8",
                 "the step before shows the group at the same place")
    said("the step slider goes back through the run")


GROUPS = "[...document.querySelectorAll('#groups .row')].map(r => Number(r.dataset.group))"


def check_sample_search_and_order(browser, run):
    open_page(browser, run, "samples")
    browser.wait(f"{GROUPS}.length === 12", "groups")
    means = "SELECT group_id FROM samples WHERE step = ? GROUP BY group_id ORDER BY "
    orders = {"lowest": "avg(score), group_id", "highest": "avg(score) DESC, group_id", "spread": "max(score) - min(score) DESC, group_id",
              "longest": "max(length(response_ids)) DESC, group_id", "": "group_id"}
    for word, order in orders.items():
        expected = [group for (group,) in run.ask(means + order, STEPS)]
        browser.choose("#sample-sort", word)
        browser.wait(f"JSON.stringify({GROUPS}) === '{json.dumps(expected, separators=(',', ':'))}'", f"order {word}")
        assert browser.run("return tandemState.open_group") == expected[0], "the first of the order is open"
    (row, answer), = run.ask("SELECT group_id, answer FROM samples WHERE step = ? ORDER BY group_id DESC LIMIT 1", STEPS)
    holds = "instr(prompt || '|' || answer || '|' || response, ?)"
    asked = f"SELECT DISTINCT group_id FROM samples WHERE step = ? AND {holds} ORDER BY group_id"
    expected = [group for (group,) in run.ask(asked, STEPS, answer)]
    assert row in expected
    browser.type("#sample-search", answer)
    browser.wait(f"JSON.stringify({GROUPS}) === '{json.dumps(expected, separators=(',', ':'))}'", f"groups with {answer}")
    assert browser.run("return document.getElementById('found').textContent") == f"{len(expected)} of 12 groups"
    browser.type("#sample-search", "no % such text")
    browser.wait(f"{GROUPS}.length === 0 && document.getElementById('group').innerText.includes('No group')", "nothing is found")
    said("groups are found by what they say, and ordered by score, spread and length")


def check_evaluation(browser, run):
    open_page(browser, run, "evaluation")
    browser.wait("document.querySelectorAll('#evals .card').length === 64", "a page of answers")

    def right_rows(step):
        return {row for (row,) in run.ask("SELECT row FROM evals WHERE step = ? AND score >= 0.5", step)}

    def press(kind):
        button = f"document.querySelector('#eval-kinds [data-show=\"{kind}\"]')"
        browser.run(f"{button}.click()")  # as one: the buttons are made anew with every answer
        browser.wait(f"{button}.getAttribute('aria-pressed') === 'true'", f"{kind} is pressed")

    def check(step, since):
        now, before = right_rows(step), right_rows(since)
        expected = {"": 100, "right": len(now), "wrong": 100 - len(now)}
        expected.update(became_right=len(now - before), became_wrong=len(before - now))
        assert expected["became_right"] > 1 and expected["became_wrong"] > 0, expected
        counts = ("Object.fromEntries([...document.querySelectorAll('#eval-kinds button')]"
                 ".map(b => [b.dataset.show, Number(b.querySelector('b').textContent)]))")
        browser.wait(f"JSON.stringify({counts}) === '{json.dumps(expected, separators=(',', ':'))}'", f"counts {expected}")
        for kind, rows in (("became_right", now - before), ("became_wrong", before - now)):
            press(kind)
            shown = min(len(rows), 64)  # on a page
            changes = f"[...document.querySelectorAll('#evals .change')].filter(c => c.innerText === '{kind.replace('_', ' ')}').length"
            browser.wait(f"{changes} === {shown} && document.querySelectorAll('#evals .card').length === {shown}", kind)
            text = browser.run("return document.getElementById('evals').innerText")
            assert text.count(f"after step {since}") == text.count(f"after step {step}") == shown, "both answers are there"
        press("")

    check(STEPS, 1)
    said("an evaluation is compared with the first: what became right and what became wrong, with both answers")
    browser.choose("#eval-since", str(STEPS - 9))
    check(STEPS, STEPS - 9)
    browser.choose("#eval-step", "31")
    assert browser.run("return document.getElementById('eval-since').value") == "1", "a later evaluation is no base"
    check(31, 1)
    press("became_right")
    browser.choose("#eval-since", "")
    browser.wait("document.querySelectorAll('#eval-kinds button').length === 3", "nothing is compared")
    browser.wait("document.querySelectorAll('#evals .card').length === 64", "all answers")
    browser.choose("#eval-step", str(STEPS))
    assert browser.run("return document.getElementById('eval-since').value") == "", "and stays so"
    browser.type("#eval-search", "2 + 77 =")
    browser.wait("document.querySelectorAll('#evals .card').length === 1", "one answer is found")
    card = browser.run("return document.getElementById('evals').innerText")
    assert "2 + 77 = ?" in card and "79" in card and "Let's think" not in card, card
    browser.click("#evals summary")
    assert "Let's think" in browser.run("return document.getElementById('evals').innerText"), "the whole prompt unfolds"
    browser.run("const it = document.getElementById('eval-search'); it.value = ''; it.dispatchEvent(new Event('input'))")
    browser.choose("#eval-sort", "lowest")
    wrong = 100 - len(right_rows(STEPS))
    scores = "[...document.querySelectorAll('#evals .card > .meta > .chip')].map(c => Number(c.textContent))"
    ordered = f"{scores}.slice(0, {wrong}).every(s => s === 0) && {scores}[{wrong}] === 1"
    browser.wait(f"{scores}.length === 64 && {ordered}", "the wrong ones first")
    said("any two evaluations are compared; answers are found by text, and ordered by score")
    assert browser.run("return [...document.querySelectorAll('#eval-set option')].map(o => o.value)") == ["", "small", "large"]
    browser.choose("#eval-set", "small")
    browser.wait("document.querySelectorAll('#evals .card').length === 40", "the answers of one set")
    (right,), = run.ask("SELECT sum(score >= 0.5) FROM evals WHERE step = ? AND eval_set = 'small'", STEPS)
    shown = browser.run("return document.getElementById('eval-accuracy').innerText")
    assert shown.startswith(f"{100 * right / 40:.1f}".removesuffix(".0")), (shown, right)
    assert "large" not in browser.run("return document.getElementById('evals').innerText"), "each card names its set"
    browser.choose("#eval-set", "")
    browser.wait("document.querySelectorAll('#evals .card').length === 64", "all sets")
    said("an evaluation of several sets is shown by set")


def check_recipe(browser, run):
    open_page(browser, run, "recipe")
    names = "[...document.querySelectorAll('.option.changed')].map(o => o.title)"
    changed = browser.wait(f"document.querySelector('.option.changed') && {names}", "changed options are marked")
    assert changed == ["run.dir", "run.steps", "model.path", "algo.name"], changed
    row = browser.run("return document.querySelector('.option[title=\"run.steps\"]').innerText.split('\\n').map(t => t.trim())")
    assert row == ["steps", str(STEPS), "default 100"], row
    options = browser.run("return document.querySelectorAll('.option').length")
    assert options == 10, options
    assert "no" in browser.run("return document.querySelector('.option[title=\"data.prompt_template\"] .option-value').textContent")
    browser.run("document.getElementById('recipe-changed').click()")
    browser.wait("document.querySelectorAll('.option').length === 4", "changed options alone")
    browser.run("document.getElementById('recipe-changed').click()")
    browser.type("#recipe-search", "algo.K")
    browser.wait("[...document.querySelectorAll('.option')].map(o => o.title).join() === 'algo.kl_coef'", "search")
    lines = 'a:\\n  b: 1\\n  c: ["x  # default: 2", "y"]  # default: []\\nstrange\\n'
    parsed = browser.run(f"return import('/recipe.js').then(m => m.options_of('{lines}').map(o => [o.section, o.name, o.value, o.was]))")
    assert parsed == [["a", "b", "1", None], ["a", "c", '["x  # default: 2", "y"]', "[]"], ["a", "", "strange", None]], parsed
    said(f"{len(changed)} of {options} options are marked as changed, with their defaults; options are found by name")


def pill(browser):
    return browser.run("return document.getElementById('state').textContent")


def check_finished(browser, run):
    open_page(browser, run, "curves")
    ended = f"tandemState.run_state === 'finished' && tandemState.step === {STEPS}"
    done = browser.wait(f"{ended} && tandemState.points && {{...tandemState}}", "the end")
    assert done["lines"] == STEPS, done
    facts = browser.run("return document.querySelector('.facts').innerText")
    assert "so far" not in facts and "left" not in facts and "in all" in facts, facts
    assert not browser.run("return document.getElementById('end')?.offsetParent"), "nothing is to be explained"
    lists = browser.wait("tandemState.polls > 2 && [tandemState.step_lists]", "polls of a run that goes on no more")
    assert lists == [1], f"{lists}: no evaluation came, so the list of steps was not to be asked for again"
    said(f"finished run: {done['lines']} lines, {done['points']} points; its time is that of the whole run")


def check_failed(browser, run):
    open_page(browser, run, "curves")
    browser.wait("tandemState.run_state === 'failed'", "a failed run is called so", 5)
    end = browser.run("return document.getElementById('end').innerText")
    assert "reward.py:12: <b>ZeroDivisionError</b>: division by zero" in end and "--resume" in end and "Step 10 is saved" in end, end
    assert pill(browser) == "failed" and "so far" not in browser.run("return document.querySelector('.facts').innerText")
    said("a failed run shows its error, and how it goes on")


def check_killed(browser, run):
    open_page(browser, run, "curves")
    browser.wait("tandemState.run_state === 'running' && tandemState.lines > 2", "running")
    assert "so far" in browser.run("return document.querySelector('.facts').innerText")
    assert not browser.run("return document.getElementById('end')?.offsetParent")
    run.grow.send_signal(signal.SIGKILL)
    run.grow.wait(20)
    begin = time.time()
    browser.wait("tandemState.run_state === 'killed'", "a killed run is not called running", 10)
    assert "killed" in browser.run("return document.getElementById('end').innerText")
    said(f"a killed run is called so {time.time() - begin:.1f} s later")


def check_ways(browser, run, name, screenshots):
    """All views in both windows and schemes: nothing is wider than the window, nothing is asked of another host, no error."""
    expected = browser.run("return tandemState.run_state")
    for (window, size), scheme in itertools.product(WINDOWS.items(), SCHEMES):
        browser.emulate(*size, scheme)
        open_page(browser, run, "curves")
        for view in VIEWS:
            show(browser, view)
            browser.wait("document.querySelectorAll({curves: '.panel canvas', samples: '#group .sample', evaluation: '#evals .card', "
                         f"recipe: '.option'}}['{view}']).length > 0", f"{name} {view}")
            widths = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert widths[0] <= size[0], (name, window, view, widths)
            dark = browser.run("return getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every(c => c < 80)")
            assert dark == (scheme == "dark"), (name, scheme, view)
            if screenshots:
                time.sleep(0.4)
                browser.screenshot(f"{screenshots}/{name}_{window}_{scheme}_{view}.png")
        assert browser.run("return tandemState.run_state") == expected
        asked = browser.run("return performance.getEntriesByType('resource').map(e => e.name)")
        assert asked and all(name.startswith(run.url) for name in asked), asked
    errors = browser.console_errors()
    assert not errors, errors
    browser.emulate(*WINDOWS["wide"], "light")
    said(f"{name}: four views fit two windows, light and dark; no error in the console, no request elsewhere")


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


def walk(browser, runs, args):
    """The checks by name, in order. Those of the running run come first: the last of them kills it."""
    live, finished, failed = runs["running"], runs["finished"], runs["failed"]
    ways = lambda run, name: lambda: check_ways(browser, run, name, args.screenshots)  # noqa: E731
    checks = {
        "live": lambda: (check_live(browser, live), check_hover(browser)),
        "samples": lambda: (check_samples(browser, live), check_step_back(browser)),
        "chart_sizes": lambda: check_chart_sizes(browser, live),
        "running_ways": ways(live, "running"),
        "killed": lambda: check_killed(browser, live),
        "killed_ways": ways(live, "killed"),
        "finished": lambda: check_finished(browser, finished),
        "colours": lambda: check_colours(browser, finished),
        "example": lambda: check_example(browser, finished),
        "curve_search": lambda: (open_page(browser, finished, "curves"), check_curve_search(browser)),
        "snippets": lambda: check_snippets(browser, finished),
        "first_group": lambda: check_first_group(browser, finished),
        "search": lambda: check_sample_search_and_order(browser, finished),
        "evaluation": lambda: check_evaluation(browser, finished),
        "recipe": lambda: check_recipe(browser, finished),
        "finished_ways": ways(finished, "finished"),
        "failed": lambda: check_failed(browser, failed),
        "failed_ways": ways(failed, "failed"),
    }
    wrong = {}
    for name in args.only.split(",") if args.only else checks:
        browser.emulate(*WINDOWS["wide"], "light")
        try:
            checks[name]()
        except (AssertionError, RuntimeError) as error:
            wrong[name] = error
            print(f"FAILED  {name}: {str(error)[:1500]}", flush=True)
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixture", default=str(ROOT / "build/release/tests/unit/board/board_fixture"))
    parser.add_argument("--no-install", action="store_true", help="skip instead of installing Chromium")
    parser.add_argument("--screenshots", metavar="DIR", help="leave pictures of the page there")
    parser.add_argument("--only", metavar="CHECK,...", help="these checks alone, such as chart_sizes")
    args = parser.parse_args()
    if args.screenshots:
        os.makedirs(args.screenshots, exist_ok=True)
    if not webdriver.installed():
        skip("no chromium and chromium-driver") if args.no_install else install_chromium()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ends:
        runs = {}
        for name, *how in (("running", 100000, 250), ("finished", STEPS, 0), ("failed", 12, 0, "fail")):
            runs[name] = Run(args.fixture, f"{folder}/{name}", *how)
            ends.callback(runs[name].close)
        assert runs["finished"].grow.wait(60) == 0
        with webdriver.Browser() as browser:
            wrong = walk(browser, runs, args)
        done = runs["finished"].folder
        if not args.no_install and not args.only:
            check_tensorboard(str(done))
        said(f"trace.json holds {len(json.load(open(done / 'trace.json'))['traceEvents'])} events")
    if wrong:
        sys.exit(f"board check failed: {', '.join(wrong)}")
    print("board check passed")


if __name__ == "__main__":
    main()
