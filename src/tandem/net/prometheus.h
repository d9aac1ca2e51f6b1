// SPDX-License-Identifier: Apache-2.0
#pragma once
// Metrics in Prometheus' text exposition format, version 0.0.4: what `tandem board` answers at /metrics.

#include <map>
#include <string>
#include <string_view>

namespace tandem::net {

/// The media type of exposition().
constexpr const char* kPrometheusText = "text/plain; version=0.0.4; charset=utf-8";

/// "reward/mean" as "tandem_reward_mean": what is no ASCII letter or digit becomes _.
std::string prometheus_name(std::string_view metric);

/// A gauge for each metric, with its own name in the line HELP. Metrics that share a name there are one gauge with a label `metric`.
/// Source: https://prometheus.io/docs/instrumenting/exposition_formats/
std::string exposition(const std::map<std::string, double>& metrics);

}  // namespace tandem::net
