#include "core/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace mladcp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Model, PresetsHaveTheSizesOfThePublishedModels) {
  struct Case {
    const char* name;
    std::int64_t heads;
    // Worked out by hand: 192^-0.5 * (0.1 * mscale_all_dim * ln(factor) + 1)^2.
    double softmax_scale;
  };
  for (const Case& c : {Case{"deepseek-v3", 128, 0.1352337788608801},
                        {"deepseek-r1", 128, 0.1352337788608801},
                        {"deepseek-v2", 128, 0.11472138679292611},
                        {"deepseek-v2-lite", 16, 0.11472138679292611},
                        {"kimi-k2", 64, 0.13086079996295005},
                        {"kimi-k2-0905", 64, 0.14467962580268923}}) {
    SCOPED_TRACE(c.name);
    const ModelConfig model = model_from_name(c.name);
    EXPECT_EQ(model.name, c.name);
    EXPECT_EQ(model.heads, c.heads);
    EXPECT_EQ(model.dims.latent, 512);
    EXPECT_EQ(model.dims.rope, 64);
    EXPECT_EQ(model.dims.nope, 128);
    EXPECT_EQ(model.dims.value, 128);
    EXPECT_FLOAT_EQ(model.softmax_scale(), static_cast<float>(c.softmax_scale));
  }
}

TEST(Model, WithoutYarnTheScaleIsTheInverseRootOfTheHeadWidth) {
  EXPECT_EQ(model_from_name("tiny").softmax_scale(), 0.125f);
  ModelConfig model = model_from_name("deepseek-v3");
  for (const double factor : {0.5, 1.0}) {  // YaRN changes nothing up to factor 1
    model.yarn.factor = factor;
    EXPECT_FLOAT_EQ(model.softmax_scale(), 0.07216878364870322f);
  }
  model.yarn.factor = 1.25;
  EXPECT_FLOAT_EQ(model.softmax_scale(), 0.07542552f);
}

TEST(Model, EveryListedNameIsKnownAndAnUnknownOneIsRefusedWithTheList) {
  const std::vector<std::string> names = model_names();
  EXPECT_THAT(names, testing::Contains("tiny"));
  for (const std::string& name : names) EXPECT_EQ(model_from_name(name).name, name);
  EXPECT_THAT([] { model_from_name("deepseek-v9"); },
              testing::ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr("deepseek-v9"), HasSubstr("deepseek-v3, deepseek-r1"),
                        HasSubstr("kimi-k2"), HasSubstr("tiny"))));
}

}  // namespace
}  // namespace mladcp
