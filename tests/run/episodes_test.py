# SPDX-License-Identifier: Apache-2.0
"""Episodes of several turns: what an environment says is in the response, is marked, and is not trained on; whoever generates, the same
comes out; an environment that fails, hangs, floods or dies is named, and a run that is killed within episodes loses and doubles none."""
import json
import pathlib
import random
import signal
import time

import run_folder as rf

ENVIRONMENT = '''
import os
import time

class Talk:
    """Says how many tokens it heard, twice. The score is of all that it heard."""
    def reset(self, prompt, answer, seed):
        assert prompt and answer and seed >= 0
        self.heard = []

    def step(self, ids, turn, truncated):
        assert turn == len(self.heard)
        self.heard.append(len(ids))
        if turn == 2 or truncated:
            return None, float(sum(self.heard) % 3), True
        return f"{len(ids) % 10},", None, False

class Slow(Talk):
    def step(self, ids, turn, truncated):
        time.sleep(0.02)
        return Talk.step(self, ids, turn, truncated)

class Breaks(Talk):
    """One episode in eight raises at first."""
    def reset(self, prompt, answer, seed):
        Talk.reset(self, prompt, answer, seed)
        if seed % 8 == 3:
            raise ValueError("not today")

class Closes(Talk):
    """What fails at the end of an episode fails nothing else."""
    def close(self):
        raise RuntimeError("cannot be closed")

class Later(Talk):
    """All is well for a while, and then never again."""
    resets = 0
    def reset(self, prompt, answer, seed):
        Talk.reset(self, prompt, answer, seed)
        Later.resets += 1
        broken = f"{__file__}.{type(self).__name__}"
        if Later.resets > 40:
            open(broken, "w").close()
        if os.path.exists(broken):
            self.fail()

class Raises(Later):
    def fail(self): raise RuntimeError("out of order")
class Hangs(Later):
    def fail(self): time.sleep(1000)
class Dies(Later):
    def fail(self): os._exit(7)
class Floods(Talk):
    def step(self, ids): return "1" * (2 << 20), None, False
class Unscored(Talk):
    def step(self, ids): return None, None, True
class Speaks(Talk):
    def reset(self): return "hello"
class Odd(Talk):
    def step(self, response): return response
'''
RUN = {"schedule__groups_per_step": 4, "schedule__group_size": 4, "rollout__max_new_tokens": 40, "rollout__stop": ["0", "1"],
       "eval__max_new_tokens": 40, "eval__every_steps": 3, "data__synthetic_eval_rows": 4, "run__steps": 6, "run__samples_steps": 0,
       "episode__workers": 2}


def started(root, name, environment="Talk", **changed):
    """Arguments of a run with an environment of the file."""
    path = pathlib.Path(root) / "environments.py"
    path.write_text(ENVIRONMENT)
    recipe = rf.tiny_recipe(f"{root}/{name}.yaml", **{**RUN, "episode__environment": f"{path}:{environment}", **changed})
    return ["run", recipe, "--run-dir", f"{root}/{name}", *rf.sets({"reward.rule": "", "reward.pattern": ""})]  # the environment scores


def run(program, root, name, flags=(), **changed):
    program.done([*started(root, name, **changed), *flags], timeout=300)
    return f"{root}/{name}"


def token_ids(folder):
    return json.loads(next(pathlib.Path(folder).rglob("tokenizer.json")).read_text())["model"]["vocab"]


def check_columns(folder, is_stale=False):
    """By hand, of what the run stored: where the environment spoke, what it said to how many tokens, and nothing else is marked."""
    ids_of = token_ids(folder)
    seen = 0
    stored = rf.samples(folder, "response_ids, trainable, logprobs, train_logprobs, score, parts")
    for ids, marks, logprobs, trained, score, parts in stored:
        ids = [int.from_bytes(ids[i:i + 4], "little") for i in range(0, len(ids), 4)]
        logprobs, trained = rf.floats(logprobs), rf.floats(trained)
        assert len(marks) == len(ids) == len(logprobs) == len(trained)
        heard, at = [], 0
        while at < len(ids):
            end = marks.index(0, at) if 0 in marks[at:] else len(ids)
            heard.append(end - at)
            assert all(value < 0 for value in logprobs[at:end]), "a token that was drawn has a log-probability"
            assert is_stale or all(abs(a - b) < 1e-5 for a, b in zip(logprobs[at:end], trained[at:end])), "rollout and training differ"
            if end < len(ids):
                assert list(marks[end:end + 2]) == [0, 0] and ids[end:end + 2] == [ids_of[str((end - at) % 10)], ids_of[","]], (ids, marks)
                assert set(logprobs[end:end + 2]) == {0}
            at = end + 2
        assert score == sum(heard) % 3 and json.loads(parts)["turns"] == len(heard), (heard, score, parts)
        seen += len(heard) == 3
    assert seen > 20, f"{seen} episodes of three turns"


def columns(program, root):
    check_columns(run(program, root, "one"))
    check_columns(run(program, root, "tp2", flags=["--ranks", "2", "--train-layout", "tp2", "--set", "run.parity=false"]))
    rf.said("what an environment says is in the response and marked, and the rest is trained as it was drawn, by one rank and two alike")


SAMPLES = "step, sample_id, response_ids, trainable, logprobs, versions, score, advantage"


def layouts(program, root):
    one = run(program, root, "alone")
    for name, flags in {"dp2": ["--ranks", "2", "--train-layout", "dp2"], "workers1": ["--rollout-workers", "1"],
                        "workers3": ["--rollout-workers", "3"]}.items():
        other = run(program, root, name, flags=flags)
        rf.check_whole(other, 6)
        if name == "dp2":  # it sums gradients in another order
            first, theirs = ([row for row in rf.samples(folder, SAMPLES) if row[0] == 1] for folder in (one, other))
            assert first == theirs, "dp2: other samples"
            continue
        assert rf.samples(one, SAMPLES) == rf.samples(other, SAMPLES), f"{name}: other samples"
        assert rf.evals(one) == rf.evals(other), f"{name}: other evaluations"
        assert rf.weights(one) == rf.weights(other), f"{name}: other weights"
    rf.said("two ranks have the first samples of one; one worker and three have all of them, and the weights")


SPLIT = ["--ranks", "2", "--set", "parallel.placement=split", "--train-layout", "dp1", "--rollout-layout", "dp1", "--staleness", "2"]


def stale(program, root):
    folder = run(program, root, "split", flags=SPLIT)
    rf.check_whole(folder, 6)
    check_columns(folder, is_stale=True)
    folder = run(program, root, "workers_stale", flags=["--rollout-workers", "2", "--staleness", "1"])
    rf.check_whole(folder, 6)
    check_columns(folder, is_stale=True)
    rf.said("so split and stale, and with workers that lag")


def failures(program, root):
    rf.check_whole(run(program, root, "closes", environment="Closes"), 6)
    folder = run(program, root, "breaks", environment="Breaks")
    rf.check_whole(folder, 6)
    failed = sum(json.loads(parts)["failed_episodes"] for (parts,) in rf.samples(folder, "parts"))
    assert failed > 3, failed
    assert sum(line["reward/failed_episodes"] for line in rf.metrics(folder)) > 0
    for name, words in (("Raises", "RuntimeError: out of order"), ("Hangs", "took over 3 s (episode.timeout_s)"),
                        ("Dies", "ended with exit code 7"), ("Floods", "2097152 characters")):
        arguments = started(root, name, environment=name, episode__timeout_s=3 if name == "Hangs" else 60,
                            episode__workers=1, eval__before=False, run__steps=40,
                            schedule__groups_per_step=2, schedule__group_size=2)
        if name == "Floods":
            program.refused(arguments, 2, "the environment, tried before the run", words)
            continue
        line = program.refused(arguments, 2, "episode", "of group", words)
        assert "it has failed 3 times" in line and "is saved" in line, line
        assert rf.committed_steps(f"{root}/{name}"), f"{name}: nothing is saved"
    rf.said("one that fails begins anew and is counted; one that always fails, hangs, floods or dies ends the run, saved and named")


def interrupted(program, root):
    """A run that is told to stop does not wait for an environment that hangs."""
    folder = pathlib.Path(root, "interrupted")
    folder.mkdir()
    process = program.start(started(folder, "run", environment="Hangs", episode__timeout_s=300, run__steps=40, eval__before=False))
    assert rf.wait_for(lambda: (folder / "environments.py.Hangs").exists(), process), process.stderr.read()
    begin = time.monotonic()
    code, log = rf.end(process, signal.SIGINT)
    assert code == 130 and time.monotonic() - begin < 30, (code, time.monotonic() - begin, log[-2000:])
    assert rf.committed_steps(folder / "run"), log[-2000:]
    rf.said("a run that is told to stop does not wait for an environment that hangs")


def killed(program, root):
    for name, flags in {"killed_split": SPLIT, "killed_workers": ["--rollout-workers", "2", "--staleness", "1"]}.items():
        arguments = [*started(root, name, environment="Slow", run__steps=8, checkpoint__every_steps=1), *flags]
        process = program.start(arguments)
        assert rf.wait_for(lambda: max(rf.committed_steps(f"{root}/{name}"), default=0) >= 2, process), process.stderr.read()
        rf.end(process)
        program.done([*arguments, "--resume"], timeout=300)
        rf.check_whole(f"{root}/{name}", 8)
        check_columns(f"{root}/{name}", is_stale=True)
    arguments, draw = started(root, "killed", environment="Slow", run__steps=20, checkpoint__every_steps=1), random.Random(3)
    for number in range(3):
        process = program.start([*arguments, *(["--resume"] if number else [])])
        assert rf.wait_for(lambda: max(rf.committed_steps(f"{root}/killed"), default=0) >= 3 * number + 2, process), process.stderr.read()
        time.sleep(draw.random() * 0.3)
        rf.end(process)
    program.done([*arguments, "--resume"], timeout=300)
    rf.check_whole(f"{root}/killed", 20)
    check_columns(f"{root}/killed")
    whole = run(program, root, "whole", environment="Slow", run__steps=20)
    assert rf.samples(whole, SAMPLES) == rf.samples(f"{root}/killed", SAMPLES) and rf.weights(whole) == rf.weights(f"{root}/killed")
    rf.said("a run that is killed within episodes goes on as if it had not been; split or with workers, no sample is lost or twice")


def built_in(program, root):
    folder = run(program, root, "second_try", environment="Talk", episode__environment="second_try", rollout__max_new_tokens=30)
    rf.check_whole(folder, 6)
    texts = rf.samples(folder, "prompt, response, parts")
    again = [response for prompt, response, _ in texts if prompt in response]
    assert again and {json.loads(parts)["turns"] for _, _, parts in texts} <= {1, 2}, texts[:3]
    evaluation = ["eval", "--config", f"{folder}/config.yaml", "--model", f"{folder}/checkpoint/latest/hf", "--temperature", "1"]
    graded = program.done(evaluation).stdout.splitlines()
    assert 2 in [json.loads(row)["parts"]["turns"] for row in graded[:-1]], graded[:3]
    rf.said("the built-in second_try asks a wrong answer once more, in `tandem eval`, too")


def refusals(program, root):
    for environment, words in (("Unscored", "gave no reward for an episode"), ("Speaks", "`reset` returned 'hello'"),
                               ("Odd", "`step` returned"), ("Tlak", "there is no class `Tlak`")):
        program.refused(started(root, "refused", environment=environment), 2, words)
    program.refused(started(root, "refused", episode__environment="nothing"), 2, "episode.environment", "nothing is none", "second_try")
    program.refused([*started(root, "refused"), "--set", "algo.name=remax"], 2, "remax", "episodes have none")
    alone = started(root, "refused", episode__environment="")[:4]
    program.refused([*alone, "--set", "reward.rule=episode"], 2, "no environment that scores")
    rf.said("what cannot be an environment is refused with its name, before the run")


CHECKS = {"columns": columns, "layouts": layouts, "stale": stale, "failures": failures, "interrupted": interrupted,
          "killed": killed, "built_in": built_in, "refusals": refusals}
if __name__ == "__main__":
    rf.run_checks(__doc__, CHECKS)
