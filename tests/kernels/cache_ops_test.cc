// The paged cache and gathered context on the GPU against the host, bit for bit.
#include <algorithm>
#include <numeric>
#include <vector>

#include "reference/cpu_ops.h"
#include "tests/kernels/gpu_test.h"

namespace mladcp {
namespace {

class CacheOpsTest : public GpuTest {
 protected:
  CpuOps cpu_{8};
};

Tensor bf16_rows(std::int64_t rows, std::int64_t width, const char* name) {
  Numbers numbers(static_cast<std::uint64_t>(width));
  return random_tensor(DType::kBF16, {rows, width}, name, numbers, 0.4F, 3.0F);
}

TEST_F(CacheOpsTest, WritesSlotsAndNothingElse) {
  CudaOps& ops = ops_of_rank(0);
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    for (const std::int64_t page : {1, 16, 64, 128}) {
      for (const std::int64_t pad : {0, 16, 3}) {
        for (const std::int64_t latent : {512, 13}) {
          SCOPED_TRACE(std::string(name(dtype)) + " page " + std::to_string(page) + " pad " +
                       std::to_string(pad));
          const std::int64_t rope = latent == 512 ? 64 : 5;
          const std::int64_t pages = 300 / page + 2;
          const std::int64_t tokens = 67;
          std::vector<std::int64_t> order(static_cast<std::size_t>(pages * page));
          std::iota(order.begin(), order.end(), 0);
          Numbers numbers(2);
          std::shuffle(order.begin(), order.end(), numbers.engine());
          std::vector<std::int64_t> slots(order.begin(), order.begin() + tokens);
          for (std::size_t i = 0; i < slots.size(); i += 3) slots[i] = -1;  // another rank's
          const Tensor kv_c = bf16_rows(tokens, latent, "kv_c");
          const Tensor k_pe = bf16_rows(tokens, rope, "k_pe");
          const Tensor slot_tensor = index_tensor(slots, "slots");
          Tensor wanted = host_tensor(dtype, {pages, page, latent + rope + 2 * pad}, "cache");
          poison(wanted);
          const KvCache host_cache = {wanted.view().narrow(2, pad, latent + rope), 0.1F};
          cpu_.cache.write(host_cache, kv_c, k_pe, slot_tensor, kHostStream);
          const Tensor got = poisoned(dtype, wanted.shape(), "cache");
          ops.cache.write({got.view().narrow(2, pad, latent + rope), 0.1F}, upload(kv_c),
                          upload(k_pe), upload(slot_tensor), stream());
          expect_same_bytes("cache", download(got), wanted);
        }
      }
    }
  }
}

// Three requests with uneven padded shares, one without any, starts off page boundaries.
TEST_F(CacheOpsTest, GathersAndDequantises) {
  CudaOps& ops = ops_of_rank(0);
  const std::vector<std::int32_t> padded = {5, 0, 70, 131};
  const std::vector<std::int32_t> starts = {3, 9, 17, 64};
  std::vector<std::int32_t> cu = {0};
  std::vector<std::int32_t> token_to_seq;
  for (std::size_t s = 0; s < padded.size(); ++s) {
    cu.push_back(cu.back() + padded[s]);
    token_to_seq.insert(token_to_seq.end(), static_cast<std::size_t>(padded[s]),
                        static_cast<std::int32_t>(s));
  }
  const Tensor cu_tensor = index_tensor(cu, "cu_seq_lens");
  const Tensor seq_tensor = index_tensor(token_to_seq, "token_to_seq");
  const Tensor start_tensor = index_tensor(starts, "seq_starts");
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    for (const std::int64_t page : {1, 16, 32, 64, 128}) {
      for (const std::int64_t pad : {0, 16, 5}) {
        for (const std::int64_t width : {576, 19}) {
          for (const float scale : {1.0F, 0.1F, 3.0F}) {
            SCOPED_TRACE(std::string(name(dtype)) + " page " + std::to_string(page) + " width " +
                         std::to_string(width) + " pad " + std::to_string(pad));
            const std::int64_t columns = 200 / page + 1;
            const std::int64_t pages = columns * 4;
            Tensor cache = host_tensor(dtype, {pages, page, width}, "cache");
            for (std::int64_t i = 0; i < cache.view().bytes(); ++i) {
              cache.as<unsigned char>()[i] = static_cast<unsigned char>(i * 37 % 251);
            }
            std::vector<std::int32_t> table(static_cast<std::size_t>(pages));
            std::iota(table.begin(), table.end(), 0);
            Numbers numbers(9);
            std::shuffle(table.begin(), table.end(), numbers.engine());
            const Tensor flat = index_tensor(table, "block_table");
            const TensorView block_table = flat.view().reshaped({4, columns});
            const Shape shape = {cu.back(), width};
            const Tensor wanted = host_tensor(DType::kBF16, shape, "rows");
            cpu_.cache.gather_and_dequantize(wanted, {cache, scale}, block_table,
                                             {cu_tensor, seq_tensor, start_tensor, {}},
                                             kHostStream);
            Tensor storage;
            const TensorView cache_view = strided(cache, storage, pad);
            const Tensor cu_device = upload(cu_tensor), seq_device = upload(seq_tensor);
            const Tensor start_device = upload(start_tensor), table_device = upload(block_table);
            // Into the first rows of a larger workspace.
            const Tensor workspace = poisoned(DType::kBF16, {cu.back() + 3, width}, "workspace");
            const TensorView rows = workspace.view().narrow(0, 0, cu.back());
            ops.cache.gather_and_dequantize(rows, {cache_view, scale}, table_device,
                                            {cu_device, seq_device, start_device, {}}, stream());
            expect_same_bytes("rows", download(rows), wanted);
            for (const unsigned char byte :
                 bytes_of(download(workspace.view().narrow(0, cu.back(), 3)))) {
              ASSERT_EQ(byte, 0xFF);
            }
          }
        }
      }
    }
  }
}

TEST_F(CacheOpsTest, Reorganises) {
  CudaOps& ops = ops_of_rank(0);
  for (const std::int64_t width : {576, 12, 7}) {
    for (const std::int64_t pad : {0, 8, 3}) {
      const Tensor gathered = bf16_rows(211, width, "gathered");
      std::vector<std::int32_t> source = {0, 1, 2, 70, 71, 140, 210, 3, 72, 4, 209};
      for (std::int32_t i = 0; i < 100; ++i) source.push_back((i * 53) % 211);
      const Tensor source_rows = index_tensor(source, "source_rows");
      const Shape shape = {static_cast<std::int64_t>(source.size()), width};
      const Tensor wanted = host_tensor(DType::kBF16, shape, "rows");
      cpu_.cache.reorganise(wanted, gathered, source_rows, kHostStream);
      Tensor storage;
      const TensorView view = strided(gathered, storage, pad);
      const Tensor got = poisoned(DType::kBF16, shape, "rows");
      ops.cache.reorganise(got, view, upload(source_rows), stream());
      SCOPED_TRACE(width);
      expect_same_bytes("rows", download(got), wanted);
    }
  }
}

// A slot whose element offset passes 2^31: 3,728,271 x 576.
TEST_F(CacheOpsTest, OffsetsPass32Bits) {
  CudaOps& ops = ops_of_rank(0);
  const std::int64_t slot = 3728271;
  const std::int64_t page = 64;
  const std::int64_t pages = slot / page + 1;
  const Tensor cache(device(), DType::kE4M3, {pages, page, 576}, "cache");
  const Tensor kv_c = bf16_rows(1, 512, "kv_c");
  const Tensor k_pe = bf16_rows(1, 64, "k_pe");
  const Tensor slots = index_tensor(std::vector<std::int64_t>{slot}, "slots");
  ops.cache.write({cache, 1.0F}, upload(kv_c), upload(k_pe), upload(slots), stream());
  const Tensor small = host_tensor(DType::kE4M3, {1, 1, 576}, "cache");
  const Tensor zero = index_tensor(std::vector<std::int64_t>{0}, "slots");
  cpu_.cache.write({small, 1.0F}, kv_c, k_pe, zero, kHostStream);
  const TensorView row = cache.view().select(0, slot / page).select(0, slot % page);
  expect_same_bytes("row", download(row), small.view().reshaped({576}));
}

}  // namespace
}  // namespace mladcp
