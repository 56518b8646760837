// What a failed call says of itself.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

namespace client {

// Returns one line: code, reason, field, when to come back, and the message.
std::string describe(const grpc::Status& status);

}  // namespace client
