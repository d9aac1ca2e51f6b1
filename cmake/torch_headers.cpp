// SPDX-License-Identifier: Apache-2.0
// The source that libtorch's precompiled header is made with (tandem_module.cmake); it has nothing else to say.
