// Files of named tensors in the safetensors format (github.com/huggingface/safetensors): 8 bytes of
// header length, a JSON header, then the bytes of the tensors.
#pragma once

#include <istream>
#include <map>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace mladcp {

struct SafetensorsFile {
  std::string path;
  std::map<std::string, Tensor> tensors;        // host memory; each view carries its name
  std::map<std::string, std::string> metadata;  // "__metadata__"

  // Throw InvalidArgument naming the file and the names it does hold.
  const TensorView& tensor(const std::string& name) const;
  const std::string& metadata_value(const std::string& key) const;
  double metadata_number(const std::string& key) const;  // also when the value is no number
};

// Reads the whole file. Throws InvalidArgument naming the file, and the tensor where there is one:
// for a file that cannot be read or is cut short, a header that is no such JSON, a dtype other than
// F64, F32, BF16, F8_E4M3, I64, I32, U8 (bytes), more than Shape::kMaxRank axes, and offsets that
// are out of bounds, do not fit the shape, overlap or leave bytes over.
SafetensorsFile read_safetensors(const std::string& path);
// The same of an open stream; `path` is for messages.
SafetensorsFile read_safetensors(std::istream& stream, const std::string& path);

// Writes contiguous host tensors under their names, largest element size first, so that every
// tensor is aligned in the file. Throws InvalidArgument for tensors that are not contiguous, not in
// host memory, or of equal names, and Error when the file cannot be written.
void write_safetensors(const std::string& path, const std::vector<TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace mladcp
