// SPDX-License-Identifier: Apache-2.0
// tandem-oracle SUITE FILE... [--model DIR]: expected-value files through the library.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>

#include "tandem/base/error.h"
#include "tandem/base/strings.h"
#include "oracle/suites.h"
#include "tandem/device/process.h"

int main(int argc, char** argv) {
  using namespace tandem;
  device::tune_allocator();
  CLI::App app("Runs files of expected values through Tandem.");
  std::string suite;
  std::vector<std::string> files;
  cli::OracleOptions options;
  app.add_option("suite", suite, "Name of the suite")->required();
  app.add_option("files", files, "Files, or folders of files")->required();
  app.add_option("--model", options.model, "Model or tokenizer directory, where a file needs one");
  app.add_option("--kernels", options.kernels, "What computes a model: auto, cpu or aten");
  app.add_option("--device", options.device, "Where: auto, cpu, cuda or npu");
  try {
    app.parse(argc, argv);
    cli::Report report(std::cout);
    cli::run_suite(suite, files, options, report);
    report.summary();
    return report.num_failed() == 0 ? 0 : 1;
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const UserError& e) {
    std::fprintf(stderr, "tandem-oracle: error: %s\n", terminal_text(e.what()).c_str());
    return 2;
  } catch (const PeerError& e) {
    std::fprintf(stderr, "tandem-oracle: error: %s\n", terminal_text(e.what()).c_str());
    return 3;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "tandem-oracle: internal error: %s\n", terminal_text(e.what()).c_str());
    return 1;
  }
}
