// SPDX-License-Identifier: Apache-2.0
#include "tandem/runtime/folder/sample_writer.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/data/columns.h"
#include "tandem/data/schema.h"
#include "tandem/device/process.h"

namespace tandem::runtime {
namespace {

constexpr int64_t kMostSteps = 4;       // that wait to be written while the next is made
constexpr double kMostQuiet_s = 60;     // for which a caller waits while nothing gets written
constexpr double kBetweenTries_s = 0.1, kMostBetweenTries_s = 2;
constexpr const char* kTrained = "train_logprobs";  // of a packed part, beside the columns of data::fields_of

/// A file of a part cannot be read, or is not what it was.
class PartMissing : public PeerError {
  using PeerError::PeerError;
};

/// What SampleStore::append writes.
struct WholeStep {
  data::Batch batch;
  std::vector<std::vector<float>> train_logprobs;
};

/// Gives heads their bodies.
class Joiner {
 public:
  explicit Joiner(const data::Batch& heads) : whole_{heads, {}} {
    size_t row = 0;
    for (size_t g = 0; g < heads.groups.size(); ++g)
      for (size_t i = 0; i < heads.groups[g].samples.size(); ++i) places_[heads.groups[g].samples[i].id] = {g, i, row++};
    whole_.train_logprobs.resize(row);
  }

  // Errors: PartMissing.
  void add(const SamplePart& part, const std::string& of) {
    size_t next = 0;
    for (const data::Group& group : part.groups)
      for (const data::Sample& sample : group.samples) {
        const auto found = places_.find(sample.id);
        if (found == places_.end() || next == part.train_logprobs.size())
          throw PartMissing(join_text(of, ": has no place for sample ", value(sample.id), " of its step"));
        const Place place = found->second;
        places_.erase(found);
        data::Group& head = whole_.batch.groups[place.group];
        if (place.sample == 0) set_body(head.prompt, group.prompt);
        set_body(head.samples[place.sample], sample);
        whole_.train_logprobs[place.row] = part.train_logprobs[next++];
      }
  }

  // Errors: PartMissing.
  const WholeStep& whole() const {
    if (!places_.empty())
      throw PartMissing(join_text("step ", value(whole_.batch.step), ": no rank has given sample ", value(places_.begin()->first)));
    return whole_;
  }

 private:
  struct Place {
    size_t group, sample, row;
  };
  WholeStep whole_;
  std::unordered_map<data::SampleId, Place> places_;  // of those that have not come

  static void set_body(auto& head, const auto& from) {
    data::each_list(head, [&](const auto& column, auto& list) { list = from.*column.list; });
  }
};

/// A step as it is appended.
struct Appended {
  data::Batch heads;
  std::vector<double> advantages;
  StepParts parts;
};

void write_step(const Appended& step, data::SampleStore& store) {
  Joiner joiner(step.heads);
  for (const SamplePart& part : step.parts.here) joiner.add(part, "a part in memory");
  for (const std::string& file : step.parts.files) {
    std::optional<SamplePart> part;
    try {
      part = read_part(file);
    } catch (const PeerError& e) {
      throw PartMissing(e.what());
    }
    joiner.add(*part, file);
  }
  const WholeStep& whole = joiner.whole();
  store.append(whole.batch, step.advantages, whole.train_logprobs);
}

void remove_files(const std::vector<std::string>& files) {
  std::error_code absent;
  for (const std::string& file : files) std::filesystem::remove(file, absent);
}

}  // namespace

std::string parts_dir(const std::string& run_dir) { return run_dir + "/samples.d"; }

std::string part_file(const std::string& run_dir, data::StepId step, int rank) {
  return join_text(parts_dir(run_dir), '/', value(step), '.', rank);
}

std::vector<std::byte> pack(const SamplePart& part) {
  data::Fields fields = data::fields_of(part.groups);
  std::vector<float> values;
  std::vector<int64_t> lengths;
  for (const std::vector<float>& row : part.train_logprobs) {
    values.insert(values.end(), row.begin(), row.end());
    lengths.push_back(std::ssize(row));
  }
  fields[kTrained] = {std::move(values), std::move(lengths)};
  return data::pack(fields);
}

SamplePart unpack_part(std::span<const std::byte> bytes) {
  const data::Fields fields = data::unpack(bytes);
  SamplePart part{data::groups_of(fields), {}};
  const auto found = fields.find(kTrained);
  const auto* values = found == fields.end() ? nullptr : std::get_if<std::vector<float>>(&found->second.values);
  if (!values) throw PeerError(join_text("packed samples: the field ", kTrained, " is missing, or has another type"));
  auto from = values->begin();
  for (const int64_t length : found->second.lengths) {
    part.train_logprobs.emplace_back(from, from + length);
    from += length;
  }
  return part;
}

void write_part(const std::string& path, std::span<const std::byte> bytes) {
  try {
    write_file(path, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  } catch (const PeerError&) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
    throw;
  }
}

SamplePart read_part(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, INT64_MAX);
  } catch (const UserError& e) {
    throw PeerError(e.what());
  }
  try {
    return unpack_part(std::as_bytes(std::span(bytes)));
  } catch (const PeerError& e) {
    throw PeerError(path + ": " + e.what());
  }
}

SampleWriter::SampleWriter(const std::string& path, const config::RunOptions& options)
    : path_(path),
      parts_dir_(parts_dir(std::filesystem::path(path).parent_path().string())),
      adopted_(path + ".adopted"),
      wait_s_(options.samples_wait_s),
      store_(path, {options.samples_steps, options.samples_every}) {
  std::error_code ignored;
  std::filesystem::remove_all(parts_dir_, ignored);
  std::filesystem::remove(adopted_, ignored);
  thread_ = std::thread([this] { write_all(); });
}

SampleWriter::~SampleWriter() {
  {
    std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  std::error_code in_use;
  std::filesystem::remove(parts_dir_, in_use);  // not what it holds
}

void SampleWriter::open_parts() {
  std::error_code failed;
  std::filesystem::create_directory(parts_dir_, failed);
  if (failed) log::warning(parts_dir_, ": cannot be made: ", failed.message(), "; ranks send their samples");
}

void SampleWriter::append(data::Batch heads, std::vector<double> advantages, StepParts parts) {
  {
    std::unique_lock lock(mutex_);
    wait_until(lock, [this] { return num_steps_ < kMostSteps || failing_since_s_ > 0; });
  }
  const auto step = std::make_shared<const Appended>(Appended{std::move(heads), std::move(advantages), std::move(parts)});
  add({[step](data::SampleStore& store) { write_step(*step, store); }, step->parts.files, true});
}

void SampleWriter::append_evals(data::StepId step, std::vector<data::EvalAnswer> answers) {
  add({[step, answers = std::move(answers)](data::SampleStore& store) { store.append_evals(step, answers); }, {}, false});
}

void SampleWriter::append_dropped(data::StepId step, std::vector<data::GroupId> groups) {
  add({[step, groups = std::move(groups)](data::SampleStore& store) { store.append_dropped(step, groups); }, {}, false});
}

void SampleWriter::truncate_after(data::StepId step) {
  add({[step](data::SampleStore& store) { store.truncate_after(step); }, {}, false});
  settle();
}

void SampleWriter::adopt(const std::string& path) {
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return;
  std::filesystem::copy_file(path, adopted_, std::filesystem::copy_options::overwrite_existing, failed);
  if (failed) throw PeerError(adopted_ + ": cannot be made: " + failed.message());
  add({[copy = adopted_](data::SampleStore& store) { store.adopt(copy); }, {adopted_}, false});
  settle();
}

void SampleWriter::flush() {
  add({[](data::SampleStore& store) { store.flush(); }, {}, false});
  settle();
}

void SampleWriter::finish(const StopRequested& stop) {
  const Deadline deadline = Deadline::after_s(wait_s_);
  flush();
  std::unique_lock lock(mutex_);
  while (!unwritten_.empty() && !bug_ && !deadline.passed() && !(stop && stop()))
    changed_.wait_for(lock, duration_of_s(kBetweenTries_s));
  if (bug_) std::rethrow_exception(bug_);
  if (!unwritten_.empty()) throw PeerError(join_text(why_, "; rows of the last steps are missing"));
}

std::exception_ptr SampleWriter::fault() const {
  std::lock_guard lock(mutex_);
  if (bug_) return bug_;
  if (failing_since_s_ == 0 || now_s() - failing_since_s_ <= wait_s_) return nullptr;
  return std::make_exception_ptr(PeerError(join_text(why_, ", for over ", wait_s_, " s (run.samples_wait_s)")));
}

void SampleWriter::save_unwritten(const std::string& path) const {
  std::lock_guard store_lock(store_mutex_);  // no file that a work reads goes meanwhile
  std::deque<Work> unwritten;
  {
    std::lock_guard lock(mutex_);
    unwritten = unwritten_;
  }
  if (unwritten.empty()) return;
  data::SampleStore apart(path);
  for (const Work& work : unwritten) {
    try {
      work.write(apart);
    } catch (const PartMissing& e) {
      log::warning(e.what(), "; ", path, " is without the samples of its step");
    } catch (const InternalError& e) {  // the one that bug_ has, and the end of the run tells
      log::warning(e.what(), "; ", path, " is without what could not be written for it");
    }
  }
  apart.flush();
}

int64_t SampleWriter::num_samples() const {
  std::lock_guard store_lock(store_mutex_);
  return store_.num_samples();
}

void SampleWriter::add(Work work) {
  {
    std::lock_guard lock(mutex_);
    num_steps_ += work.is_step;
    unwritten_.push_back(std::move(work));
    ++num_added_;
  }
  changed_.notify_all();
}

// Until all that came so far is written, or the next try fails.
void SampleWriter::settle() {
  std::unique_lock lock(mutex_);
  const int64_t last = num_added_;
  tries_now_ = true;
  changed_.notify_all();
  const int64_t failures = num_failures_;
  wait_until(lock, [&] { return num_written_ >= last || num_failures_ > failures; });
}

// Until `is_over`; that nothing gets written for long is a failure, too.
void SampleWriter::wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& is_over) {
  for (int64_t written = -1; written != num_written_;) {
    written = num_written_;
    if (changed_.wait_for(lock, duration_of_s(kMostQuiet_s), [&] { return is_over() || bug_; })) return;
  }
  note_failure(join_text(path_, ": nothing was written for ", kMostQuiet_s, " s"));
}

void SampleWriter::note_failure(const std::string& why) {
  why_ = why;
  ++num_failures_;
  changed_.notify_all();
  if (failing_since_s_ > 0) return;
  failing_since_s_ = now_s();
  log::warning(why_, "; samples stay in memory and are tried again for ", wait_s_, " s (run.samples_wait_s)");
}

void SampleWriter::write_all() {
  device::name_thread("samples");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return is_closing_ || !unwritten_.empty(); });
    if (unwritten_.empty()) return;
    const int64_t written = num_written_;
    lock.unlock();
    try_first();
    lock.lock();
    if (num_written_ > written) num_tries_ = 0;
    if (num_written_ > written) continue;
    if (bug_ || is_closing_) return;
    const double pause_s = kBetweenTries_s * static_cast<double>(++num_tries_);  // a try reads the files of all ranks
    changed_.wait_for(lock, duration_of_s(std::min(kMostBetweenTries_s, pause_s)), [this] { return is_closing_ || tries_now_; });
    tries_now_ = false;
  }
}

// Callers add behind the first work, and take none away.
void SampleWriter::try_first() {
  std::lock_guard store_lock(store_mutex_);
  const Work* first = nullptr;
  {
    std::lock_guard lock(mutex_);
    first = &unwritten_.front();
  }
  std::exception_ptr bug;
  try {
    first->write(store_);
  } catch (const PeerError& e) {
    std::lock_guard lock(mutex_);
    return note_failure(e.what());
  } catch (...) {
    bug = std::current_exception();
  }
  if (!bug) remove_files(first->files);
  std::lock_guard lock(mutex_);
  bug_ = bug;
  if (!bug) {
    num_steps_ -= first->is_step;
    unwritten_.pop_front();
    ++num_written_;
    if (failing_since_s_ > 0) log::info(path_, ": takes samples again");
    failing_since_s_ = 0;
  }
  changed_.notify_all();
}

}  // namespace tandem::runtime
