#include "collectives/launch_environment.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "core/error.h"

namespace mladcp {
namespace {

using Variables = std::map<std::string, std::string>;

Lookup lookup_in(const Variables& variables) {
  return [&variables](const char* variable) -> const char* {
    const auto found = variables.find(variable);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

std::optional<LaunchEnvironment> launched_with(const Variables& variables) {
  return launch_environment(lookup_in(variables));
}

std::string refusal(const Variables& variables) {
  try {
    launched_with(variables);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(LaunchEnvironment, IsNothingWithoutALauncher) {
  EXPECT_FALSE(launched_with({}).has_value());
  EXPECT_FALSE(launched_with({{"RANK", "1"}, {"MASTER_ADDR", "node1"}}).has_value());
}

TEST(LaunchEnvironment, ReadsTorchrunStyleVariables) {
  Variables variables = {{"RANK", "5"},
                         {"WORLD_SIZE", "8"},
                         {"LOCAL_RANK", "1"},
                         {"MASTER_ADDR", "10.0.0.1"},
                         {"MASTER_PORT", "1234"}};
  const auto environment = launched_with(variables);
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->rank, 5);
  EXPECT_EQ(environment->world_size, 8);
  EXPECT_EQ(environment->local_rank, 1);
  EXPECT_EQ(environment->root_address, "10.0.0.1");
  EXPECT_EQ(environment->root_port, 1234);
  variables["TORCHELASTIC_RUN_ID"] = "none";
  EXPECT_EQ(launched_with(variables)->root_port, 1235) << "torchrun's store listens on 1234";
}

TEST(LaunchEnvironment, ReadsOpenMpisVariables) {
  const auto environment = launched_with({{"OMPI_COMM_WORLD_RANK", "3"},
                                          {"OMPI_COMM_WORLD_SIZE", "4"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  ASSERT_TRUE(environment.has_value());
  EXPECT_EQ(environment->rank, 3);
  EXPECT_EQ(environment->root_address, "127.0.0.1") << "all processes are on this host";
  EXPECT_EQ(environment->root_port, 29500);
}

TEST(LaunchEnvironment, TakesSlurmsFirstNode) {
  Variables variables = {{"SLURM_PROCID", "9"}, {"SLURM_NTASKS", "16"}, {"SLURM_LOCALID", "1"}};
  const std::map<std::string, std::string> first_of = {{"gpu[03-05,9],other", "gpu03"},
                                                       {"gpu03,gpu04", "gpu03"},
                                                       {"gpu[7]", "gpu7"},
                                                       {"login,gpu[1-2]", "login"},
                                                       {"solo", "solo"}};
  for (const auto& [nodes, first] : first_of) {
    variables["SLURM_STEP_NODELIST"] = nodes;
    EXPECT_EQ(launched_with(variables)->root_address, first) << nodes;
  }
  variables["MASTER_ADDR"] = "10.0.0.7";
  EXPECT_EQ(launched_with(variables)->root_address, "10.0.0.7");
}

TEST(LaunchEnvironment, RefusalsNameVariableValueAndRemedy) {
  const Variables good = {{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "80"}};
  EXPECT_EQ(refusal(good), "accepted");
  const auto with = [&good](const char* variable, const char* value) {
    Variables variables = good;
    variables[variable] = value;
    return refusal(variables);
  };
  EXPECT_EQ(with("RANK", "2"), "RANK = '2': must be a number in [0, 1]");
  EXPECT_EQ(with("RANK", "-1"), "RANK = '-1': must be a number in [0, 1]");
  EXPECT_EQ(with("WORLD_SIZE", "2x"), "WORLD_SIZE = '2x': must be a number in [1, 1048576]");
  EXPECT_EQ(with("WORLD_SIZE", "0"), "WORLD_SIZE = '0': must be a number in [1, 1048576]");
  EXPECT_EQ(with("LOCAL_RANK", ""), "LOCAL_RANK = '': must be a number in [0, 1]");
  EXPECT_EQ(with("MASTER_PORT", "70000"), "MASTER_PORT = '70000': must be a number in [1, 65534]");
  EXPECT_EQ(with("MASTER_ADDR", ""), "MASTER_ADDR = '': must be the host of rank 0");
  Variables variables = good;
  variables.erase("MASTER_ADDR");
  EXPECT_EQ(refusal(variables), "MASTER_ADDR = '': set it to the host of rank 0, on every process");
  variables = good;
  variables.erase("LOCAL_RANK");
  EXPECT_EQ(refusal(variables), "LOCAL_RANK = '': must be a number in [0, 1], but is not set");
}

TEST(LaunchEnvironment, RankOfAProcessIsTheFirstsWhereNothingSensibleIsSaid) {
  const auto rank = [](const Variables& variables) {
    return launched_process(lookup_in(variables)).rank;
  };
  EXPECT_EQ(launched_process(lookup_in({{"RANK", "1"}, {"WORLD_SIZE", "3"}})).world_size, 3);
  EXPECT_EQ(launched_process(lookup_in({{"RANK", "3"}, {"WORLD_SIZE", "3"}})).world_size, 1);
  EXPECT_EQ(rank({}), 0);
  EXPECT_EQ(rank({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), 0);
  EXPECT_EQ(rank({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), 1);
  EXPECT_EQ(rank({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}}), 3);
  EXPECT_EQ(rank({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}), 1);
  EXPECT_EQ(rank({{"RANK", "1"}}), 0);
  EXPECT_EQ(rank({{"RANK", "1"}, {"WORLD_SIZE", "1"}}), 0);
  EXPECT_EQ(rank({{"RANK", "one"}, {"WORLD_SIZE", "2"}}), 0);
}

}  // namespace
}  // namespace mladcp
