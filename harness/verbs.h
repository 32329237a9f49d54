// The program's verbs. Each adds one subcommand to the program; when it is the one chosen, parsing
// runs it and `status` receives the exit status. Errors are thrown on to main.
#pragma once

namespace CLI {
class App;
}

namespace mladcp {

void add_run_verb(CLI::App& program, int& status);
void add_faults_verb(CLI::App& program, int& status);
void add_check_verb(CLI::App& program, int& status);
void add_metadata_verb(CLI::App& program, int& status);
void add_plan_verb(CLI::App& program, int& status);

}  // namespace mladcp
