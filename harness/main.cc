// The mladcp program: one subcommand a verb, one place where errors become exit statuses.
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "core/error.h"
#include "harness/exit_status.h"
#include "harness/verbs.h"

namespace {

int run_program(int argc, char** argv) {
  CLI::App program("MLA under decode context parallelism with an FP8 KV cache: simulate and check");
  program.require_subcommand(0, 1);  // none: a message of our own, which unknown words precede
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
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) {
      fmt::print(stderr, "mladcp: which subcommand?\n\n{}", program.help());
      return mladcp::kExitBadInput;
    }
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? mladcp::kExitPass : mladcp::kExitBadInput;
  }
  return status;
}

// Never throws: standard error may be as full as standard output.
void complain(const std::string& text) { std::fputs(text.c_str(), stderr); }

// What was printed may still be on its way; a full disk or a closed pipe shows only now.
int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  complain("mladcp: could not run: standard output cannot be written\n");
  return mladcp::kExitCouldNotRun;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return flushed(run_program(argc, argv));
  } catch (const mladcp::InvalidArgument& error) {
    complain(fmt::format("mladcp: {}\n", error.what()));
    return mladcp::kExitBadInput;
  } catch (const std::exception& error) {
    complain(fmt::format("mladcp: could not run: {}\n", error.what()));
    return mladcp::kExitCouldNotRun;
  }
}
