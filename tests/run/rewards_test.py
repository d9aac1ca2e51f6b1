# SPDX-License-Identifier: Apache-2.0
"""Rewards in whole runs: advantages see shaped scores while metrics keep the raw ones, the overlong punishment knows the longest
response, and each group is scored once, whatever the layout. An answer is right from one score on, everywhere. A reward with a bug ends
the command before it makes anything; steps without a signal have no backward pass."""
import json
import math
import pathlib
import tempfile

import run_folder as rf

checks = rf.Checks()
program = rf.built_program()
STEPS = 3


def run(root, name, settings, flags=()):
    folder = f"{root}/{name}"
    program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, **settings}, ["--no-eval", *flags])
    return folder


def groups_of(folder):
    """(score, advantage, tokens) of the samples of each group"""
    groups = {}
    for step, group, score, advantage, ids in rf.samples(folder, "step, group_id, score, advantage, response_ids"):
        groups.setdefault((step, group), []).append((score, advantage, len(ids) // 4))
    return groups


COUNTED = """
import os, time
def score(prompts, completions, answers):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "calls"), "a") as out:
        out.write("%d\\n" % len(completions))
    if len(completions) == 1:  # of an evaluation, whose peers do not wait for these grades
        time.sleep(0.3)
    return [float(any(c in t for c in "01234")) for t in completions]
"""


def shaping(root):
    """Dr.GRPO's advantage is the shaped score less the group's mean of it."""
    written = pathlib.Path(root, "many.py")
    written.write_text("def score(prompts, completions, answers):\n    return [float(sum(map(ord, c)) % 11 - 5) for c in completions]\n")
    many = {"reward.rule": "", "reward.python": f"{written}:score", "algo.name": "dr_grpo"}
    plain = groups_of(run(root, "plain", many))
    shaped = {"reward.scale": 0.5, "reward.clip_low": -1, "reward.clip_high": 1.25}
    folder = run(root, "shaped", {**many, **shaped})
    seen, bound = groups_of(folder), 0
    for samples in seen.values():
        of = [min(max(0.5 * score, -1), 1.25) for score, _, _ in samples]
        bound += sum(value in (-1, 1.25) for value in of)
        checks.check(all(abs(a - (v - sum(of) / len(of))) < 1e-9 for (_, a, _), v in zip(samples, of)), f"{samples}: shaped {of}")
    checks.check(bound > 5, "some scores were outside the bounds")
    raw = [[score for score, _, _ in samples] for (step, _), samples in sorted(seen.items()) if step == 1]
    checks.check(raw == [[score for score, _, _ in samples] for (step, _), samples in sorted(plain.items()) if step == 1],
                 "samples keep their scores")
    for m in rf.metrics(folder):
        scores = [s for (step, _), samples in seen.items() if step == m["step"] for s, _, _ in samples]
        checks.check(abs(m["reward/mean"] - sum(scores) / len(scores)) < 1e-9, "reward/mean is that of the raw scores")

    alike = {"algo.filter_groups": "true", "algo.max_filter_rounds": 50, "reward.clip_low": -0.5, "reward.clip_high": 0.5}
    folder = run(root, "shaped-filter", {**many, **alike, "schedule.group_size": 2})
    checks.check(all(len({min(max(s, -0.5), 0.5) for s, _, _ in samples}) > 1 for samples in groups_of(folder).values()),
                 "a group whose shaped scores are alike is replaced")
    checks.check(sum(m["data/groups_filtered"] for m in rf.metrics(folder)) > 0, "some were")


def soft_overlong(tokens, limit, cache):
    """TRL's get_soft_overlong_punishment"""
    if tokens <= limit - cache:
        return 0
    return (limit - cache - tokens) / cache if tokens <= limit else -1


def overlong(root):
    """The limit is that of the rollout unless the recipe says another."""
    for name, more, limit in (("overlong", {}, 6), ("overlong-said", {"reward.max_tokens": 5}, 5)):
        folder = run(root, name, {"reward.rule": "", "reward.rules": "[regex=1.0, overlong=0.5]", "reward.overlong_cache": 4, **more})
        rows = rf.rows(folder, "SELECT response, response_ids, score FROM samples")
        wrong = [row for row in rows
                 if not math.isclose(row[2], float(any(c in row[0] for c in "01234")) + 0.5 * soft_overlong(len(row[1]) // 4, limit, 4))]
        checks.check(not wrong, f"{name}: {wrong[:3]}")
        checks.check(len({len(ids) for _, ids, _ in rows}) > 2, f"{name}: responses of several lengths")
        checks.check(all("reward/overlong" in m for m in rf.metrics(folder)), f"{name}: the part is a metric")
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/refused", "--no-eval",
                     *rf.sets({**rf.TINY, "reward.rule": "overlong", "supervised.steps": 0})], 2, "reward.overlong_cache", "is 200",
                    "the longest answer has 6 tokens")


def scored_once(root):
    """Tensor and pipeline peers have the same answers: one of them has the groups scored, and evaluations, too."""
    written = pathlib.Path(root, "counted.py")
    written.write_text(COUNTED)
    calls, counts = pathlib.Path(root, "calls"), {}
    for layout, ranks in (("dp1", 1), ("tp2", 2), ("pp2", 2), ("dp2,tp2", 4)):
        calls.unlink(missing_ok=True)
        folder = f"{root}/once-{ranks}-{layout}"
        program.quickstart(folder, {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, "run.parity": "false",
                                    "reward.rule": "", "reward.python": f"{written}:score", "data.synthetic_eval_rows": 4,
                                    "eval.every_steps": 0, "eval.before": "false", "parallel.rollout_layout": layout,
                                    "parallel.train_layout": f"dp{ranks}"}, ["--ranks", str(ranks)])
        sizes = [int(line) for line in calls.read_text().split()]
        counts[layout] = (sizes.count(4), sizes.count(1))
        checks.check(len(groups_of(folder)) == STEPS * 4 and len(rf.evals(folder)) == 4, f"{layout}: all groups and problems are there")
        checks.check(all("time/reward_s" in m for m in rf.all_metrics(folder)), f"{layout}: the time of rewards is a metric")
    # One group more: the trial before the run, with made-up answers.
    checks.check(all(count == (STEPS * 4 + 1, 4) for count in counts.values()), f"calls for groups and for problems: {counts}")


GRADED = """
def score(prompts, completions, answers):
    return [0.25 * (sum(map(ord, p + c)) % 5) for p, c in zip(prompts, completions)]
"""


def right_at(root):
    """One meaning of right: in the metrics, the summary, the terminal, and by it graded scores are told apart from their mean."""
    pathlib.Path(root, "graded.py").write_text(GRADED)
    settings = {**rf.TINY, "supervised.steps": 0, "run.steps": 2, "eval.every_steps": 1, "data.synthetic_eval_rows": 8,
                "data.reversed": "true", "reward.rule": "", "reward.python": f"{root}/graded.py:score"}
    for bound in (0.25, 0.75):
        folder = f"{root}/right-{bound}"
        out = program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder,
                            *rf.sets({**settings, "eval.right_at": bound})], timeout=300)
        answers = rf.rows(folder, "SELECT step, row, score, prompt, answer FROM evals ORDER BY step, row")
        by_step = {step: [score for at, _, score, _, _ in answers if at == step] for step in (0, 1, 2)}
        share = {step: sum(score >= bound for score in scores) / 8 for step, scores in by_step.items()}
        mean = {step: sum(scores) / 8 for step, scores in by_step.items()}
        checks.check(len({*by_step[2]}) > 2, f"{by_step}: scores are graded")
        for m in rf.metrics(folder):
            checks.check((m["eval/accuracy"], m["eval/score_mean"]) == (share[m["step"]], mean[m["step"]]), f"metrics of step {m['step']}")
        after = rf.summary(folder)["eval_after"]
        checks.check((after["accuracy"], after["mean_score"]) == (share[2], mean[2]), f"{after}: of the summary")
        for step, line in ((0, "before: "), (1, "step 1/2"), (2, "step 2/2")):
            found = [text for text in out.stderr.splitlines() if text.startswith(line)]
            told = f"accuracy {100 * share[step]:.1f} %" + (f", mean score {mean[step]:.3f}" if mean[step] != share[step] else "")
            checks.check(len(found) == 1 and told in found[0], f"{found}: {told}")
        lines = [text for text in out.stderr.splitlines() if text.strip().startswith("after: ")]
        wanted = ["right" if score >= bound else "wrong" for score in by_step[2][:3]]
        checks.check([("right" if "  right" in text else "wrong") for text in lines] == wanted, f"{lines}: {wanted}")
        checks.check(f"a score of {bound} or more" in out.stderr, "the table says from where an answer is right")
        prompt, answer = answers[-8][3:]
        read = "+".join(number[::-1] for number in prompt[:-1].split("+"))
        a, b = read.split("+")
        total = int(a) + int(b)
        checks.check(f"{read}=   (answer: {total})" in out.stderr and answer == str(total)[::-1], f"{read}: as people read it")


def own_rows(root, source):
    """A recipe's settings for a function of the user on rows of the user."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=root))
    (folder / "mine.py").write_text(source)
    (folder / "rows.jsonl").write_text("".join(f'{{"question": "{i}+1=", "answer": "{i + 1}", "level": {i}}}\n' for i in range(9)))
    return {**rf.TINY, "supervised.steps": 0, "run.steps": STEPS, "algo.kl_coef": 0, "data.eval": "", "reward.rule": "",
            "data.train": f"{folder}/rows.jsonl", "reward.python": f"{folder}/mine.py:score"}


def trial(root):
    """A reward with a bug ends the command before it has made anything; the error says where the bug is and which columns there are."""
    kinds = {"a column that is none": ("def score(completions, topic):\n    return [0]\n", ("TypeError", "`topic`", "mine.py:1 in score")),
             "a name that is none": ("def score(completions, level, **more):\n    return [more['nope'] for c in completions]\n",
                                     ("KeyError: 'nope' at", "mine.py:2 in ", "for 4 of 4 answers, first '1'",
                                      "the columns of the data set: answer, level, question")),
             "of one answer": ("def score(solution_str, ground_truth):\n    return solution_str / 2\n",
                               ("TypeError", "mine.py:2", "4 of 4")),
             "no list": ("def score(completions):\n    return 1.0\n", ("returned 1.0", "a score for each of the 4 completions")),
             "too few scores": ("def score(completions):\n    return [1]\n", ("returned 1 scores for 4", "mine.py:1 in score"))}
    for name, (source, parts) in kinds.items():
        settings = own_rows(root, source)
        folder = pathlib.Path(root, f"bug-{name}")
        arguments = ["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--ranks", 2,
                     *rf.sets({**settings, "reward.workers": 3})]
        out = program.run(arguments)
        errors = [line for line in out.stderr.splitlines() if "error" in line.lower() and line.startswith("tandem: error")]
        checks.check(out.returncode == 2 and len(errors) == 1, f"{name}: {out.stderr[-2000:]}")
        checks.check(all(part in errors[0] for part in ("tried before the run", "rows.jsonl:1", *parts)), f"{name}: {errors}")
        checks.check("nothing was made" in errors[0] and errors[0].count(" (") == 1, f"{name}: one remedy: {errors}")
        checks.check(out.stderr.count("Traceback") <= 1 and not folder.exists(), f"{name}: shown once, nothing is made: {out.stderr}")
    settings = own_rows(root, "import nosuch\n")
    program.refused(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/no-module", *rf.sets(settings)], 2, "mine.py:score",
                    "ModuleNotFoundError", "nosuch", "mine.py:1", "reward.python_executable")
    checks.check(not pathlib.Path(root, "no-module").exists(), "a module that is missing: nothing is made")
    settings = own_rows(root, "def score(completions, hint):\n    return [0.5 if one is None else 1.0 for one in hint]\n")
    rows = pathlib.Path(settings["data.train"])
    rows.write_text(rows.read_text() + '{"question": "7+7=", "answer": "14", "hint": "even"}\n')
    folder = pathlib.Path(root, "lacking")
    program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, *rf.sets({**settings, "run.steps": 5})])
    scores = {row: score for row, score in rf.rows(folder, "SELECT DISTINCT prompt, score FROM samples")}
    checks.check(scores.pop("7+7=", 1.0) == 1.0 and set(scores.values()) == {0.5}, f"a column that most rows lack is None there: {scores}")
    settings = {**own_rows(root, kinds["too few scores"][0]), "reward.rule": "exact"}
    program.refused(["config", rf.ROOT / "configs/quickstart.yaml", "--check", *rf.sets(settings)], 2, "mine.py:score",
                    "goes by exact alone", "an empty reward.rule")
    # An edge where the trial cannot know: the function is tried, the run goes on, and what fails scores 0.
    settings = own_rows(root, kinds["a name that is none"][0])
    out = program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/zero", "--ranks", 2,
                        *rf.sets({**settings, "reward.on_error": "zero"})])
    steps = [line for line in out.stderr.splitlines() if line.startswith("step ")]
    checks.check(len(steps) == STEPS and all("failed 100.0 %" in line for line in steps), f"{steps}: each step counts what failed")
    checks.check("tried before the run" in out.stderr and out.stderr.count("Traceback") <= 3,
                 "shown by the trial and by a rank, not by each sample")


def told_once(root):
    """What fails in mid-run on several ranks is told once: its traceback, and that such samples score 0."""
    source = ("def score(completions, level):\n    if any('made-up' in c for c in completions):\n"
              "        return [0.0 for c in completions]\n    raise ValueError('not today')\n")
    settings = own_rows(root, source)
    for name, launcher, ranks in (("threads", (), ["--ranks", "2"]), ("processes", rf.mpi(2), [])):
        run = ["run", rf.ROOT / "configs/quickstart.yaml", "--no-eval", *ranks]
        out = program.done([*run, "--run-dir", f"{root}/told-{name}", *rf.sets({**settings, "reward.on_error": "zero"})], launcher=launcher)
        told = [out.stderr.count(words) for words in ("Traceback", "grading failed for")]
        checks.check(told == [1, 1], f"{name}: {told} {out.stderr[-3000:]}")
        log = pathlib.Path(root, f"told-{name}/log.txt").read_text()
        checks.check(log.count("Traceback") == 1, f"{name}: in the log of the run: {log[-2000:]}")
        out = program.run([*run, "--run-dir", f"{root}/ended-{name}", *rf.sets(settings)], launcher=launcher)
        errors = [line for line in out.stderr.splitlines() if line.startswith("tandem: error")]
        checks.check(out.returncode == 2 and len(errors) == 1 and "ValueError: not today" in errors[0], f"{name}: {out.stderr[-3000:]}")
        checks.check(out.stderr.count("Traceback") == 1, f"{name}: {out.stderr[-3000:]}")


def told_with_its_evaluation(root):
    """What fails on another process in an evaluation is told before its figures."""
    source = ("import os\ndef score(completions):\n    if len(completions) == 1 and os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
              "        raise ValueError('not today')\n    return [0.5 for c in completions]\n")
    settings = {**own_rows(root, source), "reward.on_error": "zero", "data.synthetic_eval_rows": 8, "eval.before": "true"}
    settings["data.eval"] = settings["data.train"]
    folder = pathlib.Path(root, "told-evaluation")
    program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, *rf.sets(settings)], launcher=rf.mpi(2))
    log = (folder / "log.txt").read_text()
    told, figures = log.find("ValueError: not today"), log.find("before: accuracy")
    checks.check(0 <= told < figures, f"warning at {told}, the evaluation's figures at {figures}: {log[-3000:]}")


def question(root):
    """The question is a column as the others are, by its own name, as the row has it."""
    source = ("def score(prompts, completions, question, level):\n"
              "    assert all(p == f'1+{q}' and q == f'{n}+1=' for p, q, n in zip(prompts, question, level)), (prompts, question)\n"
              "    return [float('1' in c) for c in completions]\n")
    settings = {**own_rows(root, source), "data.prompt_template": "1+{prompt}", "run.parity": "false"}
    folder = run(root, "question", settings)
    checks.check(len(groups_of(folder)) == STEPS * 4, "a function takes the prompt's column")
    folder = run(root, "question-named", {**settings, "data.columns": "[level]"})
    checks.check(len(groups_of(folder)) == STEPS * 4, "also where other columns are named")


def passes(folder):
    """How often each kind of pass of the actor ran."""
    events = json.loads(pathlib.Path(folder, "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("name") in ("forward passes", "forward and backward passes")]
    return names.count("forward passes"), names.count("forward and backward passes")


def without_signal(root):
    """Scores all alike: a warning, no backward pass, and the run goes on; a KL term still has its gradient."""
    same = {"reward.rule": "", "reward.python": f"{root}/same.py:score", "schedule.group_size": 3, "train.weight_decay": 0.1}
    pathlib.Path(root, "same.py").write_text("def score(completions):\n    return [0.1 for c in completions]\n")
    for name, more, flags, silent in (("grpo", {}, [], True), ("dp2", {}, ["--ranks", "2"], True), ("pp2", {"parallel.train_layout": "pp2"},
                                      ["--ranks", "2"], True), ("reinforce", {"algo.name": "reinforce_pp"}, [], True),
                                      ("parts", {"algo.mini_batches": 2}, [], True), ("kl", {"algo.kl_coef": 0.1}, [], False),
                                      ("entropy", {"algo.entropy_coef": 0.1}, [], False)):
        folder = f"{root}/same-{name}"
        settings = {**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, **same, **more}
        out = program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", folder, "--no-eval", *flags, *rf.sets(settings)])
        warned = [line for line in out.stderr.splitlines() if "no group has a signal" in line]
        checks.check(len(warned) == 1 and "step 1:" in warned[0], f"{name}: {warned}: once")
        checks.check(f"scores all alike: 1 to {STEPS}" in out.stderr, f"{name}: all steps are named at the end")
        lines = rf.metrics(folder)
        checks.check([line["policy_version"] for line in lines] == [1, 2, 3], f"{name}: versions go on")
        checks.check(all(line["actor/entropy"] > 0 and line["data/groups_without_signal"] == 4 for line in lines), f"{name}: metrics go on")
        checks.check(not silent or all(line["actor/grad_norm"] == 0 for line in lines), f"{name}: {lines}: the gradient is 0")
        forward, backward = passes(folder)
        checks.check((forward > 0) == silent and (backward > 0) != silent, f"{name}: {forward} forward passes, {backward} with backward")
    pathlib.Path(root, "same.py").write_text("def score(completions):\n    return [None for c in completions]\n")
    out = program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/none", "--no-eval",
                        *rf.sets({**rf.TINY, "supervised.steps": 0, "run.steps": STEPS, **same})])
    warned = [line for line in out.stderr.splitlines() if "None for all" in line]
    checks.check(len(warned) == 2 and "tried before the run" in warned[0] and "step 1: no group" in warned[1], f"None: {warned}")
    some = "def score(prompts, completions):\n    return [0.1 + (prompts[0][0] > '3') * sum(map(ord, c)) for c in completions]\n"
    pathlib.Path(root, "same.py").write_text(some)
    out = program.done(["run", rf.ROOT / "configs/quickstart.yaml", "--run-dir", f"{root}/some", "--no-eval",
                        *rf.sets({**rf.TINY, "supervised.steps": 0, "algo.kl_coef": 0, "run.steps": STEPS, **same})])
    checks.check("has a signal" not in out.stderr and passes(f"{root}/some")[0] == 0, "one group with a signal is enough")


with tempfile.TemporaryDirectory(prefix="tandem_rewards_") as root:
    shaping(root)
    overlong(root)
    scored_once(root)
    right_at(root)
    trial(root)
    told_once(root)
    told_with_its_evaluation(root)
    question(root)
    without_signal(root)
checks.exit()
