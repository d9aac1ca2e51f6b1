// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/sample_writer.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/log.h"

namespace tandem::runtime {

SampleWriter::SampleWriter(const std::string& path, const config::RunOptions& options)
    : path_(path), adopted_(path + ".adopted"), wait_s_(options.samples_wait_s), store_(path, options.samples_steps) {}

void SampleWriter::append(data::Batch batch, std::vector<double> advantages, std::vector<std::vector<float>> train_logprobs) {
  write([batch = std::make_shared<const data::Batch>(std::move(batch)), advantages = std::move(advantages),
         logprobs = std::move(train_logprobs)](data::SampleStore& store) { store.append(*batch, advantages, logprobs); });
}

void SampleWriter::append_evals(data::StepId step, std::vector<data::EvalAnswer> answers) {
  write([step, answers = std::move(answers)](data::SampleStore& store) { store.append_evals(step, answers); });
}

void SampleWriter::append_dropped(data::StepId step, std::vector<data::GroupId> groups) {
  write([step, groups = std::move(groups)](data::SampleStore& store) { store.append_dropped(step, groups); });
}

void SampleWriter::truncate_after(data::StepId step) {
  write([step](data::SampleStore& store) { store.truncate_after(step); });
}

void SampleWriter::adopt(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return;
  std::filesystem::copy_file(path, adopted_, std::filesystem::copy_options::overwrite_existing, failed);
  if (failed) throw PeerError(adopted_ + ": cannot be made: " + failed.message());
  write([copy = adopted_](data::SampleStore& store) { store.adopt(copy); });
}

void SampleWriter::flush() {
  if (unwritten_.empty()) write([](data::SampleStore& store) { store.flush(); });
  else try_all();
}

void SampleWriter::finish(const StopRequested& stop) {
  const Deadline deadline = Deadline::after_s(wait_s_);
  flush();
  while (!unwritten_.empty() && !deadline.passed() && !(stop && stop())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    try_all();
  }
  if (!unwritten_.empty()) throw PeerError(join_text(why_, "; rows of the last steps are missing"));
}

void SampleWriter::write(Work work) {
  unwritten_.push_back(std::move(work));
  try_all();
}

void SampleWriter::try_all() {
  try {
    for (; !unwritten_.empty(); unwritten_.pop_front()) unwritten_.front()(store_);
    if (failing_since_s_ > 0) log::info(path_, ": takes samples again");
    failing_since_s_ = 0;
    std::error_code absent;
    std::filesystem::remove(adopted_, absent);
  } catch (const PeerError& e) {
    why_ = e.what();
    if (failing_since_s_ > 0) return;
    failing_since_s_ = now_s();
    log::warning(why_, "; samples stay in memory and are tried again for ", wait_s_, " s (run.samples_wait_s)");
  }
}

std::exception_ptr SampleWriter::fault() const {
  if (failing_since_s_ == 0 || now_s() - failing_since_s_ <= wait_s_) return nullptr;
  return std::make_exception_ptr(PeerError(join_text(why_, ", for over ", wait_s_, " s (run.samples_wait_s)")));
}

void SampleWriter::save_unwritten(const std::string& path) const {
  if (unwritten_.empty()) return;
  data::SampleStore apart(path);
  for (const Work& work : unwritten_) work(apart);
  apart.flush();
}

}  // namespace tandem::runtime
