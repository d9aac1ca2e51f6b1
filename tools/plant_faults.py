#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault at a time in a tree, builds a test, expects it to fail, takes the fault out again."""
import pathlib, subprocess, sys, glob, json
tree = pathlib.Path(sys.argv[1])
S = "src/tandem/"
FAULTS = [
 ("advantages are not divided by the deviation", S+"algo/advantage.cpp", "(r.score - r.group.mean()) / (r.group.deviation() + a.std_eps); }", "(r.score - r.group.mean()); }", "algo_test"),
 ("a group may start one version too old", S+"queue/admission.cpp", "(j + 1) * rule.groups_per_step - due", "(j + 2) * rule.groups_per_step - due", "queue_test"),
 ("a sum adds in another order", S+"comm/reduce.cpp", "return reduce<float, float>(sources, outs, count, op);", "{ std::vector<const void*> back(sources.rbegin(), sources.rend()); return reduce<float, float>(back, outs, count, op); }", "comm_local_test"),
 ("a damaged checkpoint file is taken", S+"checkpoint/run_state.cpp", 'if (expected.value("checksum", json()) != file_checksum(file))', 'if (false)', "checkpoint_test"),
 ("the youngest preempted sequence comes back last", S+"rollout/scheduler.cpp", "      preempted_.push_front(youngest);", "      preempted_.push_back(youngest);", "scheduler_test"),
 ("kept steps lose their tokens", S+"data/backend/sample_sql.h", "step % ?3 != 0", "step % ?3 != 1", "sample_store_test"),
 ("the upper clip is the lower one", S+"algo/surrogate.cpp", "ratio_T.clamp(1 - clip.low, 1 + clip.high)", "ratio_T.clamp(1 - clip.low, 1 + clip.low)", "oracle_losses_test"),
 ("the last of equal merges wins", S+"text/bpe.cpp", "if (pairs[i].rank < pairs[best].rank) best = i;", "if (pairs[i].rank <= pairs[best].rank) best = i;", "text_test"),
 ("a late group is not counted", S+"queue/controller.cpp", "    ++counters_.late;", "    ;", "queue_controller_test"),
 ("a bucket sends while the one before fills it", S+"reshard/plan_make.cpp", "return bucket_bytes_ - std::max(staged(rank, bucket), before.sent + before.received + at(rank, bucket).sent);", "return bucket_bytes_ - std::max(staged(rank, bucket), before.sent + at(rank, bucket).sent);", "reshard_test"),
]
for what, path, old, new, target in FAULTS:
    file = tree/path
    if not file.exists():  # moved since
        found = [p for p in tree.glob("src/tandem/**/*.*") if p.is_file() and p.suffix in (".h", ".cpp") and old in p.read_text()]
        if not found:
            print(json.dumps({"fault": what, "error": "code is not there"}), flush=True); continue
        file = found[0]
    text = file.read_text()
    if text.count(old) < 1:
        print(json.dumps({"fault": what, "error": "code is not there"}), flush=True); continue
    try:
        file.write_text(text.replace(old, new, 1))
        built = subprocess.run(["scripts/build", "release", target], cwd=tree, capture_output=True, text=True)
        if built.returncode:
            print(json.dumps({"fault": what, "error": "does not build", "tail": built.stdout[-500:]}), flush=True); continue
        program = glob.glob(str(tree/"build/release/tests/**"/target), recursive=True)
        program = [p for p in program if pathlib.Path(p).is_file()][0]
        ran = subprocess.run([program, "--gtest_brief=1"], cwd=tree, capture_output=True, text=True, timeout=600)
        failed = [l.split()[3] for l in ran.stdout.splitlines() if l.startswith("[  FAILED  ]") and "." in l and "(" in l][:3]
        print(json.dumps({"fault": what, "test": target, "caught": ran.returncode != 0, "by": failed}), flush=True)
    finally:
        file.write_text(text)
