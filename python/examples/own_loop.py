# SPDX-License-Identifier: Apache-2.0
"""The quickstart's task by a loop of one's own: own_loop.py MODEL DIR [STEPS], where MODEL is runs/quickstart/warm_start/hf."""
import random
import sys

import torch

import tandem


def task(number):
    """A sum of numbers written last digit first, and its answer."""
    left, right = (random.Random(7 * number + side).randrange(100, 1000) for side in (0, 1))
    return f"{str(left)[::-1]}+{str(right)[::-1]}=", str(left + right)[::-1]


def grpo(logprobs, old, advantages, mask, global_tokens):
    ratio = torch.exp(logprobs - old)
    gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return -(gain * mask).sum() / global_tokens


model, folder, steps = sys.argv[1], sys.argv[2], int((*sys.argv, 400)[3])
with tandem.Policy(model, dir=folder, settings={"rollout.max_new_tokens": 6, "rollout.max_running": 512}) as policy:
    trainer = tandem.Trainer(policy)
    for step in range(trainer.load(), steps):
        prompts, answers = zip(*(task(64 * step + i) for i in range(64)))
        samples = policy.sample(prompts, n=8)
        scores = torch.tensor([float(s.text == answers[s.group]) for s in samples]).view(64, 8)
        advantages = (scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-6)
        for sample, advantage in zip(samples, advantages.flatten()):
            sample.advantage = advantage
        trainer.forward_backward(samples, grpo)
        trainer.step(lr=5e-4 * (1 - step / steps))
        print(f"step {step + 1}: {scores.mean():.3f} right", flush=True)
        if (step + 1) % 50 == 0 or step + 1 == steps:
            trainer.save()
