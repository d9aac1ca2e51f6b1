# SPDX-License-Identifier: Apache-2.0
"""Programs that solve nothing and want the score, some at a time beside an honest one. `tests/torture/cheats/cheats.py` tries all kinds."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cheats"))
import cheats as ch  # noqa: E402

CHEATS = 4


def programs(place):
    rng = place.rng
    cheats = rng.sample(list(ch.programs(rng, 1)), CHEATS)
    honest = rng.choice(ch.tasks(rng))
    grade = lambda cases, seconds: ch.grade(place.program.tandem, cases, seconds, place.folder, place.env)  # noqa: E731
    scores = grade([(task, source) for _, task, source in cheats], ch.FEW_S)
    for (kind, _, source), score in zip(cheats, scores):
        assert score == 0, f"{kind} scores {score}:\n{source}"
    fair = grade([(honest, honest.honest())], ch.HONEST_S)
    assert fair == [1], f"an honest program scores {fair}:\n{honest.honest()}"
    left = list(place.folder.iterdir())
    assert not left, f"left behind: {left}"


TRIALS = {"programs": programs}
