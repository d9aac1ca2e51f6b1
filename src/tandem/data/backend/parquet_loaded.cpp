// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include "tandem/base/error.h"
#include "tandem/data/backend/parquet.h"

namespace tandem::data {
namespace {

// RTLD_LOCAL: libparquet exports an OpenSSL, which no other library may find. The linker's path to it is that of this program or module.
decltype(&tandem_read_parquet) loaded(const std::string& path) {
  void* const library = ::dlopen("libtandem_parquet.so", RTLD_NOW | RTLD_LOCAL);
  void* const function = library ? ::dlsym(library, "tandem_read_parquet") : nullptr;
  if (!function)
    throw UserError(path, std::string("no Parquet can be read: ") + ::dlerror(),
                    "the pyarrow wheel that Tandem was built with, by scripts/build; or a .jsonl file");
  return reinterpret_cast<decltype(&tandem_read_parquet)>(function);
}

}  // namespace

void read_parquet(const ParquetRequest& request, const UseParquetRow& use) { loaded(request.path)(request, use); }

}  // namespace tandem::data
