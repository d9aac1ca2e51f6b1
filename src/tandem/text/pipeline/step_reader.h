// SPDX-License-Identifier: Apache-2.0
#pragma once
// The steps of a tokenizer.json, as the `tokenizers` library writes them. What is not known is refused with the JSON path.

#include <cstdint>
#include <vector>

#include "tandem/text/pipeline/decoder.h"
#include "tandem/text/pipeline/json_part.h"
#include "tandem/text/pipeline/pre_tokenizer.h"

namespace tandem::text {

constexpr int32_t kLargestId = (1 << 22) - 1;

struct PreTokenizerForm {
  std::vector<PreTokenizeStep> steps;
  bool byte_level = false;  ///< pieces are bytes from here on
};
struct PostProcessorForm {
  std::vector<int32_t> prefix, suffix;  ///< ids put around one text
};

/// `null`, NFC, Prepend, Replace, or a Sequence of these.
std::vector<NormalizeStep> read_normalizer(const JsonPart& part);
/// `null`, Split, Digits, Metaspace, ByteLevel, or a Sequence of these in which ByteLevel is the last.
PreTokenizerForm read_pre_tokenizer(const JsonPart& part);
/// `null`, ByteLevel, TemplateProcessing, or a Sequence of these.
PostProcessorForm read_post_processor(const JsonPart& part);
/// `null`, ByteLevel, Metaspace, or Replace, ByteFallback, Fuse and Strip in this order, each optional.
DecodeSpec read_decoder(const JsonPart& part);

}  // namespace tandem::text
