// Values as bytes and back, between the processes of one run: one build, one machine order.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "collectives/call_log.h"
#include "core/device.h"
#include "core/error.h"
#include "core/tensor.h"

namespace mladcp {

class ByteWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view value) {
    number<std::uint64_t>(value.size());
    bytes_.append(value);
  }
  template <typename T>
  void list(const std::vector<T>& values) {
    text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
  }
  void extents(const Extents& extents) {
    number<std::int32_t>(extents.rank());
    for (const std::int64_t extent : extents) number(extent);
  }
  void tensor(const TensorView& tensor) {
    number(tensor.dtype);
    extents(tensor.shape);
    text({tensor.as<const char>(), static_cast<std::size_t>(tensor.bytes())});
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string_view text() { return take(number<std::uint64_t>()); }
  template <typename T>
  std::vector<T> list() {
    const std::string_view raw = text();
    std::vector<T> values(raw.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
    return values;
  }
  Extents extents() {
    Extents extents;
    const auto rank = number<std::int32_t>();
    for (int dim = 0; dim < rank; ++dim) extents.push_back(number<std::int64_t>());
    return extents;
  }
  Tensor tensor() {
    const auto dtype = number<DType>();
    Tensor result(host_device(), dtype, extents(), "received tensor");
    const std::string_view raw = text();
    if (raw.size() != static_cast<std::size_t>(result.view().bytes())) fail();
    if (!raw.empty()) std::memcpy(result.view().data, raw.data(), raw.size());
    return result;
  }

 private:
  [[noreturn]] static void fail() {
    throw InvalidArgument("a rank's outcome arrived damaged; do all processes run one build?");
  }
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) fail();
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

void write_call(ByteWriter& writer, const CallRecord& record);
CallRecord read_call(ByteReader& reader);

}  // namespace mladcp
