// SPDX-License-Identifier: Apache-2.0
#pragma once
// What this machine and this build have: what `tandem doctor` shows.

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace tandem::doctor {

/// cpu, cores, memory_bytes, isa, libtorch, blas, onednn, mpi, cuda, gpus, and under `missing` what to do about what is not there.
/// `code_guard`: what guards a program that a reward runs (reward/code_rule.h:code_guard_text).
nlohmann::json machine_report(const std::string& code_guard);
/// The report for a person.
std::string machine_text(const nlohmann::json& report);

}  // namespace tandem::doctor
