// The one hierarchy of errors. Messages name tensor or field, rank, stage, the value got, the value
// expected and the remedy. Library code throws these and never exits.
#pragma once

#include <stdexcept>
#include <string>

namespace mladcp {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value the caller can correct: shape, dtype, range, configuration rule.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A legal request this implementation does not offer; the message names both sides.
class Unsupported : public Error {
 public:
  using Error::Error;
};

// Ranks entered one collective with different descriptions.
class RankMismatch : public Error {
 public:
  using Error::Error;
};

// A rank did not arrive in time.
class Timeout : public Error {
 public:
  using Error::Error;
};

// A peer failed first; its own message is carried along.
class AbortedByPeer : public Error {
 public:
  using Error::Error;
};

class CudaError : public Error {
 public:
  using Error::Error;
};

class NcclError : public Error {
 public:
  using Error::Error;
};

class MpiError : public Error {
 public:
  using Error::Error;
};

}  // namespace mladcp
