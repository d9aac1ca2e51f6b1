// SPDX-License-Identifier: Apache-2.0
// Suite `safetensors`: files that must be refused, and files that must give exact values.
#include <ATen/core/Tensor.h>

#include <cmath>

#include "../temporary_folder.h"
#include "oracle/oracle_losses.h"
#include "oracle/suites.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/checkpoint/safetensors.h"

namespace tandem::cli {

using nlohmann::json;

namespace {

std::vector<std::byte> from_base64(const std::string& text) {
  static const std::string kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::byte> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const size_t value = kAlphabet.find(c);
    if (value == std::string::npos) continue;
    bits = (bits << 6) | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<std::byte>((bits >> count) & 0xFF));
    }
  }
  return bytes;
}

double number_of(const json& value) {
  if (value.is_string()) return value == "nan" ? NAN : value == "-inf" ? -INFINITY : INFINITY;
  return value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
}

const char* dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::kFloat: return "F32";
    case c10::kDouble: return "F64";
    case c10::kHalf: return "F16";
    case c10::kBFloat16: return "BF16";
    case c10::kInt: return "I32";
    case c10::kLong: return "I64";
    case c10::kBool: return "BOOL";
    case c10::kByte: return "U8";
    default: return "another";
  }
}

std::string difference(const checkpoint::SafetensorsFile& file, const json& expected) {
  if (file.tensors().size() != expected.size()) return "holds " + std::to_string(file.tensors().size()) + " tensors";
  for (const auto& [name, want] : expected.items()) {
    const at::Tensor tensor = file.view(name);
    if (dtype_of(tensor.scalar_type()) != want.at("dtype")) return name + " has another dtype";
    if (json(tensor.sizes().vec()) != want.at("shape")) return name + " has another shape";
    const at::Tensor wide = tensor.to(c10::kDouble).reshape({-1});
    if (wide.numel() != static_cast<int64_t>(want.at("values").size())) return name + " has another size";
    for (int64_t i = 0; i < wide.numel(); ++i)
      if (wide.const_data_ptr<double>()[i] != number_of(want.at("values")[static_cast<size_t>(i)]))
        return name + " differs at " + std::to_string(i);
  }
  return "";
}

}  // namespace

void run_safetensors(const std::string& path, const OracleOptions&, Report& report) {
  const json file = oracle_json(path);
  const test::TemporaryFolder folder("oracle_safetensors");
  for (const json& one : cases_of(file, path)) {
    const std::string name = one.at("name");
    const auto bytes = from_base64(one.at("bytes_base64"));
    report.run(name, [&] {
      const bool must_load = one.at("expected") == "load";
      try {
        write_file(folder / "case", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        const checkpoint::SafetensorsFile opened(folder / "case");
        const std::string fault =
            must_load ? difference(opened, one.at("tensors")) : "was accepted; expected an error: " + one.value("reason", "");
        if (fault.empty())
          report.pass();
        else
          report.fail(name, fault);
      } catch (const UserError& e) {
        if (must_load)
          report.fail(name, e.what());
        else
          report.pass();
      }
    });
  }
}

}  // namespace tandem::cli
