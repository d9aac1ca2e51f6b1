# SPDX-License-Identifier: Apache-2.0
# The rule math_verify: the package's parse() and verify() on what they make of both texts.
try:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
except ImportError as error:
    raise ImportError(f"{error}: install it with `pip install math-verify`, or set reward.python_executable") from None

TARGETS = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig(try_extract_without_anchor=True)]
MARKS = ("$", "\\boxed", "\\(", "\\[", "\\begin")


def readings(text, is_gold):
    """The text as it stands, or, a bare right answer such as \\frac{1}{2}, as LaTeX."""
    if is_gold and not any(mark in text for mark in MARKS):
        text = f"\\boxed{{{text}}}" if "\\" in text or "^" in text else text
    return parse(text, extraction_config=TARGETS, parsing_timeout=5)


def score(completions, answers):
    golds = {text: readings(text, True) for text in set(answers)}
    results = []
    for completion, answer in zip(completions, answers):
        given = readings(completion, False)
        right = bool(golds[answer] and given) and verify(golds[answer], given, timeout_seconds=5)
        results.append({"score": float(right), "extracted": str(given[-1]) if given else ""})
    return results
