// SPDX-License-Identifier: Apache-2.0
// Which metric is drawn where. A metric that no panel names still gets one, under "Other".
import { number, bytes, seconds, percent } from './format.js';

const named = (...names) => (name) => names.includes(name);
const matching = (pattern) => (name) => pattern.test(name);

// The place of a question that became right (`example` of evaluation.js).
export const EXAMPLE = { group: 'Learning', title: 'A question', takes: () => false };

export const PANELS = [
  { group: 'Learning', title: 'Accuracy', takes: named('eval/accuracy'), format: percent, points: true },
  { group: 'Learning', title: 'Reward', takes: named('reward/mean') },
  EXAMPLE,
  { group: 'Learning', title: 'Mean score of the evaluation', takes: named('eval/score_mean'), points: true },
  { group: 'Learning', title: 'Parts of the reward', takes: matching(/^reward\/(?!mean$|std$)/) },
  { group: 'Learning', title: 'KL to the reference', takes: named('actor/kl_ref'), zero: true },
  { group: 'Learning', title: 'KL of rollout to training', takes: named('actor/kl_rollout_train'), zero: true },
  { group: 'Learning', title: 'Gap of log-probabilities, rollout to training', takes: named('gap/mean', 'gap/p99', 'gap/max'), zero: true },
  { group: 'Learning', title: 'Entropy', takes: named('actor/entropy') },
  { group: 'Learning', title: 'Clip fraction', takes: named('actor/clip_fraction'), format: percent, zero: true },
  { group: 'Learning', title: 'Gradient norm', takes: named('actor/grad_norm'), zero: true },
  { group: 'Learning', title: 'Learning rate', takes: named('actor/lr'), zero: true },
  { group: 'Learning', title: 'Loss', takes: named('actor/loss') },
  { group: 'Rollout', title: 'Answer length in tokens', takes: named('data/response_tokens_mean', 'data/response_tokens_max'), zero: true },
  { group: 'Rollout', title: 'Lag in updates', takes: named('staleness/lag_mean', 'staleness/lag_max'), zero: true },
  { group: 'Rollout', title: 'Groups of a batch by their lag', takes: matching(/^staleness\/lag_\d+$/), zero: true, stacked: true },
  { group: 'Rollout', title: 'Groups under way by state', takes: named('queue/waiting', 'queue/running', 'queue/scoring', 'queue/depth'),
    zero: true, stacked: true },
  { group: 'Rollout', title: 'Truncated answers', takes: named('data/truncated_fraction'), format: percent, zero: true },
  { group: 'System', title: 'Tokens per second', takes: matching(/^throughput\//), zero: true },
  // Scoring, waiting and exchanging happen during the rollout stage, and a late start is part of its stage: in the stack they would
  // count twice.
  { group: 'System', title: 'Time of each stage', takes: matching(/^time\/(?!(step|reward|wait|exchange)_s$|start_skew)/), format: seconds,
    zero: true, stacked: true },
  { group: 'System', title: 'Scoring and waiting within rollout', takes: named('time/reward_s', 'time/wait_s', 'time/exchange_s'),
    format: seconds, zero: true },
  { group: 'System', title: 'How far apart ranks start', takes: matching(/^time\/start_skew/), format: seconds, zero: true },
  { group: 'System', title: 'Share of a step that ranks wait', takes: matching(/^idle\//), format: percent, zero: true },
  { group: 'System', title: 'Time of a step', takes: named('time/step_s'), format: seconds, zero: true },
  { group: 'System', title: 'Memory by owner', takes: matching(/^memory\/(?!host_|offload_)(?!.*peak_bytes$)/), format: bytes, zero: true, stacked: true },
  { group: 'System', title: 'Peak memory by stage', takes: matching(/^memory\/.+_peak_bytes$/), format: bytes, zero: true },
  { group: 'System', title: 'Host memory by owner', takes: matching(/^memory\/host_/), format: bytes, zero: true, stacked: true },
  { group: 'System', title: 'Peak memory', takes: named('memory/peak_bytes'), format: bytes, zero: true },
];
export const GROUPS = ['Learning', 'Rollout', 'System', 'Other'];

export const HIDDEN = new Set(['step', 'policy_version']);

export function panel_of(name) {
  if (HIDDEN.has(name)) return null;
  return PANELS.find((panel) => panel.takes(name)) || { group: 'Other', title: name, takes: named(name) };
}

export const series_label = (name) => {
  const known = { 'eval/accuracy': 'accuracy', 'queue/depth': 'finished', 'throughput/tokens_per_s': 'whole step', 'throughput/tokens_per_s_per_device': 'per device' };
  const short = name.slice(name.indexOf('/') + 1).replace(/(_tokens_per)?_(s|bytes)$/, '');
  return known[name] || short.replace(/^(response_tokens|lag|start_skew)_/, '').replaceAll('_', ' ');
};

const last = (rows, name) => {
  for (let i = rows.length - 1; i >= 0; --i) if (typeof rows[i][name] === 'number') return rows[i][name];
  return undefined;
};
const first = (rows, name) => rows.find((row) => typeof row[name] === 'number')?.[name];

const TILES = [
  ['Accuracy', 'eval/accuracy', percent, (rows) => 'from ' + percent(first(rows, 'eval/accuracy'))],
  ['Reward', 'reward/mean', number, (rows) => 'from ' + number(first(rows, 'reward/mean'))],
  ['Answer length', 'data/response_tokens_mean', number, (rows) => 'longest ' + number(last(rows, 'data/response_tokens_max'))],
  ['KL rollout–train', 'actor/kl_rollout_train', number, () => ''],
  ['Entropy', 'actor/entropy', number, (rows) => 'from ' + number(first(rows, 'actor/entropy'))],
  ['Lag', 'staleness/lag_mean', number, (rows) => 'largest ' + number(last(rows, 'staleness/lag_max'))],
  ['Tokens/s', 'throughput/tokens_per_s', number, () => ''],
  ['Step', 'time/step_s', seconds, () => ''],
  ['Peak memory', 'memory/peak_bytes', bytes, () => ''],
];

export function tiles(rows) {
  return TILES.filter(([, name]) => last(rows, name) !== undefined)
    .map(([label, name, format, note]) => ({ label, value: format(last(rows, name)), note: note(rows) }));
}
