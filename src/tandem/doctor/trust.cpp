// SPDX-License-Identifier: Apache-2.0
#include "tandem/doctor/trust.h"

#include <dlfcn.h>
#include <glob.h>
#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/json_file.h"
#include "tandem/base/log.h"
#include "tandem/base/file/checksum.h"
#include "tandem/base/file/durable_file.h"
#include "tandem/device/device.h"
#include "tandem/doctor/proof.h"
#include "tandem/model/kernel/backend.h"

namespace tandem::doctor {
namespace {

namespace fs = std::filesystem;

// The file that this code was loaded from: the program, or the module within Python.
std::string own_file() {
  Dl_info info{};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(&proof_folder), &info) != 0 && info.dli_fname != nullptr;
  const std::string file = is_known ? info.dli_fname : "";
  return file.ends_with(".so") ? file : "/proc/self/exe";
}

// What a proof is of: another of any of these asks for another proof.
std::string subject_of(at::Device device, const std::string& kernels) {
  const std::string program = file_digest(own_file());
  return join_text(device::backend_of(device).description(device), ", kernels ", kernels, ", libtorch " TORCH_VERSION ", program ",
                   program.substr(0, program.rfind(' ')));
}

uint64_t checksum_of(const std::string& text) {
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(text)));
  return checksum.value();
}

bool is_kept(const std::string& path, const std::string& subject) {
  std::error_code absent;
  if (!fs::exists(path, absent)) return false;
  try {
    return read_json_object(path).at("subject") == subject;
  } catch (const std::exception&) {  // not ours, or half a file: it is written anew
    return false;
  }
}

void keep(const std::string& path, const std::string& subject, const Proof& proof) {
  nlohmann::json page = to_json(proof);
  page["subject"] = subject;
  try {
    fs::create_directories(fs::path(path).parent_path());
    char host[64] = "";
    (void)::gethostname(host, sizeof host - 1);
    const std::string own = join_text(path, ".", host, ".", ::getpid());  // several runs may write at a time
    write_durable(own, page.dump(2) + "\n");
    fs::rename(own, path);
  } catch (const std::exception& e) {
    log::warning("the proof of a device is not kept, and the next run asks for it again: ", e.what());
  }
}

}  // namespace

std::string proof_folder() {
  glob_t found{};
  const bool is_known = ::glob("~", GLOB_TILDE_CHECK, nullptr, &found) == 0 && found.gl_pathc == 1;
  const std::string home = is_known ? found.gl_pathv[0] : "/tmp";
  ::globfree(&found);
  return home + "/.cache/tandem/proof";
}

void trust(at::Device device, const std::string& kernels, const std::string& folder, bool again) {
  const std::string subject = subject_of(device, model::kernel::backend_named(kernels, device, "run.kernels").name);
  const std::string path = join_text(folder, "/", checksum_of(subject), ".json");
  if (!again && is_kept(path, subject)) return;
  log::info("run.proof: the device proves itself to this program: ", device::backend_of(device).description(device));
  const Proof proof = prove(kernels, device, Thoroughness::kShort);
  if (const std::string fault = proof.fault(); !fault.empty())
    throw PeerError(join_text("device ", device.str(), ": ", fault, " (`tandem doctor --device ", device::backend_of(device).name,
                              "` says more)"));
  log::info(join_text(std::ssize(proof.checks), " checks passed"));
  keep(path, subject, proof);
}

}  // namespace tandem::doctor
