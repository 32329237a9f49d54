#include "harness/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/error.h"
#include "tests/support/temporary_path.h"
#include "tests/support/test_data.h"

namespace mladcp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::string bytes_of(const TensorView& view) {
  return view.data == nullptr
             ? std::string()
             : std::string(view.as<char>(), static_cast<std::size_t>(view.bytes()));
}

// A file with this header and `data_bytes` bytes 0, 1, 2, ... of data.
std::string write_raw(const std::string& name, const std::string& header, int data_bytes) {
  std::string path = temporary_path(name);
  std::ofstream stream(path, std::ios::binary);
  const std::uint64_t header_bytes = header.size();
  stream.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  stream << header;
  for (int i = 0; i < data_bytes; ++i) stream.put(static_cast<char>(i));
  return path;
}

TEST(Safetensors, ReadsGoldenTensorsAndMetadata) {
  const SafetensorsFile file =
      read_safetensors(test_data_path("golden/flashmla_fp8_e.safetensors"));
  EXPECT_EQ(file.tensors.size(), 8u);
  EXPECT_EQ(describe(file.tensor("q")), "q e4m3 [3, 1, 64, 576]");
  EXPECT_EQ(describe(file.tensor("out")), "out bf16 [3, 1, 64, 512]");
  EXPECT_EQ(file.tensor("num_splits").dtype, DType::kI32);
  EXPECT_EQ(file.metadata_value("causal"), "False");
  EXPECT_EQ(file.metadata_number("k_scale"), 0.0199999996);
  // The first and the last tensor of the data part.
  EXPECT_GT(file.tensor("lse").as<float>()[0], 0.0f);
  const std::vector<std::int32_t> table(file.tensor("block_table").as<std::int32_t>(),
                                        file.tensor("block_table").as<std::int32_t>() + 9);
  EXPECT_THAT(table, testing::Each(testing::AllOf(testing::Ge(-1), testing::Lt(7))));
}

TEST(Safetensors, GivesBackEveryByteOfEveryDType) {
  Device& host = host_device();
  std::vector<Tensor> tensors;
  tensors.emplace_back(host, DType::kBytes, Shape{3, 5}, "odd_bytes");
  tensors.emplace_back(host, DType::kF64, Shape{2, 1, 3}, "doubles");
  tensors.emplace_back(host, DType::kE4M3, Shape{7}, "codes");
  tensors.emplace_back(host, DType::kBF16, Shape{0, 4}, "no_rows");
  tensors.emplace_back(host, DType::kI64, Shape{2}, "longs");
  tensors.emplace_back(host, DType::kI32, Shape{}, "scalar");
  tensors.emplace_back(host, DType::kF32, Shape{1, 2, 1, 3, 1}, "five axes, \"quoted\"");
  unsigned char next = 1;
  std::vector<TensorView> views;
  for (const Tensor& tensor : tensors) {
    for (std::int64_t i = 0; i < tensor.view().bytes(); ++i) tensor.as<unsigned char>()[i] = next++;
    views.push_back(tensor);
  }
  const std::string path = temporary_path("round_trip.safetensors");
  write_safetensors(path, views, {{"source", "a test"}});

  // The largest elements first: whoever maps the file finds every tensor aligned.
  std::stringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  EXPECT_THAT(content.str(), HasSubstr(R"("doubles":{"data_offsets":[0,48])"));
  EXPECT_THAT(content.str(), HasSubstr(R"("longs":{"data_offsets":[48,64])"));
  EXPECT_THAT(content.str(), HasSubstr(R"("odd_bytes":{"data_offsets":[92,107])"));

  const SafetensorsFile read = read_safetensors(path);
  EXPECT_EQ(read.tensors.size(), views.size());
  EXPECT_EQ(read.metadata_value("source"), "a test");
  for (const TensorView& view : views) {
    const TensorView& back = read.tensor(view.name);
    EXPECT_EQ(describe(back), describe(view));
    EXPECT_EQ(bytes_of(back), bytes_of(view)) << view.name;
  }
}

TEST(Safetensors, NamesWhatIsMissing) {
  const SafetensorsFile file =
      read_safetensors(test_data_path("golden/hopper_fp8_dots.safetensors"));
  EXPECT_THAT([&] { file.tensor("lse"); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("hopper_fp8_dots.safetensors"),
                                                   HasSubstr("\"lse\""), HasSubstr("a, b, c, d"))));
  EXPECT_THAT([&] { file.metadata_value("q_scale"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("q_scale")));
  EXPECT_THAT([&] { file.metadata_number("meaning"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("expected a number")));
  EXPECT_THAT([] { read_safetensors("no/such/file"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("no/such/file")));
}

TEST(Safetensors, RefusesFilesThatBreakTheFormat) {
  struct Case {
    const char* name;
    std::string header;
    int data_bytes;
    const char* message;
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const std::vector<Case> cases = {
      {"no_json", "{\"a\"", 0, "not JSON"},
      {"array", "[]", 0, "no JSON object"},
      {"entry", R"({"a":3})", 0, "no JSON object"},
      {"twice", "{" + a + "," + a + "}", 8, "named twice"},
      {"dtype", R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}})", 8,
       "\"F16\"; known are"},
      {"no_dtype", R"({"a":{"shape":[4],"data_offsets":[0,8]}})", 8, "missing"},
      {"no_shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8, "\"shape\""},
      {"negative", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "non-negative"},
      {"wrapped", R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8,
       "below 2^63"},
      {"twice_inside", R"({"a":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})", 8,
       "named twice"},
      {"fraction", R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8, "whole"},
      {"axes", R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,8],"data_offsets":[0,8]}})", 8, "6 axes"},
      {"overflow", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
       8, "does not fit"},
      {"one_offset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", 8, "expected two"},
      {"reversed", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "8 bytes"},
      {"size", R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8, "12 bytes"},
      {"cut", "{" + a + "}", 7, "cut short"},
      {"rest", "{" + a + "}", 9, "the file holds 9"},
      {"hole", R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3, "begins at byte 1"},
      {"overlap", "{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[7,9]}})", 9, "\"b\""},
      {"metadata", R"({"__metadata__":{"x":1}})", 0, "\"x\" is no string"},
      {"deep", "{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0,
       "nests deeper than 64"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string path =
        write_raw(std::string(c.name) + ".safetensors", c.header, c.data_bytes);
    EXPECT_THAT([&] { read_safetensors(path); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr(path), HasSubstr(c.message))));
  }
}

TEST(Safetensors, RefusesAHeaderLongerThanTheFile) {
  const std::string path = temporary_path("long_header.safetensors");
  const std::vector<std::string> contents = {"abc", std::string(8, '\xff'), std::string(12, '\5')};
  for (const std::string& content : contents) {
    std::ofstream(path, std::ios::binary) << content;
    EXPECT_THAT([&] { read_safetensors(path); },
                ThrowsMessage<InvalidArgument>(HasSubstr("too few for a header")));
  }
}

TEST(Safetensors, WritesOnlyContiguousHostTensorsOfDifferentNames) {
  const Tensor tensor(host_device(), DType::kF32, Shape{3, 4}, "rows");
  const std::string path = temporary_path("refused.safetensors");
  EXPECT_THAT(
      [&] {
        write_safetensors(path, {tensor, tensor}, {});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("given twice")));
  EXPECT_THAT([&] { write_safetensors(path, {tensor.view().transposed(0, 1)}, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("rows")));
  EXPECT_THROW(write_safetensors(testing::TempDir(), {tensor}, {}), Error);
}

}  // namespace
}  // namespace mladcp
