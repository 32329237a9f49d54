#include "collectives/launch_environment.h"

#include <charconv>
#include <string_view>

#include "core/error.h"

namespace mladcp {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kMostProcesses = 1 << 20;

struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
};

constexpr Launcher kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"},
};

// The first one whose rank and size are set, or null.
const Launcher* find_launcher(const Lookup& lookup) {
  for (const Launcher& launcher : kLaunchers) {
    if (lookup(launcher.rank) != nullptr && lookup(launcher.world_size) != nullptr)
      return &launcher;
  }
  return nullptr;
}

[[noreturn]] void refuse(const std::string& variable, const std::string& value,
                         const std::string& remedy) {
  throw InvalidArgument(variable + " = '" + value + "': " + remedy);
}

int number(const Lookup& lookup, const char* variable, int smallest, int largest) {
  const char* value = lookup(variable);
  const std::string range =
      "must be a number in [" + std::to_string(smallest) + ", " + std::to_string(largest) + "]";
  if (value == nullptr) refuse(variable, "", range + ", but is not set");
  const std::string_view text(value);
  int result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || result < smallest || result > largest) refuse(variable, value, range);
  return result;
}

// "node[03-05,9],other" and "node03,node04" begin with node03.
std::string first_node(std::string_view list) {
  const std::size_t comma = list.find(',');
  const std::size_t bracket = list.find('[');
  if (bracket == std::string_view::npos || (comma != std::string_view::npos && comma < bracket)) {
    return std::string(list.substr(0, comma));
  }
  const std::string_view inside = list.substr(bracket + 1);
  return std::string(list.substr(0, bracket)) +
         std::string(inside.substr(0, inside.find_first_of(",-]")));
}

std::string root_address(const Lookup& lookup, const Launcher& launcher, int world_size) {
  if (const char* address = lookup("MASTER_ADDR")) {
    if (*address == '\0') refuse("MASTER_ADDR", "", "must be the host of rank 0");
    return address;
  }
  const char* local_size = lookup(launcher.local_size);
  if (world_size == 1 || (local_size != nullptr && std::to_string(world_size) == local_size)) {
    return "127.0.0.1";
  }
  for (const char* variable : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
    if (const char* nodes = lookup(variable)) return first_node(nodes);
  }
  refuse("MASTER_ADDR", "", "set it to the host of rank 0, on every process");
}

int root_port(const Lookup& lookup) {
  const bool torchrun_store = lookup("TORCHELASTIC_RUN_ID") != nullptr;
  const int port =
      lookup("MASTER_PORT") == nullptr ? kDefaultPort : number(lookup, "MASTER_PORT", 1, 65534);
  return port + (torchrun_store ? 1 : 0);
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const Lookup& lookup) {
  const Launcher* const launcher = find_launcher(lookup);
  if (launcher == nullptr) return std::nullopt;
  LaunchEnvironment result;
  result.source = std::string(launcher->rank) + ", " + launcher->world_size;
  result.world_size = number(lookup, launcher->world_size, 1, kMostProcesses);
  result.rank = number(lookup, launcher->rank, 0, result.world_size - 1);
  const bool needs_local = lookup(launcher->local_rank) != nullptr || result.world_size > 1;
  if (needs_local) {
    result.local_rank = number(lookup, launcher->local_rank, 0, result.world_size - 1);
  }
  result.root_address = root_address(lookup, *launcher, result.world_size);
  result.root_port = root_port(lookup);
  return result;
}

LaunchedProcess launched_process(const Lookup& lookup) {
  const Launcher* const launcher = find_launcher(lookup);
  if (launcher == nullptr) return {};
  try {
    const int processes = number(lookup, launcher->world_size, 1, kMostProcesses);
    return {number(lookup, launcher->rank, 0, processes - 1), processes};
  } catch (const InvalidArgument&) {
    return {};
  }
}

}  // namespace mladcp
