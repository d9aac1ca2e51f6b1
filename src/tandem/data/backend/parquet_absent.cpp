// SPDX-License-Identifier: Apache-2.0
#include "tandem/base/error.h"
#include "tandem/data/backend/parquet.h"

namespace tandem::data {

void read_parquet(const ParquetRequest& request, const UseParquetRow&) {
  throw UserError(request.path, "this build reads no Parquet", "build with -DTANDEM_PARQUET=ON, or give a .jsonl file");
}

}  // namespace tandem::data
