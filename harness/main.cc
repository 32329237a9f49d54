// The mladcp program: one subcommand a verb, one place where errors become exit statuses.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "collectives/launch_environment.h"
#include "core/error.h"
#include "harness/exit_status.h"
#include "harness/text_values.h"
#include "harness/verbs.h"

namespace {

// Does not mind a standard error as full as standard output. Further lines are indented: what a
// name of the input holds is no message of its own.
void complain(const std::string& problem) {
  std::istringstream lines(problem);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += text.empty() ? "mladcp: " : line.rfind("  ", 0) == 0 ? "\n" : "\n  ";
    text += mladcp::printable(line);
  }
  std::fputs((text + "\n").c_str(), stderr);
}

// To CLI11 "--json= x" is "--json x".
void refuse_empty_values(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument(argv[i]);
    if (argument.rfind("--", 0) != 0 || argument.find('=') != argument.size() - 1) continue;
    throw mladcp::InvalidArgument(std::string(argument) + ": gives no value; leave it out");
  }
}

// "run " of `mladcp run ...`.
std::string verb_of(const CLI::App& program) {
  const auto chosen = program.get_subcommands();
  return chosen.empty() ? "" : chosen.front()->get_name() + " ";
}

// CLI11's own message turns the order of the words round.
std::string unexpected(const CLI::App& program) {
  const std::vector<std::string> words = program.remaining(/*recurse=*/true);
  const std::string verb = verb_of(program);
  const bool value = !verb.empty() && words.front().rfind('-', 0) != 0;
  return fmt::format("'{}' was not expected{}; see mladcp {}--help", fmt::join(words, " "),
                     value ? "; a list has commas between its values and no blanks" : "", verb);
}

int run_program(int argc, char** argv) {
  CLI::App program("MLA under decode context parallelism with an FP8 KV cache: simulate and check");
  program.require_subcommand(0, 1);  // none: a message of our own, which unknown words precede
  program.set_version_flag("--version", "mladcp " MLADCP_VERSION, "print the version and end");
  program.footer(
      "Exit status: 0 all checks hold, 1 a check failed, 2 bad usage or input,\n"
      "3 could not run. 'mladcp VERB --help' explains a verb.");
  int status = mladcp::kExitPass;
  mladcp::add_run_verb(program, status);
  mladcp::add_faults_verb(program, status);
  mladcp::add_check_verb(program, status);
  mladcp::add_metadata_verb(program, status);
  mladcp::add_plan_verb(program, status);
  try {
    refuse_empty_values(argc, argv);
    program.parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    return program.exit(wish);
  } catch (const CLI::ExtrasError&) {
    throw mladcp::InvalidArgument(unexpected(program));
  } catch (const CLI::ParseError& error) {
    throw mladcp::InvalidArgument(std::string(error.what()) + "; see mladcp " + verb_of(program) +
                                  "--help");
  }
  if (program.get_subcommands().empty()) {
    complain("which subcommand? see mladcp --help");
    std::fputs(program.help().c_str(), stderr);
    return mladcp::kExitBadInput;
  }
  return status;
}

// What every process of a job would say, its first one says for all: mpirun and torchrun end a job
// once a process has failed, Open MPI a second later. A later process that lives on has something
// of its own to say, a file that only its node lacks.
void complain_of_input(const std::string& problem) {
  const int rank = mladcp::launched_process(std::getenv).rank;
  if (rank == 0) return complain(problem);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  complain(fmt::format("process {}: {}", rank, problem));
}

// What was printed may still be on its way; a full disk shows only now. A closed pipe ends the
// program by SIGPIPE, as it does other tools, unless that is ignored.
int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  complain("could not run: standard output cannot be written");
  return mladcp::kExitCouldNotRun;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return flushed(run_program(argc, argv));
  } catch (const mladcp::InvalidArgument& error) {
    complain_of_input(error.what());
    return mladcp::kExitBadInput;
  } catch (const std::bad_alloc&) {
    complain(
        "could not run: there is not enough memory; use fewer or shorter requests (--batch, "
        "--seq-lens, --context-lens), fewer --heads or ranks (--tp, --dcp), or a smaller "
        "--page-size");
    return mladcp::kExitCouldNotRun;
  } catch (const std::exception& error) {
    complain(fmt::format("could not run: {}", error.what()));
    return mladcp::kExitCouldNotRun;
  }
}
