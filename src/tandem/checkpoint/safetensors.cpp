// SPDX-License-Identifier: Apache-2.0
#include "tandem/checkpoint/safetensors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "tandem/base/check.h"
#include "tandem/base/error.h"
#include "tandem/base/input/file_kind.h"
#include "tandem/base/json_depth.h"
#include "tandem/base/options.h"
#include "tandem/base/json_file.h"

namespace tandem::checkpoint {

using nlohmann::json;

namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;

struct DtypeName {
  const char* name;
  c10::ScalarType type;
};
constexpr DtypeName kDtypes[] = {{"BOOL", c10::kBool},
                                 {"U8", c10::kByte},
                                 {"I8", c10::kChar},
                                 {"I16", c10::kShort},
                                 {"I32", c10::kInt},
                                 {"I64", c10::kLong},
                                 {"U16", c10::kUInt16},
                                 {"U32", c10::kUInt32},
                                 {"U64", c10::kUInt64},
                                 {"F16", c10::kHalf},
                                 {"BF16", c10::kBFloat16},
                                 {"F32", c10::kFloat},
                                 {"F64", c10::kDouble},
                                 {"F8_E4M3", c10::kFloat8_e4m3fn},
                                 {"F8_E5M2", c10::kFloat8_e5m2},
                                 {"C64", c10::kComplexFloat}};

// Finds a key that stands twice in one object: of two equal names, the parser keeps one and says nothing. It reads alone and makes no
// document, since a parser that calls back looks through all that it has after each object.
class RepeatedKey {
 public:
  const std::string& found() const { return found_; }

  bool start_object(size_t) { return keys_.emplace_back(), true; }
  bool end_object() { return keys_.pop_back(), true; }
  bool key(std::string& name) {
    if (!keys_.back().insert(name).second) found_ = name;
    return true;
  }
  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(std::vector<uint8_t>&) { return true; }
  bool start_array(size_t) { return true; }
  bool end_array() { return true; }
  bool parse_error(size_t, const std::string&, const json::exception&) { return false; }  // the parser itself says it better

 private:
  std::vector<std::unordered_set<std::string>> keys_;  // of the objects that are open
  std::string found_;
};

json parse_header(std::string_view text, const std::string& path) {
  if (text.empty() || text[0] != '{') throw UserError(path, "the header is not a JSON object", "expected it to begin with `{`");
  if (nests_too_deep(text)) throw UserError(path, "the header nests too deep", "expected {\"name\": {...}, ...}");
  try {
    json header = json::parse(text.begin(), text.end());
    RepeatedKey repeated;
    json::sax_parse(text.begin(), text.end(), &repeated);
    if (!repeated.found().empty())
      throw UserError(path, "the name `" + repeated.found() + "` stands twice in the header", "expected distinct names");
    if (!header.is_object()) throw UserError(path, "the header is not a JSON object", "expected {\"name\": {...}, ...}");
    return header;
  } catch (const json::exception& e) {
    throw UserError(path, std::string("the header is not JSON: ") + e.what(), "expected an intact file");
  }
}

int64_t read_count(const json& value, const std::string& path, const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    throw UserError(path, what + " is " + value.dump(), "expected an integer from 0 to 2^63 - 1");
  return static_cast<int64_t>(value.get<uint64_t>());
}

TensorEntry read_entry(const std::string& name, const json& value, const std::string& path) {
  const std::string what = "tensor `" + name + "`";
  if (!value.is_object()) throw UserError(path, what + " is not an object", "expected dtype, shape and data_offsets");
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) throw UserError(path, what + " has no " + key, "expected dtype, shape and data_offsets");
  TensorEntry entry;
  const json& dtype = value["dtype"];
  const auto* known = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return dtype == d.name; });
  if (known == std::end(kDtypes)) throw UserError(path, what + " has dtype " + dtype.dump(), "expected one such as F32, BF16, F16, I64");
  entry.dtype = known->type;
  if (!value["shape"].is_array()) throw UserError(path, what + " has no list as shape", "expected a list of sizes");
  int64_t span_bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));  // strides pass over sizes of 0
  for (const json& size : value["shape"]) {
    entry.shape.push_back(read_count(size, path, what + ": a size"));
    if (__builtin_mul_overflow(span_bytes, std::max<int64_t>(entry.shape.back(), 1), &span_bytes))
      throw UserError(path, what + " is larger than 2^63 bytes", "expected a real shape");
  }
  const int64_t num_bytes = std::ranges::count(entry.shape, 0) ? 0 : span_bytes;
  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2)
    throw UserError(path, what + " has data_offsets " + offsets.dump(), "expected [begin, end]");
  entry.begin_bytes = read_count(offsets[0], path, what + ": begin");
  entry.end_bytes = read_count(offsets[1], path, what + ": end");
  if (entry.begin_bytes > entry.end_bytes || entry.end_bytes - entry.begin_bytes != num_bytes)
    throw UserError(path, join_text(what, " spans offsets ", offsets.dump(), " but needs ", num_bytes, " bytes"),
                    "expected offsets that fit shape and dtype");
  return entry;
}

const char* dtype_name(c10::ScalarType type, const std::string& tensor) {
  for (const DtypeName& d : kDtypes)
    if (d.type == type) return d.name;
  TANDEM_CHECK(false, "tensor ", tensor, " has a dtype that safetensors lacks: ", c10::toString(type));
  return "";
}

constexpr int64_t kPieceBytes = 1 << 20;  // read at a time, so that what is converted is still in the cache

// A box of a tensor as runs of elements that lie side by side in the file, all of one length.
class Runs {
 public:
  Runs(const std::vector<int64_t>& shape, const Box& box) : shape_(shape), box_(box), outer_(shape.size()) {
    int64_t inner = 1;  // elements of a step along the dimension
    while (outer_ > 0) {
      --outer_;
      length_ *= box.extent(outer_);
      first_ += box.begin[outer_] * inner;
      inner *= shape[outer_];
      if (box.extent(outer_) != shape[outer_]) break;
    }
    unit_ = inner;
  }

  /// Calls visit(first element in the tensor, count) for elements `begin` to `end` of the box.
  template <class Visit>
  void each(int64_t begin, int64_t end, const Visit& visit) const {
    while (begin < end) {
      const int64_t run = begin / length_, inside = begin % length_, count = std::min(length_ - inside, end - begin);
      visit(start_of(run) + inside, count);
      begin += count;
    }
  }

 private:
  int64_t start_of(int64_t run) const {
    int64_t start = first_, unit = unit_;
    for (size_t d = outer_; d-- > 0; unit *= shape_[d]) {
      start += (box_.begin[d] + run % box_.extent(d)) * unit;
      run /= box_.extent(d);
    }
    return start;
  }

  const std::vector<int64_t>& shape_;
  const Box& box_;
  size_t outer_;                          // dimensions before those of a run
  int64_t length_ = 1, first_ = 0, unit_; // of a run; where it starts within its unit; elements of a step of the innermost outer one
};

}  // namespace

struct SafetensorsFile::Mapping {
  const std::byte* bytes = nullptr;
  size_t size = 0;
  Descriptor file;
  std::atomic<int64_t> bytes_read = 0;
  ~Mapping() {
    if (size > 0) ::munmap(const_cast<std::byte*>(bytes), size);
  }
  // Past the mapping, whose pages would count as memory of the process and cost a fault each.
  void read(int64_t from, std::span<std::byte> to, const std::string& path) {
    bytes_read += std::ssize(to);
    while (!to.empty()) {
      const ssize_t count = ::pread(file.number(), to.data(), to.size(), from);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw PeerError(path + ": read failed: " + std::strerror(errno));
      if (count == 0) throw PeerError(path + ": ends earlier than when it was opened");
      to = to.subspan(static_cast<size_t>(count));
      from += count;
    }
  }
};

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), mapping_(std::make_shared<Mapping>()) {
  RegularFile file(path, "expected a safetensors file");
  const auto size = static_cast<size_t>(file.size_bytes());
  mapping_->file = file.release();
  if (size > 0) {
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, mapping_->file.number(), 0);
    if (address == MAP_FAILED) throw PeerError(path + ": mmap failed: " + std::strerror(errno));
    mapping_->bytes = static_cast<const std::byte*>(address);
    mapping_->size = size;
  }
  parse();
}

void SafetensorsFile::parse() {
  const size_t file_bytes = mapping_->size;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping_->bytes, std::min<size_t>(8, file_bytes));
  // Asked only of what cannot be one: the length of a header may begin as an archive does.
  if (file_bytes < 8 || header_bytes > file_bytes - 8)
    if (const std::string kind = file_kind({reinterpret_cast<const char*>(mapping_->bytes), std::min(kFileKindBytes, file_bytes)});
        !kind.empty())
      throw UserError(path_, "is " + kind, "expected a safetensors file");
  if (file_bytes < 8)
    throw UserError(path_, join_text("is ", file_bytes, " bytes long, too short for a header"), "expected a whole safetensors file");
  if (header_bytes > kMaxHeaderBytes)
    throw UserError(path_, join_text("claims a header of ", header_bytes, " bytes"),
                    "expected at most 100,000,000; is it a safetensors file?");
  if (header_bytes > file_bytes - 8)
    throw UserError(path_, join_text("ends within its header (", header_bytes, " bytes announced, ", file_bytes - 8, " there)"),
                    "expected a whole file; copy it again");
  data_begin_ = static_cast<int64_t>(8 + header_bytes);
  const json header = parse_header({reinterpret_cast<const char*>(mapping_->bytes) + 8, header_bytes}, path_);
  for (const auto& [name, value] : header.items()) {
    if (name != "__metadata__") {
      tensors_.emplace(name, read_entry(name, value, path_));
      continue;
    }
    if (!value.is_object()) throw UserError(path_, "__metadata__ is not an object", "expected texts by name");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) throw UserError(path_, "__metadata__." + key + " is " + text.dump(), "expected a text");
      metadata_[key] = text.get<std::string>();
    }
  }
  std::vector<std::pair<const std::string*, const TensorEntry*>> order;
  for (const auto& [name, entry] : tensors_) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin_bytes, a.second->end_bytes) < std::pair(b.second->begin_bytes, b.second->end_bytes);
  });
  int64_t end = 0;
  for (const auto& [name, entry] : order) {
    if (entry->begin_bytes != end)
      throw UserError(path_, join_text("tensor `", *name, "` begins at byte ", entry->begin_bytes, " of the data, where ", end, " is due"),
                      "expected tensors without gaps and overlaps");
    end = entry->end_bytes;
  }
  if (end != static_cast<int64_t>(file_bytes) - data_begin_)
    throw UserError(path_,
                    join_text("holds ", static_cast<int64_t>(file_bytes) - data_begin_, " bytes of data, its header describes ", end),
                    "expected a whole file; copy it again");
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found != tensors_.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, entry] : tensors_) names.push_back(known);
  const std::string nearest = nearest_name(name, names);
  throw UserError(path_, "holds no tensor `" + name + "`", nearest.empty() ? "the file is empty" : "the nearest name is `" + nearest + "`");
}

int64_t SafetensorsFile::bytes_read() const { return mapping_->bytes_read; }
int64_t SafetensorsFile::file_bytes() const { return static_cast<int64_t>(mapping_->size); }

void SafetensorsFile::read(const std::string& name, const Box& box, at::Tensor to) const {
  const TensorEntry& from = entry(name);
  TANDEM_CHECK(to.is_cpu() && to.is_contiguous() && to.sizes() == at::IntArrayRef(box.shape()), "where ", name, " is read to");
  const auto width = static_cast<int64_t>(c10::elementSize(from.dtype));
  const Runs runs(from.shape, box);
  const bool as_stored = to.scalar_type() == from.dtype;
  const at::Tensor flat = to.view(-1);
  const int64_t piece = kPieceBytes / width, num_pieces = (to.numel() + piece - 1) / piece;
  // Threads take the pieces in turn: two streams through one file would defeat the system's reading ahead.
  std::atomic<int64_t> taken = 0;
  at::parallel_for(0, std::min<int64_t>(num_pieces, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    std::vector<std::byte> held(as_stored ? 0 : static_cast<size_t>(std::min(piece, to.numel()) * width));
    for (int64_t i = taken++; i < num_pieces; i = taken++) {
      const int64_t begin = i * piece, end = std::min(begin + piece, to.numel());
      std::byte* out = as_stored ? static_cast<std::byte*>(to.data_ptr()) + begin * width : held.data();
      runs.each(begin, end, [&](int64_t first, int64_t count) {
        mapping_->read(data_begin_ + from.begin_bytes + first * width, {out, static_cast<size_t>(count * width)}, path_);
        out += count * width;
      });
      if (as_stored) continue;
      const at::Tensor stored = at::from_blob(held.data(), {end - begin}, at::TensorOptions().dtype(from.dtype));
      flat.narrow(0, begin, end - begin).copy_(stored);
    }
  });
}

at::Tensor SafetensorsFile::view(const std::string& name) const {
  const TensorEntry& entry = this->entry(name);
  const std::byte* bytes = mapping_->bytes + data_begin_ + entry.begin_bytes;
  const auto options = at::TensorOptions().dtype(entry.dtype);
  // A header whose length is no multiple of 8 leaves the data unaligned, and kernels rely on alignment.
  if (entry.begin_bytes == entry.end_bytes || reinterpret_cast<uintptr_t>(bytes) % c10::elementSize(entry.dtype) != 0) {
    at::Tensor copy = at::empty(entry.shape, options);
    if (entry.end_bytes > entry.begin_bytes) std::memcpy(copy.data_ptr(), bytes, static_cast<size_t>(entry.end_bytes - entry.begin_bytes));
    return copy;
  }
  // The deleter's copy of the pointer keeps the mapping alive as long as the tensor.
  return at::from_blob(const_cast<std::byte*>(bytes), entry.shape, [mapping = mapping_](void*) {}, options);
}

int64_t TensorInfo::num_bytes() const {
  return Box::whole(shape).num_elements() * static_cast<int64_t>(c10::elementSize(dtype));
}

void sort_for_file(std::vector<TensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    const size_t wide = c10::elementSize(a.dtype), other = c10::elementSize(b.dtype);
    return wide != other ? wide > other : a.name < b.name;
  });
}

void write_safetensors(DurableFile& file, std::vector<TensorInfo> tensors, const TensorSource& source,
                       const std::map<std::string, std::string>& metadata) {
  sort_for_file(tensors);
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t end = 0;
  for (const TensorInfo& t : tensors) {
    const int64_t begin = end;
    end += t.num_bytes();
    header[t.name] = {{"dtype", dtype_name(t.dtype, t.name)}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size();
  file.append(std::as_bytes(std::span(&header_bytes, 1)));
  file.append(std::as_bytes(std::span(text)));
  for (const TensorInfo& t : tensors) {
    const at::Tensor values = source(t.name);
    TANDEM_CHECK(values.is_cpu() && values.is_contiguous() && values.scalar_type() == t.dtype && values.sizes() == at::IntArrayRef(t.shape),
                 "tensor ", t.name, " of ", file.path(), " must be contiguous on the CPU, as announced");
    file.append(std::span(static_cast<const std::byte*>(values.data_ptr()), values.nbytes()));
  }
}

}  // namespace tandem::checkpoint
