// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cuda/program.h"

namespace tandem::model::kernel::cuda {

// Elements are widened to fp32, sums are fp32, a result is rounded once to nearest even. Sums of a row go in one order, whatever the grid.
const char* const kTemplates[] = {"add_rms_norm", "rms_norm_backward", "rms_norm_weight", "rope",       "swiglu",
                                  "swiglu_backward", "write_cache",    "combine_parts",   "logit_grad", nullptr};

const char* const kSource = R"cuda(
struct Half { unsigned short bits; };
__device__ float wide(float x) { return x; }
__device__ float wide(Half x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ void put(float& to, float x) { to = x; }
__device__ void put(Half& to, float x) {
  const unsigned u = __float_as_uint(x);
  to.bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : static_cast<unsigned short>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// The sum over a block, on each of its threads.
__device__ float block_sum(float x) {
  __shared__ float parts[32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
  return sum;
}

// One block a row of H. delta may be null: then sum is x, and is not written.
template <class T>
__global__ void add_rms_norm(const T* x, const T* delta, const T* weight, T* sum, T* normed, float* rstd, long long H, float eps) {
  const long long row = blockIdx.x * H;
  float squares = 0;
  for (int i = threadIdx.x; i < H; i += blockDim.x) {
    float v = wide(x[row + i]);
    if (delta) {
      put(sum[row + i], v + wide(delta[row + i]));
      v = wide(sum[row + i]);
    }
    squares += v * v;
  }
  const float r = rsqrtf(block_sum(squares) / H + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  const T* from = delta ? sum : x;
  for (int i = threadIdx.x; i < H; i += blockDim.x) put(normed[row + i], wide(from[row + i]) * r * wide(weight[i]));
}

// dx of a row of H; d_sum may be null.
template <class T>
__global__ void rms_norm_backward(const T* d, const T* d_sum, const T* x, const T* weight, const float* rstd, T* dx, long long H) {
  const long long row = blockIdx.x * H;
  const float r = rstd[blockIdx.x];
  float dot = 0;
  for (int i = threadIdx.x; i < H; i += blockDim.x) dot += wide(d[row + i]) * wide(weight[i]) * wide(x[row + i]) * r;
  const float mean = block_sum(dot) / H;
  for (int i = threadIdx.x; i < H; i += blockDim.x) {
    float v = (wide(d[row + i]) * wide(weight[i]) - wide(x[row + i]) * r * mean) * r;
    if (d_sum) v += wide(d_sum[row + i]);
    put(dx[row + i], v);
  }
}

// What the weight gets of `rows` rows: one block for each part of the rows and of the columns.
template <class T>
__global__ void rms_norm_weight(const T* d, const T* x, const float* rstd, float* parts, long long T_, long long H, long long rows) {
  const long long columns = (H + blockDim.x - 1) / blockDim.x, part = blockIdx.x / columns;
  const long long i = blockIdx.x % columns * blockDim.x + threadIdx.x;
  if (i >= H) return;
  float sum = 0;
  for (long long t = part * rows; t < (part + 1) * rows && t < T_; ++t) sum += wide(d[t * H + i]) * wide(x[t * H + i]) * rstd[t];
  parts[part * H + i] = sum;
}

// One block a token: `heads` heads of D, of which the first `turned` turn by the angles of its position. bias may be null.
template <class T>
__global__ void rope(const T* in, const T* bias, const float* cos_sin, const long long* positions, T* out, long long heads,
                     long long turned, long long D, float sign) {
  const long long row = blockIdx.x * heads * D, half = D / 2;
  const float* angles = cos_sin + positions[blockIdx.x] * D;
  for (int p = threadIdx.x; p < heads * half; p += blockDim.x) {
    const long long head = p / half, i = p % half, first = head * D + i, second = first + half;
    float a = wide(in[row + first]), b = wide(in[row + second]);
    if (bias) a += wide(bias[first]), b += wide(bias[second]);
    if (head < turned) {
      const float c = angles[i], s = sign * angles[half + i], turned_a = a * c - b * s;
      b = b * c + a * s;
      a = turned_a;
    }
    put(out[row + first], a);
    put(out[row + second], b);
  }
}

// Elements of gate * sigmoid(gate) * up; gate_up rows are [gate | up], F each.
template <class T>
__global__ void swiglu(const T* gate_up, T* out, long long F, long long all) {
  const long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (e >= all) return;
  const long long row = e / F, i = e % F;
  const float g = wide(gate_up[2 * F * row + i]);
  put(out[e], g / (1 + expf(-g)) * wide(gate_up[2 * F * row + F + i]));
}

template <class T>
__global__ void swiglu_backward(const T* gate_up, const T* d, T* out, long long F, long long all) {
  const long long e = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  if (e >= all) return;
  const long long row = e / F, i = e % F;
  const float g = wide(gate_up[2 * F * row + i]), up = wide(gate_up[2 * F * row + F + i]);
  const float s = 1 / (1 + expf(-g)), through = wide(d[e]) * s;
  put(out[2 * F * row + i], through * up * (1 + g * (1 - s)));
  put(out[2 * F * row + F + i], through * g);
}

// One block a token: keys and values of width KD behind Q columns of queries go to where its position lies in its blocks.
template <class T>
__global__ void write_cache(const T* qkv, const int* tables, const long long* positions, T* keys, T* values, long long Q, long long KD,
                            long long blocks, long long block_tokens) {
  const long long t = blockIdx.x, position = positions[t];
  const long long slot = tables[t * blocks + position / block_tokens] * block_tokens + position % block_tokens;
  const T* row = qkv + t * (Q + 2 * KD) + Q;
  for (int i = threadIdx.x; i < KD; i += blockDim.x) keys[slot * KD + i] = row[i], values[slot * KD + i] = row[KD + i];
}

// The mix of C parts of keys for one token and head, from each part's mix and log sum; used[t * C + c] is 0 where there is no part.
template <class T>
__global__ void combine_parts(const T* parts, const float* lse, const int* used, T* out, long long N, long long D, long long C,
                              long long P) {
  const long long t = blockIdx.x / N, n = blockIdx.x % N;
  float most = -1e30f, sum = 0;
  for (int c = 0; c < C; ++c)
    if (used[t * C + c] > 0) most = fmaxf(most, lse[n * P + t * C + c]);
  for (int c = 0; c < C; ++c)
    if (used[t * C + c] > 0) sum += expf(lse[n * P + t * C + c] - most);
  for (int i = threadIdx.x; i < D; i += blockDim.x) {
    float mixed = 0;
    for (int c = 0; c < C; ++c)
      if (used[t * C + c] > 0) mixed += expf(lse[n * P + t * C + c] - most) * wide(parts[((t * C + c) * N + n) * D + i]);
    put(out[(t * N + n) * D + i], mixed / sum);
  }
}

__device__ double block_sum(double x) {
  __shared__ double parts[32];
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
  for (int w = 0; w < blockDim.x / 32; ++w) sum += parts[w];
  return sum;
}

__device__ bool is_larger(float a, float b) { return a > b || (isnan(a) && !isnan(b)); }

// Where the largest of V is, of equals the first; on each thread of the block. NaN counts as the largest.
__device__ int largest_of(const float* row, long long V) {
  __shared__ float values[32];
  __shared__ int places[32];
  float most = __int_as_float(0xff800000);  // minus infinity
  int place = 0x7fffffff;
  for (int i = threadIdx.x; i < V; i += blockDim.x)
    if (place == 0x7fffffff || is_larger(row[i], most)) most = row[i], place = i;
  for (int step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, most, step);
    const int at = __shfl_xor_sync(0xffffffffu, place, step);
    if (is_larger(other, most) || (other == most && at < place)) most = other, place = at;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = most, places[threadIdx.x / 32] = place;
  __syncthreads();
  for (int w = 0; w < blockDim.x / 32; ++w)
    if (is_larger(values[w], most) || (values[w] == most && places[w] < place)) most = values[w], place = places[w];
  return place;
}

// One block a row: the largest; the sum of exp(z) without it; the sum of exp(z) z; the target's logit, 0 where the shard has it not.
extern "C" __global__ void logit_stats(const float* logits, long long stride, const long long* targets, float inv_temperature,
                                       float* stats, long long V) {
  const float* row = logits + blockIdx.x * stride;
  const int top = largest_of(row, V);
  const float most = row[top];
  float sum = 0, weighted = 0;
  for (int i = threadIdx.x; i < V; i += blockDim.x) {
    const float z = (row[i] - most) * inv_temperature, e = expf(z);
    if (i != top && !(e == 0)) sum += e, weighted += e * z;
  }
  sum = block_sum(sum);
  weighted = block_sum(weighted);
  if (threadIdx.x > 0) return;
  const long long target = targets[blockIdx.x];
  float* out = stats + 4 * blockIdx.x;
  out[0] = most, out[1] = sum, out[2] = weighted, out[3] = target >= 0 && target < V ? row[target] : 0;
}

// One block a row: (onehot - p) d_logprob / T - p (log p + entropy) d_entropy / T. softmax_R3: the largest, log sum, entropy.
template <class T>
__global__ void logit_grad(const float* logits, long long stride, const float* softmax, const long long* targets, const float* d_logprob,
                           const float* d_entropy, float inv_temperature, T* out, long long V) {
  const float* row = logits + blockIdx.x * stride;
  const float most = softmax[3 * blockIdx.x], log_sum = softmax[3 * blockIdx.x + 1], entropy = softmax[3 * blockIdx.x + 2];
  const float by_target = d_logprob ? d_logprob[blockIdx.x] * inv_temperature : 0;
  const float by_entropy = d_entropy ? d_entropy[blockIdx.x] * inv_temperature : 0;
  const long long target = targets[blockIdx.x];
  for (int i = threadIdx.x; i < V; i += blockDim.x) {
    const float log_p = (row[i] - most) * inv_temperature - log_sum, p = expf(log_p);
    float d = i == target ? -by_target * expm1f(log_p) : -by_target * p;
    if (by_entropy != 0 && p > 0) d -= p * (log_p + entropy) * by_entropy;
    put(out[blockIdx.x * V + i], d);
  }
}

// One block a draw, without top-k and top-p. numbers[3, D]: row, temperature (0: the largest), uniform. words[4, D]: token,
// log-probability, log of the kept mass, and what is not finite if the logits are not. Threads take stretches of ids, so that masses add up
// in their order.
extern "C" __global__ void draw(const float* logits, long long stride, const double* numbers, float* words, long long D, long long V,
                                long long allowed) {
  __shared__ double before[1025];
  __shared__ int token_of_block;
  const long long d = blockIdx.x;
  const float* row = logits + static_cast<long long>(numbers[d]) * stride;
  const double temperature = numbers[D + d], uniform = numbers[2 * D + d];
  const float inv = temperature == 0 ? 1.0f : static_cast<float>(1.0 / temperature);
  const int top = largest_of(row, V), first = largest_of(row, allowed);
  const float most = row[top];
  float others = 0;
  for (int i = threadIdx.x; i < V; i += blockDim.x)
    if (i != top) others += expf((row[i] - most) * inv);
  others = block_sum(others);
  const long long width = (allowed + blockDim.x - 1) / blockDim.x, begin = threadIdx.x * width;
  const long long end = begin + width < allowed ? begin + width : allowed;
  double mine = 0;
  for (long long i = begin; i < end; ++i) mine += static_cast<double>(expf((row[i] - row[first]) * inv));
  before[threadIdx.x + 1] = mine;
  if (threadIdx.x == 0) token_of_block = first;
  __syncthreads();
  if (threadIdx.x == 0) {
    before[0] = 0;
    for (int t = 1; t <= blockDim.x; ++t) before[t] += before[t - 1];
  }
  __syncthreads();
  const double total = before[blockDim.x], wanted = uniform * total;
  // The stretch in which the sum first exceeds what is wanted; the last with any mass, if rounding hides it.
  const double behind = before[threadIdx.x + 1];
  if (temperature != 0 && mine > 0 && before[threadIdx.x] <= wanted && (behind > wanted || behind == total)) {
    double sum = before[threadIdx.x];
    long long last = begin;
    for (long long i = begin; i < end; ++i) {
      const double e = static_cast<double>(expf((row[i] - row[first]) * inv));
      if (e > 0) last = i;
      sum += e;
      if (sum > wanted) break;
    }
    atomicMax(&token_of_block, static_cast<int>(last) | 0x40000000);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  const int token = token_of_block & 0x3fffffff;
  words[d] = __int_as_float(token);
  const float log_sum = log1pf(others);
  words[D + d] = (row[token] - most) * inv - log_sum;
  words[2 * D + d] = allowed == V ? 0 : fminf(0, static_cast<float>(log(total)) + (row[first] - most) * inv - log_sum);
  words[3 * D + d] = most + others + row[first];
}

)cuda";

}  // namespace tandem::model::kernel::cuda
