// The command line: what to ask, and of whom.
#pragma once

#include <grpcpp/channel.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "specgate/v1/generation_service.pb.h"

namespace client {

struct Options {
  std::string server = "127.0.0.1:8001";
  // What the command line does not say is left out: the server's default.
  specgate::v1::GenerateStreamRequest request;
  std::optional<std::chrono::duration<double>> timeout;
  bool chat = false;
  bool token_ids = false;
  bool help = false;
  bool tls = false;
  // The texts of the files.
  std::string tls_ca, tls_certificate, tls_key;
  std::string tls_server_name;
};

extern const char* const kUsage;

// Returns what a command line asks for; throws std::invalid_argument that says what is wrong.
Options parse(int argc, char** argv);

// Returns a channel to the server, which connects when it is used.
std::shared_ptr<grpc::Channel> channel_to(const Options& options);

}  // namespace client
