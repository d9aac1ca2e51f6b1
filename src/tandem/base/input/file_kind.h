// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a file is that is not what it should be: a download, an archive or a text in another encoding, told by its first bytes.

#include <string>
#include <string_view>

namespace tandem {

constexpr size_t kFileKindBytes = 512;  ///< that file_kind looks at

/// Such as "a gzip archive" or "text in UTF-16"; "" for what it does not know, and for plain text. `begin` are the first bytes of the
/// file, kFileKindBytes where it has them.
std::string file_kind(std::string_view begin);
/// The same of a file by its path; "" also where it cannot be read.
std::string kind_of_file(const std::string& path);

}  // namespace tandem
