#include "harness/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/device.h"
#include "core/error.h"
#include "harness/json_input.h"

namespace mladcp {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct DTypeName {
  DType dtype;
  const char* name;
};

constexpr std::array<DTypeName, 7> kDTypeNames = {{{DType::kF64, "F64"},
                                                   {DType::kF32, "F32"},
                                                   {DType::kBF16, "BF16"},
                                                   {DType::kE4M3, "F8_E4M3"},
                                                   {DType::kI64, "I64"},
                                                   {DType::kI32, "I32"},
                                                   {DType::kBytes, "U8"}}};

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw InvalidArgument(path + ": " + what);
}

[[noreturn]] void fail(const std::string& path, const std::string& tensor,
                       const std::string& what) {
  throw InvalidArgument(path + ": tensor \"" + tensor + "\": " + what);
}

// Where a tensor lies, as the header says.
struct Entry {
  std::string name;
  DType dtype = DType::kBytes;
  Shape shape;
  std::uint64_t begin = 0;  // in the data part
  std::uint64_t end = 0;
};

std::uint64_t unsigned_of(const std::string& path, const std::string& tensor, const Json& number,
                          const char* field) {
  const auto value = integer_in(number, 0, std::numeric_limits<std::int64_t>::max());
  if (!value) {
    fail(path, tensor,
         std::string(field) + " holds " + number.dump() +
             "; expected non-negative whole numbers below 2^63");
  }
  return static_cast<std::uint64_t>(*value);
}

const Json& array_field(const std::string& path, const std::string& tensor, const Json& fields,
                        const char* field) {
  const auto found = fields.find(field);
  if (found == fields.end() || !found->is_array()) {
    fail(path, tensor, std::string("no array \"") + field + "\" in its header");
  }
  return *found;
}

DType dtype_field(const std::string& path, const std::string& tensor, const Json& fields) {
  const auto found = fields.find("dtype");
  std::string known;
  for (const DTypeName& candidate : kDTypeNames) {
    if (found != fields.end() && *found == candidate.name) return candidate.dtype;
    known += std::string(known.empty() ? "" : ", ") + candidate.name;
  }
  fail(path, tensor,
       "dtype is " + (found == fields.end() ? "missing" : found->dump()) + "; known are " + known);
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& fields) {
  if (!fields.is_object()) fail(path, name, "its header is no JSON object");
  Entry entry;
  entry.name = name;
  entry.dtype = dtype_field(path, name, fields);

  const Json& shape = array_field(path, name, fields, "shape");
  if (shape.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
    fail(path, name,
         "shape " + shape.dump() + " has " + std::to_string(shape.size()) + " axes; at most " +
             std::to_string(Shape::kMaxRank) + " are supported");
  }
  std::uint64_t bytes = size_bytes(entry.dtype);
  for (const Json& extent : shape) {
    const std::uint64_t value = unsigned_of(path, name, extent, "shape");
    constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();
    if (value != 0 && bytes > kMaxBytes / value) {
      fail(path, name, "shape " + shape.dump() + " does not fit 64 bits");
    }
    bytes *= value;
    entry.shape.push_back(static_cast<std::int64_t>(value));
  }

  const Json& offsets = array_field(path, name, fields, "data_offsets");
  if (offsets.size() != 2)
    fail(path, name, "data_offsets are " + offsets.dump() + "; expected two");
  entry.begin = unsigned_of(path, name, offsets[0], "data_offsets");
  entry.end = unsigned_of(path, name, offsets[1], "data_offsets");
  if (entry.end < entry.begin || entry.end - entry.begin != bytes) {
    fail(path, name,
         "data_offsets " + offsets.dump() + " hold no " + std::to_string(bytes) +
             " bytes, which shape " + shape.dump() + " of " +
             std::string(mladcp::name(entry.dtype)) + " takes");
  }
  return entry;
}

Json parse_header(const std::string& path, const std::string& text) {
  auto header = parse_json<Json>(text, path + ": header");
  if (!header.is_object()) fail(path, "its header is no JSON object");
  return header;
}

// The tensors must lie side by side and fill the data part.
void check_layout(const std::string& path, std::vector<Entry>& entries, std::uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != expected) {
      fail(path, entry.name,
           "begins at byte " + std::to_string(entry.begin) +
               " of the data; the tensor before it ends at byte " + std::to_string(expected) +
               ": write the file again, its tensors side by side");
    }
    expected = entry.end;
  }
  if (expected != data_bytes) {
    fail(path, "its tensors take " + std::to_string(expected) + " bytes of data, the file holds " +
                   std::to_string(data_bytes) + (data_bytes < expected ? " (cut short?)" : ""));
  }
}

}  // namespace

const TensorView& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second.view();
  std::string held;
  for (const auto& [other, unused] : tensors) held += (held.empty() ? "" : ", ") + other;
  fail(path, name, "not in the file; it holds " + held);
}

const std::string& SafetensorsFile::metadata_value(const std::string& key) const {
  const auto found = metadata.find(key);
  if (found != metadata.end()) return found->second;
  std::string held;
  for (const auto& [other, unused] : metadata) held += (held.empty() ? "" : ", ") + other;
  fail(path, "no metadata \"" + key + "\" in the file; it holds " + held);
}

double SafetensorsFile::metadata_number(const std::string& key) const {
  const std::string& text = metadata_value(key);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(path, "metadata \"" + key + "\" is \"" + text + "\"; expected a number");
  }
  return number;
}

SafetensorsFile read_safetensors(const std::string& path) {
  // Nothing that cannot be gone through twice, a pipe, and nothing that may be waited for.
  if (std::error_code error; !std::filesystem::is_regular_file(path, error)) {
    fail(path, error ? error.message() : "is no regular file; give a file of tensors");
  }
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail(path, "cannot be opened");
  return read_safetensors(stream, path);
}

SafetensorsFile read_safetensors(std::istream& stream, const std::string& path) {
  stream.seekg(0, std::ios::end);
  const auto file_bytes = static_cast<std::uint64_t>(stream.tellg());
  stream.seekg(0);

  std::uint64_t header_bytes = 0;
  const bool has_length = file_bytes >= sizeof(header_bytes);
  if (has_length) stream.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  if (!has_length || header_bytes > file_bytes - sizeof(header_bytes)) {
    fail(path, "holds " + std::to_string(file_bytes) + " bytes, too few for a header of " +
                   std::to_string(header_bytes) + " bytes; is it a safetensors file?");
  }
  std::string text(header_bytes, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(header_bytes));
  const Json header = parse_header(path, text);

  SafetensorsFile file;
  file.path = path;
  std::vector<Entry> entries;
  for (const auto& [name, fields] : header.items()) {
    if (name != "__metadata__") {
      entries.push_back(parse_entry(path, name, fields));
      continue;
    }
    if (!fields.is_object()) fail(path, "__metadata__ is no JSON object");
    for (const auto& [key, value] : fields.items()) {
      if (!value.is_string()) fail(path, "metadata \"" + key + "\" is no string");
      file.metadata[key] = value.get<std::string>();
    }
  }
  check_layout(path, entries, file_bytes - sizeof(header_bytes) - header_bytes);

  for (const Entry& entry : entries) {
    const auto place = file.tensors.try_emplace(entry.name).first;
    place->second = Tensor(host_device(), entry.dtype, entry.shape, place->first.c_str());
    stream.read(place->second.as<char>(), static_cast<std::streamsize>(entry.end - entry.begin));
  }
  if (!stream) fail(path, "cannot be read to its end");
  return file;
}

void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorView> sorted = tensors;
  std::stable_sort(sorted.begin(), sorted.end(), [](const TensorView& a, const TensorView& b) {
    return size_bytes(a.dtype) > size_bytes(b.dtype);
  });

  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorView& tensor : sorted) {
    if (tensor.device == nullptr || tensor.device->kind() != DeviceKind::kHost) {
      fail(path, tensor.name, "is not in host memory; copy it to the host first");
    }
    expect_contiguous(tensor);
    if (header.contains(tensor.name)) fail(path, tensor.name, "given twice; names must differ");
    const auto* const known =
        std::find_if(kDTypeNames.begin(), kDTypeNames.end(),
                     [&](const DTypeName& candidate) { return candidate.dtype == tensor.dtype; });
    header[tensor.name] = {
        {"dtype", known->name},
        {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
        {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }

  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = text.size();
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  stream.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const TensorView& tensor : sorted) {
    stream.write(tensor.as<char>(), tensor.bytes());
  }
  stream.close();
  if (!stream) throw Error(path + ": cannot be written");
}

}  // namespace mladcp
