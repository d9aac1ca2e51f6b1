// SPDX-License-Identifier: Apache-2.0
#include "tandem/model/kernel/cpu/product/gemm.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "tandem/base/check.h"
#include "tandem/base/clock.h"
#include "tandem/model/kernel/cpu/product/brgemm.h"

// The libtorch wheel carries a BLAS and exports it without a header; weak, because not every build has every symbol.
extern "C" {
void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
            const int*, const float*, float*, const int*) __attribute__((weak));
void cblas_gemm_bf16bf16f32(int layout, int trans_a, int trans_b, int m, int n, int k, float alpha, const uint16_t* a, int lda,
                            const uint16_t* b, int ldb, float beta, float* c, int ldc) __attribute__((weak));
}
namespace at::native {
// Exported by libtorch_cpu without a header; torch is pinned in scripts/setup.
void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result, float beta, float alpha);
}

namespace tandem::model::kernel::cpu {
namespace {

// The item for which `seconds` is least.
template <class T>
T quickest(const std::vector<T>& items, const std::function<double(T)>& seconds) {
  T best = items.front();
  double least = 1e9;
  for (const T item : items)
    if (const double s = seconds(item); s < least) best = item, least = s;
  return best;
}

int as_int(int64_t n) { return static_cast<int>(n); }

// at::Tensor view of a strided row-major matrix, for machines without the BLAS symbols.
at::Tensor matrix(const float* p, int64_t rows, int64_t columns, int64_t ld) {
  return at::from_blob(const_cast<float*>(p), {rows, columns}, {ld, 1}, at::kFloat);
}

double seconds_of(const std::function<void()>& run) {
  run();
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double begin = now_s();
    run();
    best = std::min(best, now_s() - begin);
  }
  return best;
}

void multiply_float(const Product& p, const at::Tensor& a, const at::Tensor& b, at::Tensor& c) {
  product(p, a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>());
}

const Half* half(const at::Tensor& t) { return static_cast<const Half*>(t.data_ptr()); }

// Libtorch takes oneDNN's fp32 product only on processors that it lists; on others the call throws.
bool onednn_multiplies_float() {
  static const bool does = [] {
    at::Tensor a = at::zeros({2, 2}, at::kFloat), c = at::zeros({2, 2}, at::kFloat);
    try {
      at::native::mkldnn_matmul(a, a, c, 0.0f, 1.0f);
    } catch (const c10::Error&) {
      return false;
    }
    return true;
  }();
  return does;
}

constexpr int64_t kCopyElements = 1 << 18;  // of a bfloat16 weight that are fp32 at a time
constexpr int64_t kCopyRows = 1024;         // of bfloat16 activations

void weight_grad_of_copies(at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x) {
  for (int64_t begin = 0; begin < dy.size(0); begin += kCopyRows) {
    const int64_t rows = std::min(kCopyRows, dy.size(0) - begin);
    const at::Tensor d = dy.narrow(0, begin, rows).to(at::kFloat), some = x.narrow(0, begin, rows).to(at::kFloat);
    if (onednn_multiplies_float()) at::native::mkldnn_matmul(d.t(), some, dw, 1.0f, 1.0f);
    else multiply_float({true, false, d.size(1), some.size(1), rows, d.stride(0), some.stride(0), dw.stride(0), 1.0f, 1.0f}, d, some, dw);
  }
}

}  // namespace

void product(const Product& p, const float* a, const float* b, float* c) {
  if (sgemm_) {
    // Row-major c = op(a) op(b) is column-major c^T = op(b)^T op(a)^T.
    const char ta = p.transpose_a ? 'T' : 'N', tb = p.transpose_b ? 'T' : 'N';
    const int m = as_int(p.m), n = as_int(p.n), k = as_int(p.k), lda = as_int(p.lda), ldb = as_int(p.ldb), ldc = as_int(p.ldc);
    sgemm_(&tb, &ta, &n, &m, &k, &p.alpha, b, &ldb, a, &lda, &p.beta, c, &ldc);
    return;
  }
  at::Tensor ta = p.transpose_a ? matrix(a, p.k, p.m, p.lda).t() : matrix(a, p.m, p.k, p.lda);
  at::Tensor tb = p.transpose_b ? matrix(b, p.n, p.k, p.ldb).t() : matrix(b, p.k, p.n, p.ldb);
  at::Tensor tc = matrix(c, p.m, p.n, p.ldc);
  if (p.beta == 0) tc.zero_();
  at::addmm_out(tc, tc, ta, tb, p.beta, p.alpha);
}

bool half_product_available() { return cblas_gemm_bf16bf16f32 != nullptr; }

void product(const Product& p, const Half* a, const Half* b, float* c) {
  constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;
  TANDEM_CHECK(half_product_available(), "this libtorch has no bfloat16 BLAS");
  cblas_gemm_bf16bf16f32(kRowMajor, p.transpose_a ? kTransposed : kPlain, p.transpose_b ? kTransposed : kPlain, as_int(p.m), as_int(p.n),
                         as_int(p.k), p.alpha, a, as_int(p.lda), b, as_int(p.ldb), p.beta, c, as_int(p.ldc));
}

bool can_compute(const GemmChoice& c, c10::ScalarType dtype) {
  const bool onednn = c.forward == Library::kOneDnn || c.input_grad == Library::kOneDnn || c.weight_grad == Library::kOneDnn;
  const bool brgemm = c.weight_grad == Library::kBrgemm || c.logits == Logits::kBrgemm;
  if (c.forward == Library::kBrgemm || c.input_grad == Library::kBrgemm) return false;
  if (dtype == at::kFloat) return c.logits == Logits::kCopies && !brgemm && (!onednn || onednn_multiplies_float());
  if (c.forward != Library::kOneDnn || c.input_grad != Library::kOneDnn) return false;
  const bool blas = c.weight_grad == Library::kBlas || c.logits == Logits::kBlas;
  return (!blas || half_product_available()) && (!brgemm || brgemm_available());
}

GemmChoice plain_choice(c10::ScalarType dtype) {
  if (dtype == at::kFloat) return {};
  return {Library::kOneDnn, Library::kOneDnn, Library::kOneDnn, Logits::kCopies};
}

std::string choices(c10::ScalarType dtype) {
  if (dtype == at::kFloat)
    return "for float32 such as 'blas blas onednn float': blas or onednn for forward, input and weight gradient, then float";
  std::string weights = "onednn", logits = "float";
  if (half_product_available()) weights += " or blas", logits += " or half";
  if (brgemm_available()) weights += " or brgemm", logits += " or brgemm";
  return "for bfloat16 such as 'onednn onednn onednn float': " + weights + " for the weight gradient, " + logits + " for logits";
}

namespace {

void forward_chunk(at::Tensor& out, const at::Tensor& x, const at::Tensor& w, Library library) {
  if (x.scalar_type() == at::kFloat && library == Library::kBlas) {
    multiply_float({false, true, x.size(0), w.size(0), x.size(1), x.stride(0), w.stride(0), out.stride(0)}, x, w, out);
  } else if (x.scalar_type() == at::kFloat) {
    at::native::mkldnn_matmul(x, w.t(), out, 0.0f, 1.0f);
  } else {
    at::mm_out(out, x, w.t());
  }
}

// library: of this product, whatever the choice says of others.
void forward_by(const Numerics& n, Library library, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  TANDEM_CHECK(x.size(1) == w.size(1) && out.size(0) == x.size(0) && out.size(1) == w.size(0), "linear shapes");
  const int64_t M = x.size(0);
  if (M == 0) return;
  if (!n.parity) return forward_chunk(out, x, w, library);
  for (int64_t begin = 0; begin < M; begin += kParityRows) {
    const int64_t rows = std::min(kParityRows, M - begin);
    if (rows == kParityRows) {
      at::Tensor part = out.narrow(0, begin, rows);
      forward_chunk(part, x.narrow(0, begin, rows), w, library);
    } else {
      at::Tensor padded_x = at::zeros({kParityRows, x.size(1)}, x.options());
      at::Tensor padded_out = at::empty({kParityRows, out.size(1)}, out.options());
      padded_x.narrow(0, 0, rows).copy_(x.narrow(0, begin, rows));
      forward_chunk(padded_out, padded_x, w, library);
      out.narrow(0, begin, rows).copy_(padded_out.narrow(0, 0, rows));
    }
  }
}

// A few rows of w at a time: their copy stays in a cache.
void forward_of_copies(const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  const int64_t N = w.size(0), K = w.size(1), step = std::min(N, std::max<int64_t>(1, kCopyElements / K));
  const at::Tensor x_float = x.to(at::kFloat), copy = at::empty({step, K}, x_float.options());
  for (int64_t begin = 0; begin < N; begin += step) {
    const int64_t rows = std::min(step, N - begin);
    const at::Tensor w_float = copy.narrow(0, 0, rows).copy_(w.narrow(0, begin, rows));
    at::Tensor part = out.narrow(1, begin, rows);
    forward_by(n, Library::kBlas, part, x_float, w_float);
  }
}

}  // namespace

void forward(const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) { forward_by(n, n.choice.forward, out, x, w); }

void forward_float(const Numerics& n, at::Tensor& out, const at::Tensor& x, const at::Tensor& w) {
  if (x.size(0) == 0) return;
  if (n.dtype == at::kFloat) return forward(n, out, x, w);
  if (n.choice.logits == Logits::kBrgemm && brgemm_serves(w.size(1))) return brgemm_forward(out, x, w);
  if (n.choice.logits != Logits::kBlas) return forward_of_copies(n, out, x, w);
  product({false, true, x.size(0), w.size(0), x.size(1), x.stride(0), w.stride(0), out.stride(0)}, half(x), half(w), out.data_ptr<float>());
}

void input_grad(const Numerics& n, at::Tensor& dx, const at::Tensor& dy, const at::Tensor& w) {
  if (dy.size(0) == 0) return;
  if (n.dtype == at::kFloat && n.choice.input_grad == Library::kBlas) {
    multiply_float({false, false, dy.size(0), w.size(1), w.size(0), dy.stride(0), w.stride(0), dx.stride(0)}, dy, w, dx);
  } else if (n.dtype == at::kFloat) {
    at::native::mkldnn_matmul(dy, w, dx, 0.0f, 1.0f);
  } else {
    at::mm_out(dx, dy, w);
  }
}

void weight_grad(const Numerics& n, at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x) {
  if (dy.size(0) == 0) return;
  const Product p{true, false, dy.size(1), x.size(1), dy.size(0), dy.stride(0), x.stride(0), dw.stride(0), 1.0f, 1.0f};
  if (n.choice.weight_grad == Library::kBlas) {
    if (n.dtype == at::kFloat) multiply_float(p, dy, x, dw);
    else product(p, half(dy), half(x), dw.data_ptr<float>());
  } else if (n.dtype == at::kFloat) {
    at::native::mkldnn_matmul(dy.t(), x, dw, 1.0f, 1.0f);
  } else if (n.choice.weight_grad == Library::kBrgemm) {
    brgemm_weight_grad(dw, dy, x);
  } else {
    weight_grad_of_copies(dw, dy, x);
  }
}

GemmChoice measured_choice(c10::ScalarType dtype) {
  Numerics n{dtype, false, plain_choice(dtype)};
  GemmChoice& choice = n.choice;
  // As many rows as a packed micro-batch has: with few, a weight gradient's long sum does not show how a library cuts it.
  const int64_t M = 4096, N = 768, K = 512;
  at::Tensor x = at::zeros({M, K}, dtype).fill_(0.5), w = at::zeros({N, K}, dtype).fill_(0.25), y = at::zeros({M, N}, dtype);
  at::Tensor dw = at::zeros({N, K}, at::kFloat);
  if (dtype == at::kFloat) {
    if (!onednn_multiplies_float()) return choice;
    const auto faster = [&](const std::function<void(Library)>& run) {
      const double blas = seconds_of([&] { run(Library::kBlas); });
      return seconds_of([&] { run(Library::kOneDnn); }) < 0.95 * blas ? Library::kOneDnn : Library::kBlas;
    };
    choice.forward = faster([&](Library library) { forward_chunk(y, x, w, library); });
    choice.input_grad = choice.forward;
    choice.weight_grad = faster([&](Library library) {
      choice.weight_grad = library;
      weight_grad(n, dw, y, x);
    });
    return choice;
  }
  std::vector<Library> libraries = {Library::kOneDnn};
  std::vector<Logits> ways = {Logits::kCopies};
  if (half_product_available()) libraries.push_back(Library::kBlas), ways.push_back(Logits::kBlas);
  if (brgemm_available()) libraries.push_back(Library::kBrgemm), ways.push_back(Logits::kBrgemm);
  choice.weight_grad = quickest<Library>(libraries, [&](Library library) {
    choice.weight_grad = library;
    return seconds_of([&] { weight_grad(n, dw, y, x); });
  });
  const at::Tensor some = x.narrow(0, 0, 4 * kParityRows);  // as many as the head takes at a time
  at::Tensor logits = at::zeros({some.size(0), N}, at::kFloat);
  choice.logits = quickest<Logits>(ways, [&](Logits way) {
    choice.logits = way;
    return seconds_of([&] { forward_float(n, logits, some, w); });
  });
  return choice;
}

}  // namespace tandem::model::kernel::cpu
