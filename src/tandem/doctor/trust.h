// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which kinds of devices have proved themselves to this program on this machine.

#include <c10/core/Device.h>

#include <string>

namespace tandem::doctor {

/// Has `device` prove itself in the short form (proof.h), unless `folder` says that one of its kind has, with these kernels, to this
/// very program and libtorch; with `again` in any case. Afterwards `folder` says so; where it cannot be written, a warning does.
/// Errors: PeerError naming the kernels that are wrong, or what the device failed at.
void trust(at::Device device, const std::string& kernels, const std::string& folder, bool again = false);

/// Where the user's proofs are: in the home folder (HOME, or what the system says), under .cache/tandem/proof.
std::string proof_folder();

}  // namespace tandem::doctor
