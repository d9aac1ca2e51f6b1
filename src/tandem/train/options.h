// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>

#include "tandem/base/options.h"

namespace tandem::train {

struct Options {
  double lr = 1e-6;
  std::string lr_schedule = "constant";
  int64_t warmup_steps = 0;
  int64_t lr_steps = 0;
  double min_lr_ratio = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decay_norms = false;
  double clip_grad_norm = 1.0;
  int64_t micro_batch_tokens = 8192;
  int64_t logprob_micro_batch_tokens = 16384;
  int64_t reference_micro_batch_tokens = 16384;
  std::string recompute = "none";
  int64_t gradient_bucket_mib = 64;
  bool swap_optimizer = false;
  double router_balance_coef = 0;
  double router_z_coef = 0;
  double router_bias_rate = 0;
  std::string nonfinite = "end";
};

inline void describe(OptionVisitor& field, Options& o) {
  field("lr", o.lr, "Learning rate at its highest.", at_least(0.0));
  field("lr_schedule", o.lr_schedule, "Course after the warm-up.", one_of({"constant", "linear", "cosine"}));
  field("warmup_steps", o.warmup_steps, "Steps in which the learning rate rises linearly.", at_least(0));
  field("lr_steps", o.lr_steps,
        "Step at which linear and cosine end; 0: the steps that the run had when it first started, so that more steps on resume do not "
        "raise the learning rate again.", at_least(0));
  field("min_lr_ratio", o.min_lr_ratio, "Where linear and cosine end, as a share of lr.", between(0.0, 1.0));
  field("beta1", o.beta1, "AdamW's decay of the first moment.", between(0.0, 0.99999));
  field("beta2", o.beta2, "AdamW's decay of the second moment.", between(0.0, 0.9999999));
  field("eps", o.eps, "AdamW's epsilon.", above(0.0));
  field("weight_decay", o.weight_decay, "AdamW's decoupled weight decay.", at_least(0.0));
  field("decay_norms", o.decay_norms, "Weight decay pulls on norms and biases, too, as torch's AdamW does unless it is told otherwise.");
  field("clip_grad_norm", o.clip_grad_norm, "Largest global gradient norm; 0 is no bound.", at_least(0.0));
  field("micro_batch_tokens", o.micro_batch_tokens, "Packed tokens of one forward and backward pass, per rank.", at_least(1));
  field("logprob_micro_batch_tokens", o.logprob_micro_batch_tokens, "Packed tokens of one pass of the actor's old-logprob stage.",
        at_least(1));
  field("reference_micro_batch_tokens", o.reference_micro_batch_tokens, "Packed tokens of one pass of the reference stage.", at_least(1));
  field("recompute", o.recompute,
        "What the backward pass computes again instead of keeping it: selective the norms and activations, full all but the inputs of layers.",
        one_of({"none", "selective", "full"}));
  field("gradient_bucket_mib", o.gradient_bucket_mib,
        "Gradients of whole layers up to so many MiB are summed over the ranks together, while the backward pass goes on.", at_least(1));
  field("swap_optimizer", o.swap_optimizer,
        "Keep fp32 master weights and moments in host memory; they go through the device in chunks during the update.");
  field("router_balance_coef", o.router_balance_coef,
        "Experts: coefficient of the load-balancing loss of each sparse layer, over the trained tokens of the whole step. Without replayed "
        "routes it costs a forward pass more.", at_least(0.0));
  field("router_z_coef", o.router_z_coef, "Experts: coefficient of the z-loss of each layer's router.", at_least(0.0));
  field("router_bias_rate", o.router_bias_rate,
        "Experts with a correction bias (DeepSeek-V3): what a step adds to it for a load below the mean and takes for one above.",
        at_least(0.0));
  field("nonfinite", o.nonfinite,
        "An update whose loss or gradient is not finite: end saves the last step and ends the run; skip leaves the weights as they are, "
        "counts it in actor/nonfinite_updates (critic/ for the critic), and goes on. A loss of yours in Python that returns NaN ends the "
        "run all the same.",
        one_of({"end", "skip"}));
}

/// Where the course of the learning rate ends: as the option says, else as the run `began` (0: it begins now), else with its steps.
int64_t lr_steps_of(const Options& options, int64_t began, int64_t run_steps);
/// Learning rate of `step` (from 1), of a course of `lr_steps`.
double learning_rate(const Options& options, int64_t step, int64_t lr_steps);

}  // namespace tandem::train
