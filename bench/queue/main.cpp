// SPDX-License-Identifier: Apache-2.0
// tandem-bench: benchmarks of the queue and of weights that workers fetch. `tandem bench` hands its arguments to it.
#include "queue/queue.h"
#include "queue/queue_load.h"
#include "queue/tensor_cache.h"
#include "queue/weights_pull.h"
#include "tandem/cli/app.h"
#include "tandem/cli/command/benchmarks.h"
#include "tandem/device/process.h"

namespace tandem {
namespace {

class QueueBenchmarks final : public cli::Benchmarks {
 public:
  void declare(CLI::App& app) override {
    app.require_subcommand(1);
    CLI::App* queue = add(app, "queue", "Samples from process to process, by way of a controller", queue_, bench::queue);
    add_lengths(*queue, queue_.lengths, "Lengths of the ragged samples, one after the other: a JSON array");
    queue->footer(
        "put_mb_s: from columns in a worker's memory to samples that others can read; get_mb_s: from the call for a batch to rows that a\n"
        "trainer reads, and the end of its step; chunked_*: in batches of --chunk; ragged_*: of unequal lengths. metadata_us: leasing a\n"
        "group, with --clients connected of which one calls; metadata_calls_per_s: all do.\n"
        "Example:\n  tandem bench queue --samples 1024 --seq 2048");

    CLI::App* load = add(app, "queue_load", "Bytes that a batch costs the store that has it", queue_load_, bench::queue_load);
    add_lengths(*load, queue_load_.lengths, "Lengths of the samples, one after the other: a JSON array");
    load->footer(
        "flat_bytes: each rank of the replica fetches the batch; hierarchical_bytes: one does, and hands on; load_ratio: their ratio.\n"
        "padded_bytes: the response columns, each sample as long as the longest; unpadded_bytes: end to end, as they travel here.\n"
        "Example:\n  tandem bench queue_load --layout tp8,pp16 --lengths bench/lengths/ragged-128x256.json");

    cache_ = add(app, "tensor_cache", "A batch from one stage to the next, among ranks", tensor_cache_, bench::tensor_cache);
    cache_->footer(
        "equal_s and unequal_s: from columns in memory to rows that the next stage can read, where it wants them on the rank that made\n"
        "them, and where it wants half of them on another; ragged_*: rows of an eighth of --seq to all of it. start_skew_s: how far apart\n"
        "the ranks can start that stage. docs/design/tensor_cache.md compares them with others.\n"
        "Example:\n  scripts/mpi -n 2 build/release/tandem bench tensor_cache --samples 1024 --seq 2048");

    add(app, "weights_pull", "A version of the weights, from a run to its workers", weights_pull_, bench::weights_pull)
        ->footer(
            "mapped_1, mapped_all: one worker of this machine, and all at once; sockets_*: by sockets, from the run or from each other.\n"
            "*_mb_s: of a version, until the last has it; *_copies_made, *_copies_sent: what a version costs the run.\n"
            "Example:\n  tandem bench weights_pull --model DIR --workers 8");
  }

  bool is_for_every_rank() const override { return cache_->count() > 0; }

 private:
  bench::QueueOptions queue_;
  bench::QueueLoadOptions queue_load_;
  bench::TensorCacheOptions tensor_cache_;
  bench::WeightsPullOptions weights_pull_;
  CLI::App* cache_ = nullptr;
};

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::device::tune_allocator();
  return tandem::cli::main(argc, argv, [] { return std::unique_ptr<tandem::cli::Command>(new tandem::QueueBenchmarks); });
}
